import asyncio
import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from farm.adb.client import AdbClient
from farm.adb.devices import AdbState, usable
from farm.adb.errors import AdbError
from farm.adb.program import read_version
from farm.adb.server import AdbServer
from farm.adb.tunnels import parse_reverses
from farm.simulation.control import LabClient, running_lab
from tests.adb_server import adb_binaries
from tests.support.waiting import HANG_S

BINARIES = adb_binaries()


@pytest.fixture(params=sorted(BINARIES), scope="module")
def binary(request):
    """Each adb program of this machine in turn: Debian's 29 and adbutils' 36."""
    return read_version(Path(BINARIES[request.param]))


@pytest.fixture
def folder():
    # Not tmp_path: a unix socket's path must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="farm-adb-") as made:
        yield Path(made)


def server_in(folder, binary):
    """Farm's own server on a unix socket, without USB."""
    return AdbServer(binary, f"localfilesystem:{folder / 'adb.sock'}", folder, usb=False)


@pytest.fixture
async def own_server(binary, folder):
    """A server that the test may kill."""
    server = server_in(folder, binary)
    await server.ensure()
    try:
        yield server
    finally:
        await server.stop()


@dataclass
class Shared:
    """A server and the virtual phones behind it."""

    server: AdbServer
    lab: LabClient


@pytest.fixture(scope="module")
def shared(request, binary):
    """The module's PHONES behind one server."""
    with tempfile.TemporaryDirectory(prefix="farm-adb-") as made:
        server = server_in(Path(made), binary)
        asyncio.run(server.ensure())
        try:
            with running_lab(Path(made) / "lab", request.module.PHONES, adb_socket=server.client.address.spec) as lab:
                yield Shared(server, lab)
        finally:
            asyncio.run(server.stop(even_adopted=True))


@pytest.fixture
def client(shared):
    return AdbClient(shared.server.client.address.spec)


@pytest.fixture
async def lab(shared, client):
    """The module's phones, plugged in; afterwards nothing of the test is left on them or in the server."""
    phones = await asyncio.to_thread(shared.lab.status)
    await list_until(client, lambda devices: len(usable(devices)) == len(phones))
    yield shared.lab
    for name in phones:
        await asyncio.to_thread(shared.lab.free_disk, name)
        await asyncio.to_thread(shared.lab.plug, name)
    await list_until(client, lambda devices: len(usable(devices)) == len(phones))
    for phone in phones.values():
        await answers(client, phone.serial)
        for reverse in parse_reverses(phone.serial, await client.list_reverses(phone.serial)):
            await client.remove_reverse(phone.serial, reverse.listen)
        await client.shell(phone.serial, "rm -rf /data/local/tmp/* /data/local/tmp/.[!.]*", timeout_s=HANG_S)
    for line in (await client.list_forwards()).splitlines():
        serial, local, _ = line.split()
        await client.remove_forward(serial, local)


async def answers(client, serial):
    """Waits until the phone answers: a server lists a link that has just ended as usable for a while."""
    async with asyncio.timeout(HANG_S):
        while True:
            with contextlib.suppress(AdbError):
                await client.shell(serial, "true", timeout_s=HANG_S)
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def serial(lab, client):
    """The phone's serial once it can be asked."""
    return await usable_serial(client)


async def usable_serial(client, state=AdbState.DEVICE):
    """Waits until the one phone is listed in that state."""
    devices = await list_until(client, lambda devices: [device.state for device in devices] == [state])
    return devices[0].serial


async def no_phone(client):
    """Waits until nothing is usable."""
    await list_until(client, lambda devices: not usable(devices))


async def list_until(client, reached):
    """Asks for the list until it is as wanted: adb 29's own stream keeps silent about some changes."""
    async with asyncio.timeout(HANG_S):
        while not reached(devices := await client.list_devices()):  # noqa: ASYNC110 (adb has no event to wait for)
            await asyncio.sleep(0.01)
        return devices
