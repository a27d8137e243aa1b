"""A real zygote, real forks, workers that misbehave: each ends with a result or a typed error, and leaves nothing."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from farm.control.artifacts import ArtifactFolder
from farm.control.client import ControlClient
from farm.control.worker_door import WorkerDoor
from farm.core.errors import FarmError, ModelError, NotAllowedError, ProtocolError, UserError
from farm.jobs import attempt as attempt_module
from farm.jobs import supervisor as supervisor_module
from farm.jobs.attempt import (
    MAX_REPORT_BYTES,
    Attempt,
    AttemptTimeoutError,
    ResultTooLargeError,
    SessionOffer,
    StaleAttemptError,
    Task,
    Watch,
    WorkerDiedError,
    WorkerSilentError,
)
from farm.jobs.executor import YieldedError
from farm.jobs.supervisor import Supervisor, _ready
from farm.jobs.worker_user import Workers, WorkerUser, blocking_folder, find_worker_user, workers_as
from farm.jobs.zygote import Toolchain, ToolchainError, ZygoteDiedError
from farm.worker import zygote as worker_zygote

DEFAULT = (Toolchain("default", Path(sys.executable)),)
NOBODY = 65534  # uid and gid
TASK = "tests.integration.misbehaving"


class Host:
    """Hears what a worker says."""

    def __init__(self, *, others_wait=False):
        self.heard = asyncio.Queue()
        self.lines = []
        self.others_wait = others_wait

    async def open_session(self):
        return SessionOffer("127.0.0.1", 1, "key")

    async def abort_session(self, reason):
        self.heard.put_nowait(("abort", {"reason": reason}))

    def progressed(self, step, fields):
        self.heard.put_nowait((step, fields))

    def logged(self, text, level):
        self.lines += [(line, level) for line in text.split("\n")]

    def yield_wanted(self):
        return self.others_wait


class Lab:
    def __init__(self, folder: Path, toolchains):
        self.door = WorkerDoor(folder / "workers.sock", ArtifactFolder(folder / "artifacts"))
        self.supervisor = Supervisor(toolchains, folder / "work", self.door)
        self.folder = folder
        self.count = 0

    async def run(self, do, host=None, *, timeout_s=30.0, toolchain="default", **payload):
        self.count += 1
        task = Task(f"try-{self.count}", self.count, TASK, {"do": do, **payload}, timeout_s)
        return await self.supervisor.run(toolchain, task, host or Host())

    async def zygote(self):
        return await _ready(self.supervisor._slot("default"))


@contextlib.asynccontextmanager
async def lab_in(folder, toolchains=DEFAULT):
    lab = Lab(folder, toolchains)
    await lab.door.start()
    await lab.supervisor.start()
    try:
        yield lab
    finally:
        await lab.supervisor.stop()
        await lab.door.stop()
        assert psutil.Process().children(recursive=True) == []


@pytest.fixture
async def lab(tmp_path):
    async with lab_in(tmp_path) as lab:
        yield lab


@pytest.fixture
def passable(tmp_path):
    """A folder that anybody may pass on the way to; pytest closes its own to others."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)


async def gone(pid, within_s=5.0):
    """Wait for the end of a process that is not our child."""
    try:
        process = psutil.Process(pid)
        await asyncio.to_thread(process.wait, within_s)
    except psutil.NoSuchProcess:
        return


async def test_a_child_has_a_session_limits_and_a_folder_of_its_own(lab):
    host = Host()
    before = time.monotonic()
    zygote = await lab.zygote()
    ready_after = time.monotonic() - before
    before = time.monotonic()
    answer = await lab.run("answer", host)
    print(f"zygote ready after {ready_after:.2f} s, spawn to result {1000 * (time.monotonic() - before):.1f} ms")
    assert answer["pid"] == answer["pgid"] == answer["sid"] != zygote.pid
    assert answer["tvm"]
    assert answer["limits"]["CORE"] == 0
    assert answer["limits"]["NOFILE"] == worker_zygote.MAX_OPEN_FILES
    assert answer["limits"]["FSIZE"] == worker_zygote.MAX_FILE_BYTES
    assert answer["limits"]["DATA"] == supervisor_module.DATA_LIMIT_BYTES
    assert 30 < answer["limits"]["CPU"] < 24 * 3600
    assert answer["oom"] == worker_zygote.OOM_SCORE_ADJ
    assert answer["temporary"] == answer["cwd"]
    assert Path(answer["cwd"]).parent == lab.folder / "work" / "attempts"
    assert list((lab.folder / "work" / "attempts").iterdir()) == []
    assert await host.heard.get() == ("answering", {"number": 1})
    assert zygote.ready.threads == 1
    assert zygote.versions["apache-tvm"]


async def test_the_daemons_environment_is_not_handed_down(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")
    async with lab_in(tmp_path) as lab:
        answer = await lab.run("answer")
    assert "SECRET_OF_THE_DAEMON" not in answer["environment"]


async def test_many_attempts_at_once(lab):
    answers = await asyncio.gather(*(lab.run("answer") for _ in range(20)))
    assert len({answer["pid"] for answer in answers}) == 20


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("segfault", "killed by SIGSEGV without a result; it was at: about to crash"),
        ("leave", "exited with code 7"),
        ("kill_itself", "killed by SIGKILL"),
    ],
)
async def test_a_worker_that_dies_is_reported(lab, do, said):
    with pytest.raises(WorkerDiedError, match=said):
        await lab.run(do)
    assert (await lab.run("answer"))["tvm"]


async def test_a_workers_errors_arrive_with_their_class(lab):
    with pytest.raises(ModelError, match="no good") as caught:
        await lab.run("raise_model_error")
    assert caught.value.hint == "another one"
    with pytest.raises(FarmError, match="ZeroDivisionError: oops") as caught:
        await lab.run("raise_bug")
    assert "misbehaving.py" in caught.value.evidence


async def test_a_worker_past_its_time_is_killed_with_its_group_though_it_ignores_sigterm(lab):
    host = Host()
    with pytest.raises(AttemptTimeoutError, match=r"no result after 1\.5 s; it was at: stuck"):
        await lab.run("ignore_sigterm", host, timeout_s=1.5)
    step, facts = await host.heard.get()
    assert step == "stuck"
    await gone(facts["pid"])
    await gone(facts["grandchild"])


async def test_a_cancelled_attempt_leaves_nothing(lab):
    host = Host()
    running = asyncio.create_task(lab.run("ignore_sigterm", host))
    _, facts = await host.heard.get()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone(facts["pid"])
    await gone(facts["grandchild"])


async def test_a_silent_worker_is_killed(lab, monkeypatch):
    monkeypatch.setattr(attempt_module, "SILENCE_LIMIT_S", 2.0)
    host = Host()
    with pytest.raises(WorkerSilentError, match="said nothing for 2 s; it was at: stopping"):
        await lab.run("stop_itself", host)
    await gone((await host.heard.get())[1]["pid"])


async def test_what_a_worker_leaves_behind_is_killed(lab):
    await gone((await lab.run("leave_a_process"))["orphan"])


async def test_only_the_first_result_counts(lab):
    assert await lab.run("too_many_results") == {"first": True}


async def test_workers_keep_and_fetch_artifacts(lab):
    assert (await lab.run("artifacts"))["same"]


async def test_a_worker_cannot_eat_the_host(lab, monkeypatch):
    monkeypatch.setattr(supervisor_module, "DATA_LIMIT_BYTES", 3 << 30)
    with pytest.raises(FarmError, match="MemoryError"):
        await lab.run("eat_memory", bytes=64 << 20)
    with pytest.raises(FarmError, match="File too large"):
        await lab.run("fill_the_disk", bytes=worker_zygote.MAX_FILE_BYTES + 1)
    with pytest.raises(FarmError, match="Too many open files"):
        await lab.run("open_files")


async def test_what_detaches_itself_is_killed_too(lab):
    for stray in (await lab.run("detach"))["strays"]:
        await gone(stray)


async def test_what_a_worker_says_is_kept_in_order_with_its_level(lab):
    host = Host()
    await lab.run("say_things", host)
    assert await host.heard.get() == ("talking", {"loudly": True})
    said = [line for line, _ in host.lines]
    assert ("careful", "warning") in host.lines
    assert [line for line in said if line != "careful"] == ["to stdout", "to stderr", "no end of line"]


async def test_a_crash_leaves_its_trace_in_the_log(lab):
    host = Host()
    with pytest.raises(WorkerDiedError) as caught:
        await lab.run("segfault", host)
    assert any("misbehaving.py" in line for line, _ in host.lines)
    assert 'File "' in caught.value.evidence


async def test_a_worker_that_writes_without_end_comes_to_its_end_and_only_the_beginning_is_kept(lab):
    host = Host()
    assert await lab.run("write_without_end", host, lines=60_000) == {"written": 60_000}
    kept = sum(len(line) for line, _ in host.lines)
    assert 4_000_000 < kept < 4_400_000
    assert host.lines[-1][0] == "(more than 4 MiB: the rest is not kept)"


async def test_a_result_that_is_too_large_fails_the_attempt_not_the_worker(lab):
    assert len((await lab.run("a_result_of", bytes=MAX_REPORT_BYTES - 100))["x"]) == MAX_REPORT_BYTES - 100
    for size in (MAX_REPORT_BYTES + 1, 8 << 20):
        with pytest.raises(ResultTooLargeError, match="at most") as caught:
            await lab.run("a_result_of", bytes=size)
        assert caught.value.fault == "user"
    with pytest.raises(FarmError, match="no JSON"):
        await lab.run("no_json")


async def test_a_result_that_is_pushed_past_the_worker_is_measured_again(lab):
    with pytest.raises(ResultTooLargeError):
        await lab.run("push_a_result_of", bytes=MAX_REPORT_BYTES + 1)


async def test_an_order_that_cannot_be_sent_leaves_nothing_to_wait_for(lab, caplog):
    with pytest.raises(ProtocolError, match="at most"):
        await lab.run("answer", much="y" * 200_000)
    assert "survives" not in caplog.text
    assert (await lab.run("answer"))["tvm"]


async def test_an_attempt_may_give_its_phone_to_others(lab):
    assert await lab.run("yield_if_wanted") == {"kept": True}
    with pytest.raises(YieldedError):
        await lab.run("yield_if_wanted", Host(others_wait=True))


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"verb": "job.submit"}, "protocol"),
        ({"verb": "status"}, "protocol"),
        ({"verb": "hello", "as": {"attempt": "try-0"}}, "stale"),
        ({"verb": "session.open", "as": {"attempt": "other"}}, "stale"),
        ({"verb": "session.open", "as": {"attempt": "other", "fence": 7}}, "not_allowed"),
        ({"verb": "result", "fields": {"value": {}}, "as": {"fence": 0}}, "stale"),
        ({"verb": "session.open", "as": {"token": "x" * 32}}, "not_allowed"),
        ({"verb": "log", "fields": {"text": "x", "level": "loud"}}, "protocol"),
        ({"verb": "log", "fields": {"text": "x" * 5000, "level": "info"}}, "protocol"),
        ({"verb": "progress", "fields": {"step": 7}}, "protocol"),
        ({"verb": "result", "fields": {}}, "protocol"),
        ({"verb": "artifact.get", "fields": {"sha256": "../../farm.db", "offset": 0}}, "bad_artifact"),
        ({"verb": "artifact.get", "fields": {"sha256": "/etc/shadow", "offset": 0}}, "bad_artifact"),
        ({"verb": "artifact.get", "fields": {"sha256": "partial", "offset": 0}}, "bad_artifact"),
        ({"verb": "artifact.get", "fields": {"sha256": "a" * 64, "offset": 0}}, "no_artifact"),
        (
            {
                "verb": "artifact.put", "frame": "x",
                "fields": {"sha256": "../" + "a" * 61, "offset": 0, "total_bytes": 1},
            },
            "bad_artifact",
        ),
        (
            {"verb": "artifact.put", "frame": "x", "fields": {"sha256": "a" * 64, "offset": 0, "total_bytes": 1}},
            "bad_artifact",
        ),
        (
            {"verb": "artifact.put", "frame": "x", "fields": {"sha256": "a" * 64, "offset": -5, "total_bytes": 9}},
            "bad_request",
        ),
    ],
)  # fmt: skip
async def test_a_token_allows_its_own_attempt_and_nothing_else(lab, asked, code):
    lab.door.admit("other", 7, Attempt(Task("other", 7, TASK, {}, 1), Host(), Watch(0, 0)))
    answer = await lab.run("ask", **asked)
    assert answer["error"] == code, answer


async def test_a_dead_zygote_is_noticed_named_and_replaced(lab):
    zygote = await lab.zygote()
    host = Host()
    running = asyncio.create_task(lab.run("ignore_sigterm", host))
    _, facts = await host.heard.get()
    os.kill(zygote.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(ZygoteDiedError):
        await running
    print(f"a killed zygote is reported after {1000 * (time.monotonic() - killed):.0f} ms")
    await gone(facts["pid"])
    await gone(facts["grandchild"])
    assert (await lab.run("answer"))["tvm"]
    assert (await lab.zygote()).pid != zygote.pid


async def test_everything_dies_with_the_daemon(tmp_path):
    """The daemon is a process of its own here, and is killed without a chance to clean up."""
    program = Path(__file__).with_name("daemon_for_test_workers.py")
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, str(program), str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        line = await asyncio.wait_for(daemon.stdout.readline(), 60)
    finally:
        daemon.kill()
        await daemon.wait()
    zygote, worker = map(int, line.split())
    await gone(zygote)
    await gone(worker)


async def test_a_toolchain_that_cannot_be_used_says_why(tmp_path):
    without_tvm = tmp_path / "python-without-tvm"
    without_tvm.write_text("#!/bin/sh\necho 'No module named tvm' >&2\nexit 1\n")
    without_tvm.chmod(0o755)
    toolchains = (
        Toolchain("missing", tmp_path / "no-python"),
        Toolchain("bare", without_tvm),
        *(Toolchain(f"instant-{i}", Path("/bin/true")) for i in range(8)),  # gone before anybody looks
    )
    async with lab_in(tmp_path, toolchains) as lab:
        with pytest.raises(ToolchainError, match="cannot run") as caught:
            await lab.run("answer", toolchain="missing")
        assert "farm[tvm]" in caught.value.hint
        with pytest.raises(ToolchainError, match="did not become a worker host") as caught:
            await lab.run("answer", toolchain="bare")
        assert "No module named tvm" in caught.value.evidence
        for i in range(8):
            with pytest.raises(ToolchainError, match="did not become a worker host"):
                await lab.run("answer", toolchain=f"instant-{i}")
        with pytest.raises(UserError, match="no toolchain 'other'"):
            await lab.run("answer", toolchain="other")


async def test_the_workers_door_admits_only_the_right_token(lab):
    class Verbs:
        async def handle(self, verb, fields):
            return {"verb": verb}

    token = lab.door.admit("mine", 5, Verbs())

    def ask(attempt, fence, shown):
        with ControlClient(Path(lab.door.socket_path), token=shown, attempt=attempt, fence=fence) as client:
            return client.call("hello")

    assert await asyncio.to_thread(ask, "mine", 5, token) == {"verb": "hello"}
    for attempt, fence in (("mine", 4), ("mine", 6), ("yours", 5)):
        with pytest.raises(StaleAttemptError):
            await asyncio.to_thread(ask, attempt, fence, token)
    with pytest.raises(NotAllowedError):
        await asyncio.to_thread(ask, "mine", 5, "x" + token[1:])
    lab.door.dismiss("mine")
    with pytest.raises(StaleAttemptError):
        await asyncio.to_thread(ask, "mine", 5, token)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_workers_of_a_root_daemon_are_another_user(tmp_path, passable):
    state = tmp_path / "state"
    (state / "artifacts").mkdir(parents=True)
    state.chmod(0o750)
    secrets = [state / "farm.db", state / "farm.db-wal", state / "artifacts" / "x"]
    for path in secrets:
        path.write_text("secret")
    access = workers_as("nobody", state, [Path(sys.executable)])
    assert access.user == WorkerUser("nobody", NOBODY, NOBODY), access
    door = WorkerDoor(state / "work" / "workers.sock", ArtifactFolder(state / "artifacts"), gid=NOBODY)
    supervisor = Supervisor(DEFAULT, state / "work", door, user=access.user)
    stale = state / "work" / "cache" / "default"
    stale.mkdir(parents=True)
    (stale / "locked.lock").touch()
    await door.start()
    await supervisor.start()
    try:
        answer = await supervisor.run("default", Task("a", 1, TASK, {"do": "answer"}, 30), Host())
        reads = {"do": "read_all", "paths": [str(path) for path in (state, *secrets, door.socket_path)]}
        readable = await supervisor.run("default", Task("b", 2, TASK, reads, 30), Host())
        strays = await supervisor.run("default", Task("c", 3, TASK, {"do": "detach"}, 30), Host())
        assert supervisor.cache_folder("default").stat().st_uid == NOBODY
        assert list(stale.iterdir()) == []  # what root's workers had compiled is of no use to nobody's
    finally:
        await supervisor.stop()
        await door.stop()
    assert (answer["uid"], answer["gid"], answer["groups"]) == (NOBODY, NOBODY, [])
    assert answer["limits"]["NPROC"] == worker_zygote.MAX_PROCESSES
    assert readable["open"] == [door.socket_path]
    for pid in strays["strays"]:
        await gone(pid)


def test_whom_workers_can_become(tmp_path, passable):
    assert find_worker_user("no-such-user-here") is None
    assert find_worker_user("root") is None
    assert find_worker_user("") is None
    assert workers_as("no-such-user-here", tmp_path, []) == Workers(None)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    stranger = WorkerUser("stranger", 54321, 54321)
    assert blocking_folder(stranger, [tmp_path / "python", closed / "python"]) == closed
    assert blocking_folder(WorkerUser("me", os.getuid(), os.getgid()), [closed / "python"]) is None
