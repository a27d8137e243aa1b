"""Words to systemd: what is sent, to whom, and that nobody else's silence or noise matters."""

import os
import secrets
import socket
import time

import pytest

from farm.common.systemd import MAX_STATUS_CHARACTERS, Notifier
from tests.support.waiting import HANG_S


class Manager:
    """The other end, as systemd has it."""

    def __init__(self, address):
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.settimeout(HANG_S)

    def heard(self):
        return self.socket.recv(4096).decode().split("\n")


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    address = str(tmp_path / "notify") if request.param == "path" else f"@farm-test-{secrets.token_hex(8)}"
    manager = Manager(address)
    yield manager
    manager.socket.close()


def test_what_is_said(manager):
    notifier = Notifier(manager.address, 60.0)
    notifier.ready("serving")
    assert manager.heard() == ["READY=1", "STATUS=serving"]
    notifier.status("serving")  # as before: nothing is said
    notifier.status("two\nlines and READY=1")
    assert manager.heard() == ["STATUS=two lines and READY=1"]
    notifier.keep_alive()
    assert manager.heard() == ["WATCHDOG=1"]
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    reloading, at = manager.heard()
    assert reloading == "RELOADING=1"
    assert before <= int(at.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    notifier.stopping()
    assert manager.heard() == ["STOPPING=1", "STATUS=stopping"]
    notifier.close()


def test_a_long_status_is_cut(manager):
    notifier = Notifier(manager.address)
    notifier.status("x" * 5000)
    assert manager.heard() == ["STATUS=" + "x" * MAX_STATUS_CHARACTERS]
    notifier.close()


def test_a_migration_asks_for_time_until_it_is_done(manager):
    notifier = Notifier(manager.address)
    with notifier.extending(every_s=0.001, by_s=30.0):
        assert manager.heard() == ["EXTEND_TIMEOUT_USEC=30000000"]
        assert manager.heard() == ["EXTEND_TIMEOUT_USEC=30000000"]
    notifier.keep_alive()
    while (said := manager.heard()) != ["WATCHDOG=1"]:
        assert said == ["EXTEND_TIMEOUT_USEC=30000000"]
    manager.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.heard()
    notifier.close()


def test_the_managers_variables_are_taken_out_of_the_environment():
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    notifier = Notifier.from_environment(environ)
    assert (notifier.listens, notifier.watchdog_s) == (True, 30.0)
    assert environ == {"PATH": "/bin"}
    notifier.close()


@pytest.mark.parametrize(
    "said",
    [
        {"WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "9" * 5000},
        {"WATCHDOG_USEC": ""},
    ],
)
def test_a_watchdog_that_is_not_meant_for_us_is_none(said):
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000", **said})
    assert notifier.watchdog_s is None
    notifier.close()


@pytest.mark.parametrize("address", ["", "relative/path", "vsock:2:1234"])
def test_nobody_listens(address):
    notifier = Notifier(address, 60.0)
    assert not notifier.listens
    notifier.ready("serving")
    with notifier.extending():
        pass
    notifier.close()


def test_a_manager_that_does_not_read_stops_nobody(manager):
    notifier = Notifier(manager.address, 60.0)
    for _ in range(5000):
        notifier.keep_alive()
    manager.socket.close()
    notifier.keep_alive()
    notifier.close()
    notifier.keep_alive()
