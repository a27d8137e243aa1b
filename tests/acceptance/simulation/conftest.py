"""One adb server per adb version and one phone for all tests that leave both as they found them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from farm.simulation.control import LabClient, running_lab
from tests.adb_server import AdbServer, adb_binaries

PHONE = "pixel"
PROFILE = "oneplus-12"


@dataclass
class Rig:
    """A phone, the lab it lives in, and the adb server that sees it."""

    adb: AdbServer
    lab: LabClient
    serial: str

    def run(self, *arguments, **options):
        return self.adb.run(*arguments, serial=self.serial, **options)

    def text(self, *arguments):
        return self.adb.text(*arguments, serial=self.serial)

    def unplug(self):
        self.lab.unplug(PHONE)
        self.adb.wait_for_state(self.serial, "")

    def replug(self):
        self.lab.plug(PHONE)
        self.wait_online()

    def wait_online(self):
        self.lab.wait(PHONE, "online")
        self.adb.wait_for_state(self.serial, "device")


@pytest.fixture(scope="module", params=sorted(adb_binaries()))
def rig(request, tmp_path_factory):
    server = AdbServer(adb_binaries()[request.param], tmp_path_factory.mktemp("adb"))
    server.start()
    try:
        with running_lab(tmp_path_factory.mktemp("lab"), {PHONE: PROFILE}, adb_socket=server.socket) as lab:
            made = Rig(server, lab, lab.phone(PHONE).serial)
            made.wait_online()
            yield made
    finally:
        server.stop()
