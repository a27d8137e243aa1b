import tempfile
from pathlib import Path

import pytest

from farm.adb.client import AdbClient
from tests.unit.adb.fake_server import fake_server


@pytest.fixture
async def server():
    # Not tmp_path: a unix socket's path must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="farm-adb-") as folder:
        async with fake_server(Path(folder)) as running:
            yield running


@pytest.fixture
def client(server):
    return AdbClient(server.socket)
