"""One `farm serve` without its parts: how it ends, and what a SIGHUP does meanwhile."""

import asyncio
import errno
import os
import signal
import socket
from contextlib import ExitStack
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock, patch

import pytest
import zmq

from farm.adb.errors import AdbServerUnreachable
from farm.common import tasks
from farm.common.durations import BackOff
from farm.common.errors import FarmError, HostError, ProtocolError
from farm.config import FarmConfig
from farm.daemon import daemon as daemon_module
from farm.daemon.daemon import Daemon
from farm.daemon.scheduling import _open_ports
from farm.store.mailbox import HostRemovedError
from farm.store.writer import DatabaseLostError, StoreWriteError
from tests.support.waiting import HANG_S, until

OUTSIDE = (
    StoreWriteError("the database is away"),
    HostError("the database has not answered for 5 s"),
    TimeoutError(),
    AdbServerUnreachable("adb"),
    ProtocolError("adb"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "adb"),
    OSError(errno.ENOSPC, "the disk is full"),
    ConnectionRefusedError(errno.ECONNREFUSED, "the gate, the link, the object store"),
)
LASTING = (
    "history", "letters of the head", "tunnels", "clock", "artifacts", "stopped results", "watchdog", "loop delay",
    "memory", "page",
)  # fmt: skip
ENDS = {
    "term of the database": DatabaseLostError("another head has taken over"),
    "changes of the database": DatabaseLostError("it has gone back in time"),
    "membership of the lab": HostRemovedError("removed"),
    "fleet": KeyError("a bug"),
    "control socket": OSError("a listener has failed"),
    "workers' socket": OSError("a listener has failed"),
    "web": OSError("a listener has failed"),
}


@pytest.fixture
def daemon(monkeypatch):
    monkeypatch.setattr(daemon_module, "raise_descriptor_limit", lambda: None)
    monkeypatch.setattr("gc.freeze", lambda: None)
    return Daemon(FarmConfig(), lambda _: FarmConfig())


async def test_a_part_that_ends_by_itself_is_a_failure(daemon):
    """The service manager starts again what failed, and nothing else."""

    async def build(*_):
        return [asyncio.create_task(asyncio.sleep(0), name="history")]

    daemon._build = build
    with pytest.raises(FarmError, match="history ended by itself"):
        await asyncio.wait_for(daemon.run(), HANG_S)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), zmq.ZMQError(errno.EMFILE)])
async def test_a_start_without_descriptors_is_one_line(daemon, error):
    daemon._build = AsyncMock(side_effect=error)
    with pytest.raises(HostError, match=r"^cannot start: the host: Too many open files$"):
        await daemon.run()


async def test_a_hangup_kills_it_neither_at_its_beginning_nor_at_its_end(daemon):
    heard = []

    def reload():
        heard.append("reload")
        os.kill(os.getpid(), signal.SIGTERM)

    async def hang_up():
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(3):  # the loop's own handler runs in one of its next turns
            await asyncio.sleep(0)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            heard.append("killed")

    async def build(stack, _):
        await hang_up()
        stack.push_async_callback(hang_up)
        daemon._reload = reload
        serving = asyncio.create_task(asyncio.sleep(HANG_S), name="serving")
        stack.callback(serving.cancel)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGHUP)
        return [serving]

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a handler that is missing this test hears; it is not ended by it
    daemon._build = build
    try:
        await asyncio.wait_for(daemon.run(), HANG_S)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert heard == ["reload"]


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_ports_that_the_daemon_listens_at_are_its_own(family, address):
    with socket.create_server((address, 0), family=family) as listener:
        assert listener.getsockname()[1] in set(_open_ports())


class Outside:
    """A daemon without its parts: each task fails with the error that `errors` has for it, as soon as there is one."""

    def __init__(self):
        self.errors = {}
        self.begun = []

    def task(self, name):
        async def run(*_):
            self.begun.append(name)
            await until(lambda: name in self.errors)
            raise self.errors[name]

        return run

    def tasks(self, *names):
        return lambda: {name: self.task(name) for name in names}

    def listener(self, name, stack):
        listening = asyncio.create_task(self.task(name)(), name=name)
        stack.callback(listening.cancel)
        return [listening]

    def begin(self, stack):
        """Put its parts into the place of the daemon's."""
        store = MagicMock(use=None, tasks=self.tasks("history"))
        store.ending_tasks = self.tasks("term of the database", "changes of the database")
        fleet = MagicMock(run=self.task("fleet"))
        work = MagicMock(artifacts=SimpleNamespace(keep_tidy=self.task("artifacts")))
        work.server.tasks = self.listener("workers' socket", stack)
        phones = MagicMock(fleet=fleet, tunnels=SimpleNamespace(tasks=self.tasks("tunnels")))
        leases = MagicMock(tasks=self.tasks("letters of the head"), ending_tasks=self.tasks("membership of the lab"))
        control = SimpleNamespace(tasks=self.listener("control socket", stack))
        web = MagicMock(tasks=self.listener("web", stack), retry=self.task("page"))
        for name, part in {
            "check_gate_apart": AsyncMock(),
            "open_gate": MagicMock(), "check_paths": MagicMock(), "StateFolderLock": MagicMock(),
            "open_persistence": AsyncMock(return_value=store), "start_workers": AsyncMock(return_value=work),
            "open_phones": AsyncMock(return_value=phones), "open_scheduling": AsyncMock(return_value=leases),
            "open_control_channel": AsyncMock(return_value=control), "WebPage": MagicMock(return_value=web),
            "progress_checks": MagicMock(), "metrics_page": MagicMock(), "return_memory": self.task("memory"),
            "measure_loop_delay": self.task("loop delay"), "Watchdog": lambda *_: MagicMock(run=self.task("watchdog")),
            "ClockWatch": lambda *_: MagicMock(run=self.task("clock")),
            "StoppedResults": lambda *_: MagicMock(run=self.task("stopped results")),
        }.items():  # fmt: skip
            stack.enter_context(patch.object(daemon_module, name, part))


@pytest.fixture
def outside(numbers):
    numbers(tasks, BEGIN_AGAIN=BackOff(0.001, 0.001))
    return Outside()


@pytest.mark.parametrize("name", LASTING)
async def test_nothing_outside_ends_the_daemon(daemon, outside, name):
    with ExitStack() as stack:
        outside.begin(stack)
        running = asyncio.create_task(daemon.run())
        await until(lambda: {*LASTING, *ENDS} <= {*outside.begun})
        for error in OUTSIDE:  # each for as long as it likes
            outside.errors[name] = error
            outside.begun.clear()
            await until(lambda: outside.begun.count(name) > 2 or running.done())
        del outside.errors[name]
        outside.begun.clear()
        await until(lambda: name in outside.begun or running.done())
        assert not running.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, HANG_S)


@pytest.mark.parametrize("name", ENDS)
async def test_what_ends_the_daemon_is_a_list(daemon, outside, name):
    outside.errors[name] = ENDS[name]
    with ExitStack() as stack:
        outside.begin(stack)
        with pytest.raises(type(ENDS[name])):
            await asyncio.wait_for(daemon.run(), HANG_S)
