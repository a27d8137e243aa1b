"""Other people's adb servers: two releases get on, and what is in the way is told in `farm status`."""

import asyncio
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from farm.simulation.virtual_farm import DaemonProcess
from tests.adb_server import adb_binaries
from tests.support.stock_client import Clients
from tests.support.waiting import HANG_S
from tests.support.whole_farm import phones, running_farm, until
from tests.unit.adb.fake_server import FakeServer

OLD_VERSION = 39  # of 2017; both programs at hand speak 41

needs_both = pytest.mark.skipif(len(adb_binaries()) < 2, reason="needs two different adb programs")


@needs_both
@pytest.mark.parametrize(("server", "client"), [("system", "bundled"), ("bundled", "system")])
def test_releases_of_one_protocol_version_get_on(server, client, kernel):
    binaries = adb_binaries()
    with running_farm("galaxy-a55", config=f"binary = '{binaries[server]}'\n") as farm:
        [phone] = phones(farm)
        listed = farm.run(binaries[client], "devices")
        assert f"{phone.serial}\tdevice" in listed.stdout
        assert "daemon" not in listed.stderr  # it started none of its own
        assert Clients(farm, kernel).result("tell(add_one(connect().request('android')))") is True
        until(lambda: phone.row["state"] == "ready")
        assert farm.status()["problems"] == []


@contextmanager
def old_server(folder):
    """An adb server of another protocol version on a port of its own, in a thread; its socket spec."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports = []

    async def serve():
        server = FakeServer(folder, version=OLD_VERSION, devices="")
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
            ports.append(listener.sockets[0].getsockname()[1])
            ready.set()
            await stop.wait()
            server.drop_connections()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(HANG_S)
        yield f"tcp:127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(HANG_S)
        loop.close()


def test_a_server_that_is_not_farms_own_is_waited_for(adb_server):
    adb_server.stop()
    with tempfile.TemporaryDirectory(prefix="alien-") as folder:
        daemon = DaemonProcess(Path(folder), f"manage = false\nsocket = '{adb_server.socket}'\n")
        client = daemon.start()
        try:
            until(lambda: client.call("status")["problems"])
            [problem] = client.call("status")["problems"]
            adb_server.start()
            until(lambda: not client.call("status")["problems"])
        finally:
            client.close()
            daemon.stop()
        assert str(adb_server.port) in problem
        assert adb_server.answers()  # somebody else's: not ours to end
        assert "Traceback" not in daemon.log.read_text()


def test_a_server_of_another_protocol_version_is_told_with_both_versions():
    with tempfile.TemporaryDirectory(prefix="clash-") as folder, old_server(Path(folder)) as socket:
        daemon = DaemonProcess(Path(folder), f"socket = '{socket}'\n")
        client = daemon.start()
        try:
            until(lambda: client.call("status")["problems"])
            [problem] = client.call("status")["problems"]
        finally:
            client.close()
            daemon.stop()
        assert f"has version {OLD_VERSION}" in problem
        assert "farm's adb program has 41" in problem
        assert "use one adb program for both" in problem
        assert "Traceback" not in daemon.log.read_text()
