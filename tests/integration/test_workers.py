"""A real zygote, real forks, workers that misbehave: each ends with a result or a typed error, and leaves nothing."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from farm.common.errors import Code, FarmError, ModelError, ProtocolError, UserError
from farm.common.install import pip_install
from farm.control.artifacts import ArtifactFolder
from farm.control.server import WorkerServer
from farm.jobs import attempt as attempt_module
from farm.jobs import supervisor as supervisor_module
from farm.jobs.attempt import (
    MAX_REPORT_BYTES,
    AttemptTimeoutError,
    SessionOffer,
    Task,
    YieldedError,
)
from farm.jobs.supervisor import Supervisor, _ready
from farm.jobs.zygote import ToolchainError, ZygoteDiedError
from farm.model.toolchain import Toolchain
from farm.worker import zygote as worker_zygote
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEFAULT = (Toolchain("default", Path(sys.executable)),)
TASK = "tests.integration.misbehaving"


class Host:
    """Hears what a worker says."""

    def __init__(self, *, others_wait=False):
        self.heard = asyncio.Queue()
        self.lines = []
        self.others_wait = others_wait

    async def open_session(self, lease):
        return SessionOffer("127.0.0.1", 1, "key")

    async def abort_session(self, lease, reason):
        self.heard.put_nowait(("abort", {"reason": reason}))

    def progressed(self, step, fields):
        if not step.startswith("waiting for toolchain"):  # as long as that takes, which is no matter here
            self.heard.put_nowait((step, fields))

    def logged(self, text, level):
        self.lines += [(line, level) for line in text.split("\n")]

    def yield_wanted(self):
        return self.others_wait


class Lab:
    def __init__(self, folder, toolchains, **options):
        self.door = WorkerServer(folder / "workers.sock", ArtifactFolder(folder / "artifacts"))
        self.supervisor = Supervisor(toolchains, folder / "work", self.door, **options)
        self.folder = folder
        self.count = 0

    async def run(self, do, host=None, *, timeout_s=HANG_S, toolchain="default", **payload):
        self.count += 1
        task = Task(f"try-{self.count}", self.count, TASK, {"do": do, **payload}, timeout_s)
        return await self.supervisor.run(toolchain, task, host or Host())

    async def zygote(self):
        return await _ready(self.supervisor._slot("default"), Host(), 90.0)


def without_tvm(folder, first=""):
    """A toolchain whose zygote imports nothing that only jobs need, which take 2 s; `first` are shell commands."""
    python = folder / "python-for-a-zygote"
    code = "import sys; from farm.worker import zygote; zygote.PRELOADED = (); sys.exit(zygote.main(sys.argv[4:]))"
    python.write_text(f"#!/bin/sh\n{first}\nexec {sys.executable} -P -c '{code}' \"$@\"\n")
    python.chmod(0o755)
    return (Toolchain("default", python),)


@contextlib.asynccontextmanager
async def lab_in(folder, toolchains=DEFAULT, **options):
    known = psutil.Process().children(recursive=True)  # of another one
    lab = Lab(folder, toolchains, **options)
    await lab.door.start()
    await lab.supervisor.start()
    try:
        yield lab
    finally:
        await lab.supervisor.stop()
        await lab.door.stop()
        assert [child for child in psutil.Process().children(recursive=True) if child not in known] == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory):
    """A zygote imports TVM: those who leave it as it was share one."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SECRET_OF_THE_DAEMON", "x")
        async with lab_in(tmp_path_factory.mktemp("lab")) as lab:
            yield lab


async def gone(pid):
    """Wait for the end of a process that is not our child."""
    try:
        process = psutil.Process(pid)
        await asyncio.to_thread(process.wait, HANG_S)
    except psutil.NoSuchProcess:
        return


async def test_a_child_has_a_session_limits_and_a_folder_of_its_own(lab):
    host = Host()
    zygote = await lab.zygote()
    answer = await lab.run("answer", host)
    assert answer["pid"] == answer["pgid"] == answer["sid"] != zygote.pid
    assert answer["tvm"]
    assert "SECRET_OF_THE_DAEMON" not in answer["environment"]
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


@pytest.mark.parametrize(
    ("do", "said"),
    [
        ("segfault", "killed by SIGSEGV without a result; it was at: about to crash"),
        ("leave", "exited with code 7"),
        ("kill_itself", "killed by SIGKILL"),
    ],
)
async def test_a_worker_that_dies_is_reported(lab, do, said):
    host = Host()
    with raises_code(Code.WORKER_DIED, match=said) as caught:
        await lab.run(do, host)
    assert (await lab.run("answer"))["tvm"]
    if do == "segfault":  # it leaves its trace
        assert any("misbehaving.py" in line for line, _ in host.lines)
        assert 'File "' in caught.value.evidence


async def test_a_workers_errors_arrive_with_their_class(lab):
    with pytest.raises(ModelError, match="no good") as caught:
        await lab.run("raise_model_error")
    assert caught.value.hint == "another one"
    with pytest.raises(FarmError, match="ZeroDivisionError: oops") as caught:
        await lab.run("raise_bug")
    assert "misbehaving.py" in caught.value.evidence


async def test_a_worker_past_its_time_is_killed_with_its_group_though_it_ignores_sigterm(lab):
    host = Host()
    with pytest.raises(AttemptTimeoutError, match=r"no result after 2 s; it was at: stuck"):
        await lab.run("ignore_sigterm", host, timeout_s=2)
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
    with raises_code(Code.WORKER_SILENT, match="sent nothing for 2 s; it was at: stopping"):
        await lab.run("stop_itself", host)
    await gone((await host.heard.get())[1]["pid"])


async def test_what_a_worker_leaves_behind_is_killed_though_it_detached_itself(lab):
    for stray in [(await lab.run("leave_a_process"))["orphan"], *(await lab.run("detach"))["strays"]]:
        await gone(stray)


async def test_workers_keep_and_fetch_artifacts(lab):
    assert (await lab.run("artifacts"))["same"]


async def test_a_worker_cannot_eat_the_host(lab, monkeypatch):
    monkeypatch.setattr(supervisor_module, "DATA_LIMIT_BYTES", 1 << 30)
    with pytest.raises(FarmError, match="MemoryError"):
        await lab.run("eat_memory", bytes=64 << 20)
    with pytest.raises(FarmError, match="File too large"):
        await lab.run("fill_the_disk", bytes=worker_zygote.MAX_FILE_BYTES + 1)
    with pytest.raises(FarmError, match="Too many open files"):
        await lab.run("open_files")


async def test_what_a_worker_says_is_kept_in_order_with_its_level(lab):
    host = Host()
    await lab.run("say_things", host)
    assert await host.heard.get() == ("talking", {"loudly": True})
    said = [line for line, _ in host.lines]
    assert ("careful", "warning") in host.lines
    assert [line for line in said if line != "careful"] == ["to stdout", "to stderr", "no end of line"]


async def test_a_worker_that_writes_without_end_comes_to_its_end_and_only_the_beginning_is_kept(lab):
    host = Host()
    assert await lab.run("write_without_end", host, lines=60_000) == {"written": 60_000}
    kept = sum(len(line) for line, _ in host.lines)
    assert 4_000_000 < kept < 4_400_000
    assert host.lines[-1][0] == "(more than 4 MiB: the rest is not kept)"


async def test_a_result_that_is_too_large_fails_the_attempt_not_the_worker(lab):
    assert len((await lab.run("a_result_of", bytes=MAX_REPORT_BYTES - 100))["x"]) == MAX_REPORT_BYTES - 100
    for size in (MAX_REPORT_BYTES + 1, 8 << 20):
        with raises_code(Code.RESULT_TOO_LARGE, match="at most") as caught:
            await lab.run("a_result_of", bytes=size)
        assert caught.value.fault == "user"
    with pytest.raises(FarmError, match="no JSON"):
        await lab.run("no_json")


async def test_a_result_that_is_pushed_past_the_worker_is_measured_again(lab):
    with raises_code(Code.RESULT_TOO_LARGE):
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


async def test_a_dead_zygote_is_noticed_named_and_replaced(tmp_path):
    async with lab_in(tmp_path, without_tvm(tmp_path)) as lab:
        zygote = await lab.zygote()
        host = Host()
        running = asyncio.create_task(lab.run("ignore_sigterm", host))
        _, facts = await host.heard.get()
        os.kill(zygote.pid, signal.SIGKILL)
        with pytest.raises(ZygoteDiedError):
            await running
        await gone(facts["pid"])
        await gone(facts["grandchild"])
        assert await lab.run("answer")
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
    bare = tmp_path / "python-without-tvm"
    bare.write_text("#!/bin/sh\necho 'No module named tvm' >&2\nexit 1\n")
    bare.chmod(0o755)
    toolchains = (
        Toolchain("missing", tmp_path / "no-python"),
        Toolchain("bare", bare),
        *(Toolchain(f"instant-{i}", Path("/bin/true")) for i in range(8)),  # gone before anybody looks
    )
    async with lab_in(tmp_path, toolchains, patience_s=1.0) as lab:
        with pytest.raises(ToolchainError, match="cannot run") as caught:
            await lab.run("answer", toolchain="missing")
        assert pip_install("tvm") in caught.value.hint
        with pytest.raises(ToolchainError, match="did not become a worker host") as caught:
            await lab.run("answer", toolchain="bare")
        assert "No module named tvm" in caught.value.evidence
        instant = (lab.run("answer", toolchain=f"instant-{i}") for i in range(8))
        for refused in await asyncio.gather(*instant, return_exceptions=True):
            assert isinstance(refused, ToolchainError)
            assert "did not become a worker host" in refused.message
        with pytest.raises(UserError, match="no toolchain 'other'"):
            await lab.run("answer", toolchain="other")


async def test_a_toolchain_that_cannot_start_now_is_waited_for(tmp_path):
    again = tmp_path / "again"
    killed_once = without_tvm(tmp_path, f"[ -e {again} ] || {{ touch {again}; kill -9 $$; }}")
    async with lab_in(tmp_path, killed_once) as lab:
        assert await lab.run("answer")
        assert again.exists()
        assert lab.supervisor.problems() == []
