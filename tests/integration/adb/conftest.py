from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from farm.adb.client import AdbClient
from farm.adb.devices import AdbDevice, AdbState, usable
from farm.adb.program import AdbBinary, read_version
from farm.adb.server import AdbServer
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
    """Farm's own server on a unix socket, without USB."""
    server = AdbServer(binary, f"localfilesystem:{folder / 'adb.sock'}", folder, usb=False)
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


async def usable_serial(client: AdbClient, state: AdbState = AdbState.DEVICE) -> str:
    """Waits until the one phone is listed in that state."""
    devices = await list_until(client, lambda devices: [device.state for device in devices] == [state])
    return devices[0].serial


async def no_phone(client: AdbClient) -> None:
    """Waits until nothing is usable."""
    await list_until(client, lambda devices: not usable(devices))


async def list_until(client: AdbClient, reached: Callable[[list[AdbDevice]], bool]) -> list[AdbDevice]:
    """Asks for the list until it is as wanted: adb 29's own stream keeps silent about some changes."""
    async with asyncio.timeout(20):
        while not reached(devices := await client.list_devices()):  # noqa: ASYNC110 (adb has no event to wait for)
            await asyncio.sleep(0.01)
        return devices
