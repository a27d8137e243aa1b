"""When systemd is told that the daemon makes progress, and when it is not."""

import asyncio
import contextlib
import logging
import socket
import threading

import pytest

from farm.common.systemd import CHECK_EVERY_S, Notifier, ProgressCheck, Watchdog
from farm.daemon.monitoring import status_line
from farm.model.device import DeviceView, Life
from tests.support.waiting import HANG_S


class Recorder(Notifier):
    def __init__(self, watchdog_s=60.0):
        super().__init__()
        self.watchdog_s = watchdog_s
        self.said = []

    def keep_alive(self):
        self.said.append("alive")

    def status(self, status):
        self.said.append(status)


@pytest.mark.parametrize(("watchdog_s", "every_s"), [(None, CHECK_EVERY_S), (60.0, CHECK_EVERY_S), (3.0, 1.0)])
def test_three_chances_within_the_managers_patience(watchdog_s, every_s):
    assert Watchdog(Recorder(watchdog_s=watchdog_s), (), str).every_s == every_s


def test_no_keep_alive_while_a_part_does_not_move(caplog):
    silent = {"the scheduler": 0.0}
    notifier = Recorder()
    dog = Watchdog(notifier, [ProgressCheck("the scheduler", lambda: silent["the scheduler"], 30.0)], lambda: "2 ready")
    assert dog.check()
    assert notifier.said == ["2 ready", "alive"]
    silent["the scheduler"] = 31.0
    with caplog.at_level(logging.ERROR, "farm"):
        assert not dog.check()
        silent["the scheduler"] = 31.4
        assert not dog.check()
    assert notifier.said[2:] == ["stuck: the scheduler has not moved for 31 s (at most 30 s)"] * 2
    assert len(caplog.records) == 1  # told once
    silent["the scheduler"] = 0.0
    assert dog.check()
    assert notifier.said[-1] == "alive"


def test_a_manager_without_a_watchdog_hears_the_status_only():
    notifier = Recorder(watchdog_s=None)
    Watchdog(notifier, [], lambda: "2 ready").check()
    assert notifier.said == ["2 ready"]


def test_a_loop_that_is_blocked_sends_nothing(tmp_path):
    """The keep-alive comes from the loop, and from no thread beside it."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(HANG_S)
    notifier = Notifier(str(tmp_path / "notify"), 0.03)
    blocked, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    async def main():
        running = asyncio.create_task(Watchdog(notifier, [], lambda: "serving").run())
        while not ended.is_set():
            await asyncio.sleep(0.005)
            if blocked.is_set():
                blocked.clear()
                go_on.wait()  # the fault: the loop waits for a thread
        running.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        while manager.recv(100) != b"WATCHDOG=1":
            pass
        blocked.set()
        while blocked.is_set():  # until the loop is inside the fault
            pass
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # what came before the fault
            while manager.recv(100):
                pass
        manager.settimeout(0.3)  # ten times the watchdog
        with pytest.raises(TimeoutError):
            manager.recv(100)
        go_on.set()
        manager.settimeout(HANG_S)
        assert manager.recv(100) == b"WATCHDOG=1"
    finally:
        go_on.set()
        ended.set()
        thread.join()
        notifier.close()
        manager.close()


def test_the_status_line_counts_adopted_phones():
    views = [
        DeviceView("a", "1", Life.READY, adopted=True),
        DeviceView("b", "2", Life.READY, adopted=True),
        DeviceView("c", "3", Life.QUARANTINED, adopted=True),
        DeviceView("d", "4", Life.NEW),
    ]
    line = status_line(views, leased=1, sessions=1, waiting=4)
    assert line == "phones: 1 quarantined, 2 ready; 1 leased, 1 sessions, 4 requests waiting"
    assert status_line([], leased=0, sessions=0, waiting=0).startswith("phones: none adopted;")
