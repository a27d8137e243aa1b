"""Links that die: a wedged adbd is power-cycled, a wedged adb server is judged by what still works on it."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from farm.client import Client
from farm.simulation.virtual_farm import VirtualFarm
from tests.support.whole_farm import Story, phones, until_ready

PLACES = {"left": "1-4.1", "right": "1-4.2"}

pytestmark = pytest.mark.farm(named={"left": "oneplus-12", "right": "galaxy-s9"}, places=PLACES)


def adb_server(farm: VirtualFarm) -> int:
    """The process id of the daemon's own adb server."""
    daemon = psutil.Process(farm.status()["pid"])
    (server,) = (child.pid for child in daemon.children() if "nodaemon" in child.cmdline())
    return server


def test_a_hanging_adb_server_with_a_lease_on_it_gets_its_time(farm: VirtualFarm) -> None:
    until_ready(farm)
    name, story, server = phones(farm)[0].name, Story(farm), adb_server(farm)
    with Client(farm.socket) as client, client.lease(on=name):
        os.kill(server, signal.SIGSTOP)
        story.until("adb.hangs")
        assert any("The adb server on" in problem for problem in farm.status()["problems"])  # it hangs, or is slow
        os.kill(server, signal.SIGCONT)
        story.until("adb.back")
        assert adb_server(farm) == server
        assert not any("hangs" in problem for problem in farm.status()["problems"])
        story.read()
        assert "adb.lost" not in story.kinds()
        assert "lease.released" not in story.kinds(name)


def test_a_hanging_adb_server_with_nobodys_work_on_it_is_replaced(farm: VirtualFarm) -> None:
    until_ready(farm)
    story, server = Story(farm), adb_server(farm)
    servers = {phone.nickname: phone.server() for phone in phones(farm)}
    os.kill(server, signal.SIGSTOP)
    story.until("adb.lost")
    story.until("adb.back")
    until_ready(farm)
    story.read()
    assert adb_server(farm) != server
    assert "host.usb_lost" not in story.kinds()  # the server went, not the hubs
    assert story.kinds().count("adb.lost") == 1
    assert {phone.nickname: phone.server() for phone in phones(farm)} == servers  # taken over, not restarted


def test_a_wedged_adbd_comes_back_by_cutting_its_ports_power(farm: VirtualFarm) -> None:
    until_ready(farm)
    phone, story = phones(farm)[0], Story(farm)
    name = phone.name
    farm.lab.fault(phone.nickname, "offline", mode="silent")
    story.until("recovery.action", subject=name, action="power-cycle")
    story.until("device.ready", subject=name)
