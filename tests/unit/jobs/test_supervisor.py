"""What an attempt hears of its toolchain before it has a worker."""

import asyncio
import errno
import math
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest

from farm.common.durations import BackOff
from farm.common.errors import Code, HostError, PhoneError
from farm.jobs import supervisor as module
from farm.jobs.attempt import SILENCE_LIMIT_S, HeartbeatWatch, LiveAttempt, Task
from farm.jobs.checker import FarmChecker
from farm.jobs.messages import Ready, encode
from farm.jobs.supervisor import Supervisor
from farm.jobs.zygote import ToolchainError, Zygote
from farm.model.toolchain import Toolchain
from tests.support.errors import raises_code
from tests.support.waiting import until

NO_DESCRIPTOR = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture
def supervisor(tmp_path):
    for folder in ("attempts", "cache"):
        (tmp_path / folder).mkdir()
    return Supervisor((Toolchain("default", Path(sys.executable)),), tmp_path, listener=None)


def task(timeout_s=600.0):
    return Task("bench-1.1", 7, "farm.kinds.bench.worker", {}, timeout_s)


async def test_waiting_for_a_cold_toolchain_is_a_step_of_its_own(supervisor):
    told = []  # the supervisor is never started
    host = SimpleNamespace(progressed=lambda step, fields: told.append((step, fields)))
    attempt = asyncio.create_task(supervisor.run("default", task(0.0), host))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not attempt.done()  # its time has not begun
    assert told == [("waiting for toolchain default", {})]
    attempt.cancel()
    await asyncio.gather(attempt, return_exceptions=True)


async def test_a_host_without_descriptors_is_the_hosts_fault_and_no_bug_of_farms(supervisor, monkeypatch):
    monkeypatch.setattr(module, "WorkerOutput", Mock(side_effect=NO_DESCRIPTOR))
    supervisor._slots["default"].zygote = SimpleNamespace(ended=asyncio.Event())
    with pytest.raises(HostError, match="this host cannot start a worker: Too many open files") as raised:
        await supervisor.run("default", task(), SimpleNamespace())
    assert "ulimit -n" in raised.value.hint


def test_folders_that_a_person_removed_are_made_again(supervisor, tmp_path):
    """Every phone was recovering, for the host could start no worker, until the daemon was restarted."""
    shutil.rmtree(tmp_path)
    folder, _ = supervisor._attempt_folder(task())
    assert folder.is_dir()


async def test_a_standstill_of_the_daemon_is_no_silence_of_a_worker(monkeypatch):
    loop = asyncio.get_running_loop()
    clock, now = loop.time, loop.time()
    attempt = LiveAttempt(task(), None, HeartbeatWatch(now, now, greeted=True))
    zygote = SimpleNamespace(exited=lambda _: asyncio.Event().wait())
    outcome = asyncio.create_task(Supervisor._outcome(None, attempt, zygote, SimpleNamespace(tail="")))
    await asyncio.sleep(0)
    monkeypatch.setattr(loop, "time", lambda: clock() + SILENCE_LIMIT_S + 1)
    await asyncio.wait((outcome,), timeout=0)
    await asyncio.wait((outcome,), timeout=0)
    attempt.result.set_result({"value": 1})
    assert await outcome == {"value": 1}


async def test_a_fifo_in_the_logs_place_does_not_hold_a_start(tmp_path):
    log = tmp_path / "zygote-default.log"
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)  # or this test would wait itself
    try:
        with pytest.raises(ToolchainError, match="cannot run /absent"):
            await Zygote.start(Toolchain("default", Path("/absent")), tmp_path)
    finally:
        os.close(reader)
    assert log.is_file()


async def test_no_mistake_ends_who_keeps_a_toolchain_up(supervisor, monkeypatch):
    """The toolchain was waited for without an end, and nothing told why."""
    begun, wrong = [], [ValueError("at its start"), OSError("at its end")]

    async def start(*_):
        if len(wrong) == 2:
            raise wrong.pop(0)
        begun.append(SimpleNamespace(ended=asyncio.Event(), stop=stop))
        return begun[-1]

    async def stop():
        if wrong:
            raise wrong.pop(0)

    monkeypatch.setattr(Zygote, "start", start)
    monkeypatch.setattr(module, "RESTART", BackOff(0.0, 0.0))
    await supervisor.start()
    try:
        await until(lambda: begun)
        begun[0].ended.set()
        await until(lambda: len(begun) == 2 and supervisor.standing() == {"default": (True, 0)})
        assert not supervisor.problems()
    finally:
        await supervisor.stop()


async def test_what_cannot_be_removed_at_a_start_is_a_line_and_the_start_goes_on(tmp_path, monkeypatch, caplog):
    cache, attempts = tmp_path / "cache", tmp_path / "attempts"
    attempts.mkdir()
    (cache / "mount").mkdir(parents=True)
    (cache / "loop").symlink_to(cache / "loop")
    (attempts / "a file").touch()
    (attempts / "loop").symlink_to(attempts / "loop")
    rmtree = shutil.rmtree

    def busy(path, *, ignore_errors=False):
        if path == cache / "mount":
            if not ignore_errors:
                raise OSError(errno.EBUSY, "Device or resource busy")
        else:
            rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", busy)
    monkeypatch.setattr(os, "geteuid", lambda: 1_234)  # all of it is another user's
    supervisor = Supervisor((), tmp_path, listener=None)
    await supervisor.start()
    await supervisor.stop()
    line = f"{cache / 'mount'} is of no use and stays: Device or resource busy; remove it by hand"
    assert [record.message for record in caplog.records] == [line]
    assert [path.name for path in cache.iterdir()] == ["mount"]
    assert not list(attempts.iterdir())


def ready_at_once(folder):
    """An interpreter that says it is ready, imports nothing and ends with its supervisor."""
    python = folder / "python"
    link = f"link = socket.socket(fileno=int(sys.argv[4]))\nlink.send({encode(Ready(1))!r})\nlink.recv(1)\n"
    python.write_text(f"#!{sys.executable} -IS\nimport socket, sys\n{link}")
    python.chmod(0o755)
    return python


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_in_the_moment_a_zygote_is_ready_ends_it(tmp_path, monkeypatch, turns):
    """asyncio.wait_for of Python 3.11 loses such a cancellation: a daemon that stopped then never ended."""
    supervisor = Supervisor((Toolchain("default", ready_at_once(tmp_path)),), tmp_path, listener=None)
    received, stops = Zygote._received, []

    async def stop():
        for _ in range(turns):
            await asyncio.sleep(0)
        await supervisor.stop()

    def stop_as_well(zygote, packet):
        received(zygote, packet)
        stops.append(asyncio.create_task(stop()))

    monkeypatch.setattr(Zygote, "_received", stop_as_well)
    await supervisor.start()
    await until(lambda: stops and stops[0].done())


@pytest.mark.parametrize(("error", "traceback"), [(NO_DESCRIPTOR, False), (LookupError("ours"), True)])
async def test_a_host_that_starts_no_zygote_is_one_line_for_all_tries_and_a_mistake_is_told_with_its_place(
    supervisor, monkeypatch, caplog, error, traceback
):
    start = AsyncMock(side_effect=error)
    monkeypatch.setattr(Zygote, "start", start)
    await supervisor.start()
    await until(lambda: start.call_count > 1 and caplog.records)
    await supervisor.stop()
    assert len(caplog.records) == 1 or traceback
    assert caplog.records[0].message.startswith("cannot keep a zygote of toolchain default")
    assert str(error) in caplog.text
    assert bool(caplog.records[0].exc_info) is traceback


@pytest.mark.parametrize(("gone_at", "code"), [(-math.inf, Code.SESSION_FAILED), (math.inf, Code.GATE_GONE)])
async def test_a_check_that_lost_the_gate_is_not_the_phones_fault(gone_at, code):
    broken = SimpleNamespace(run=AsyncMock(side_effect=PhoneError("connection refused", Code.SESSION_FAILED)))
    bundle = SimpleNamespace(golden_dir=Path("golden"), golden_kinds=(), toolchain="default")
    checker = FarmChecker(broken, key=str, gate=lambda: ("127.0.0.1", 9190), gate_gone_at=lambda: gone_at)
    with raises_code(code):
        await checker.check("p1", bundle)


@pytest.mark.parametrize(("folder", "code"), [("/sys", Code.HOST_IMPAIRED), ("", "host")])  # /sys has no room
async def test_a_worker_that_blames_the_host_is_believed_where_the_host_finds_the_same(tmp_path, folder, code):
    report = asyncio.get_running_loop().create_future()
    report.set_exception(HostError("the gate is gone", Code.GATE_GONE))
    with raises_code(code):
        await module._believed(report, Path(folder or tmp_path))
