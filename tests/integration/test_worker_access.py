"""What a worker may: the verbs of its own attempt, with its own token, and the folders of its own user."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from farm.control.artifacts import ArtifactFolder
from farm.control.server import WorkerServer
from farm.jobs.attempt import HeartbeatWatch, LiveAttempt, Task
from farm.jobs.config import JobsConfig
from farm.jobs.supervisor import Supervisor
from farm.jobs.worker_user import RunAs, WorkerUser, blocking_folder, find_worker_user, workers_as
from farm.worker import zygote as worker_zygote
from tests.integration.test_workers import TASK, Host, gone, lab_in, without_tvm
from tests.support.users import needs_another_user

NOBODY = 65534  # uid and gid
FIRST = JobsConfig().first_uid

in_the_labs_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    async with lab_in(folder, without_tvm(folder)) as lab:
        yield lab


@pytest.fixture
def passable(tmp_path):
    """A folder that anybody may pass on the way to; pytest closes its own to others."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)


@in_the_labs_loop
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"verb": "job.submit"}, "protocol"),
        ({"verb": "status"}, "protocol"),
        ({"verb": "hello", "as": {"attempt": "try-0"}}, "stale_report"),
        ({"verb": "session.open", "as": {"attempt": "other"}}, "stale_report"),
        ({"verb": "session.open", "as": {"attempt": "other", "fence": 7}}, "not_allowed"),
        ({"verb": "result", "fields": {"value": {}}, "as": {"fence": 0}}, "stale_report"),
        ({"verb": "session.open", "as": {"token": "x" * 32}}, "not_allowed"),
        ({"verb": "log", "fields": {"text": "x", "level": "loud"}}, "protocol"),
        ({"verb": "log", "fields": {"text": "x" * 5000, "level": "info"}}, "protocol"),
        ({"verb": "progress", "fields": {"step": 7}}, "protocol"),
        ({"verb": "result", "fields": {}}, "protocol"),
        ({"verb": "artifact.get", "fields": {"sha256": "../../farm.db", "offset": 0}}, "bad_artifact"),
        ({"verb": "artifact.get", "fields": {"sha256": "/etc/shadow", "offset": 0}}, "bad_artifact"),
        ({"verb": "artifact.get", "fields": {"sha256": "partial", "offset": 0}}, "bad_artifact"),
        ({"verb": "artifact.get", "fields": {"sha256": "a" * 64, "offset": 0}}, "no_such_artifact"),
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
    lab.door.admit("other", 7, LiveAttempt(Task("other", 7, TASK, {}, 1), Host(), HeartbeatWatch(0, 0)))
    try:
        answer = await lab.run("ask", **asked)
    finally:
        lab.door.dismiss("other")
    assert answer["error"] == code, answer


@needs_another_user
async def test_workers_of_a_root_daemon_are_another_user(tmp_path, passable):
    state = tmp_path / "state"
    (state / "artifacts").mkdir(parents=True)
    state.chmod(0o750)
    secrets = [state / "farm.db", state / "farm.db-wal", state / "artifacts" / "x"]
    for path in secrets:
        path.write_text("secret")
    access = workers_as("nobody", state, [Path(sys.executable)], FIRST)
    assert access == RunAs(WorkerUser("nobody", NOBODY, NOBODY), first_id=FIRST)
    door = WorkerServer(state / "work" / "workers.sock", ArtifactFolder(state / "artifacts"), gid=NOBODY)
    supervisor = Supervisor(without_tvm(tmp_path), state / "work", door, run_as=access)
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
        assert supervisor.cache_folder("default", "").parent.stat().st_uid == FIRST
        assert not stale.exists()  # all users' workers could have written what is in it
        await one_user_reaches_nothing_of_another(supervisor, door)
    finally:
        await supervisor.stop()
        await door.stop()
    assert (answer["uid"], answer["gid"], answer["groups"]) == (FIRST, FIRST, [NOBODY])
    assert answer["limits"]["NPROC"] == worker_zygote.MAX_PROCESSES
    assert readable["open"] == [door.socket_path]
    for pid in strays["strays"]:
        await gone(pid)


async def one_user_reaches_nothing_of_another(supervisor, door):
    tokens, admit = [], door.admit
    door.admit = lambda *attempt: tokens.append(admit(*attempt)) or tokens[-1]
    host = Host()
    ask = Task("alice", 4, TASK, {"do": "ignore_sigterm"}, 60, "alice")
    alice = asyncio.create_task(supervisor.run("default", ask, host))
    step, facts = await host.heard.get()
    assert step == "stuck"
    folders = [supervisor.cache_folder("default", "alice").parent, Path(door.socket_path).parent / "attempts" / "alice"]
    asked = {"do": "reach", "nekot": tokens[0][::-1], "pid": facts["pid"], "paths": [str(each) for each in folders]}
    bob = await supervisor.run("default", Task("bob", 5, TASK, asked, 60, "bob"), Host())
    assert bob == {"open": [], "signals": False, "token": 0}
    asked["paths"] = [str(folders[0])]
    again = await supervisor.run("default", Task("again", 6, TASK, asked, 60, "alice"), Host())
    assert (again["open"], again["signals"]) == (asked["paths"], True)
    alice.cancel()
    await asyncio.wait([alice])
    await gone(facts["grandchild"])


def test_whom_workers_can_become(tmp_path, passable):
    assert find_worker_user("no-such-user-here") is None
    assert find_worker_user("root") is None
    assert find_worker_user("") is None
    assert workers_as("no-such-user-here", tmp_path, []) == RunAs(None)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    stranger = WorkerUser("stranger", 54321, 54321)
    assert blocking_folder(stranger, [tmp_path / "python", closed / "python"]) == closed
    assert blocking_folder(WorkerUser("me", os.getuid(), os.getgid()), [closed / "python"]) is None
