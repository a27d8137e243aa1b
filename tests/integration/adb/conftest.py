from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from farm.adb.client import AdbClient
from farm.adb.program import AdbBinary, read_version
from farm.adb.server import AdbServer, default_socket
from tests.adb_server import adb_binaries

BINARIES = adb_binaries()


@pytest.fixture(params=sorted(BINARIES))
def binary(request: pytest.FixtureRequest) -> AdbBinary:
    """Each adb program of this machine in turn: Debian's 29 and adbutils' 36."""
    return read_version(Path(BINARIES[request.param]))


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: a unix socket's path must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="farm-adb-") as made:
        yield Path(made)


@pytest.fixture
async def own_server(binary: AdbBinary, folder: Path) -> AsyncIterator[AdbServer]:
    """Farm's own server on its default unix socket, without USB."""
    server = AdbServer(binary, default_socket(folder), folder, usb=False)
    await server.ensure()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
def client(own_server: AdbServer) -> AdbClient:
    return own_server.client
