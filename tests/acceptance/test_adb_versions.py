"""Other people's adb servers: two releases get on, and what is in the way is told in `farm status`."""

import tempfile
from pathlib import Path

import pytest

from farm.simulation.virtual_farm import DaemonProcess
from tests.adb_server import adb_binaries
from tests.support.stock_client import Clients
from tests.support.whole_farm import phones, running_farm, until

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
