"""What the daemon has another user do: it begins at once, and nobody waits for it."""

import os
import signal
import stat
import subprocess
import threading
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from farm.jobs import worker_user
from farm.jobs.config import JobsConfig
from farm.jobs.worker_user import UNUSED_S, UserFolders, WorkerUser, kill_groups, remove_tree

NOBODY = WorkerUser("nobody", 65534, 65534, by_group=True)
FIRST = JobsConfig().first_uid
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@as_root
def test_groups_of_another_user_end():
    sleeper = subprocess.Popen(["sleep", "600"], user=NOBODY.uid, group=NOBODY.gid, extra_groups=[], process_group=0)
    kill_groups([sleeper.pid], NOBODY.uid, NOBODY.gid)
    assert sleeper.wait(60) == -signal.SIGKILL


def test_nobody_waits_for_a_kill_that_hangs(tmp_path, monkeypatch):
    fifo, begun = tmp_path / "fifo", []
    os.mkfifo(fifo)

    def hangs(*_):
        begun.append(subprocess.Popen(["sh", "-c", f"read line < {fifo}"]))
        return begun[0]

    monkeypatch.setattr(worker_user, "_as_user", hangs)
    kill_groups([1], NOBODY.uid, NOBODY.gid)
    assert begun[0].poll() is None
    fifo.write_text("continue\n")
    for thread in threading.enumerate():
        if thread.name == "kill":
            thread.join(60)
    assert begun[0].returncode == 0  # somebody has seen it out: it is no zombie


def test_a_host_without_memory_for_a_process_is_reported(monkeypatch, caplog, tmp_path):
    none_left = Mock(side_effect=BlockingIOError("Resource temporarily unavailable"))
    monkeypatch.setattr(worker_user, "_as_user", none_left)
    kill_groups([4711], NOBODY.uid, NOBODY.gid)
    assert "process groups 4711" in caplog.text
    remove_tree(tmp_path, NOBODY)


@as_root
@pytest.mark.parametrize("by_group", [False, True])
def test_each_user_has_ids_and_a_folder_that_no_other_users_workers_may_enter(tmp_path, by_group):
    users = UserFolders(tmp_path, replace(NOBODY, by_group=by_group), FIRST)
    alice, bob = users.open("alice"), users.open("bob")
    assert (alice.uid, alice.gid, bob.uid) == (FIRST, FIRST, FIRST + 1)
    assert alice.groups == bob.groups == (NOBODY.gid,)
    for path in (users.path("alice"), users.path("bob")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o770 if by_group else 0o700)
    again = UserFolders(tmp_path, users._shared, FIRST)
    assert again.open("bob") == bob
    assert again.owner(again.path("alice")) == alice


@as_root
def test_folders_of_no_use_go_and_their_ids_are_free(tmp_path):
    users = UserFolders(tmp_path, NOBODY, FIRST)
    assert (users.open("alice").uid, users.open("bob").uid) == (FIRST, FIRST + 1)
    os.utime(users.path("alice"), times=(0, time.time() - UNUSED_S - 60))
    for name in ("default", users.path("carol").name):  # of an older farm; of one that died before it gave it
        (tmp_path / name).mkdir()
    assert users.open("dave").uid == FIRST
    assert {each.name for each in tmp_path.iterdir()} == {users.path(name).name for name in ("bob", "dave")}


@as_root
def test_without_ids_of_their_own_all_are_the_configured_user(tmp_path):
    assert UserFolders(tmp_path, NOBODY, FIRST).open("alice").uid == FIRST
    users = UserFolders(tmp_path, NOBODY)
    assert users.open("alice") == NOBODY
    assert UserFolders(tmp_path, None).open("bob") is None
