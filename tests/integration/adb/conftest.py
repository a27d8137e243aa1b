from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from farm.adb.client import AdbClient
from farm.adb.devices import DeviceState, usable
from farm.adb.program import AdbBinary, read_version
from farm.adb.server import AdbServer, default_socket
from farm.simulation.control import LabClient
from tests.adb_server import adb_binaries

REPOSITORY = Path(__file__).parents[3]

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


PHONE = "pixel"


@pytest.fixture
async def phone_lab(own_server: AdbServer, folder: Path) -> AsyncIterator[LabClient]:
    """One virtual phone, plugged into our server."""
    directory = folder / "lab"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "farm.simulation.lab", "--dir", str(directory),
        "--adb-socket", own_server.client.address.spec, "--phone", f"{PHONE}=oneplus-12",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert (await process.stdout.readline()).strip() == b"lab ready"
        with await asyncio.to_thread(LabClient, directory) as control:
            yield control
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.communicate(), 20)


@pytest.fixture
async def serial(phone_lab: LabClient, client: AdbClient) -> str:
    """The phone's serial once it can be asked."""
    return await usable_serial(client)


async def usable_serial(client: AdbClient, state: DeviceState = DeviceState.DEVICE) -> str:
    """Waits until the one phone is listed in that state."""
    async with asyncio.timeout(20):
        async with contextlib.aclosing(client.track_devices()) as lists:
            async for devices in lists:
                if [device.state for device in devices] == [state]:
                    return devices[0].serial
        raise AssertionError("the list ended")


async def no_phone(client: AdbClient) -> None:
    """Waits until nothing is usable."""
    async with asyncio.timeout(20), contextlib.aclosing(client.track_devices()) as lists:
        async for devices in lists:
            if not usable(devices):
                return
