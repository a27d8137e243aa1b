"""What the daemon has another user do: it begins at once, and nobody waits for it."""

import os
import signal
import subprocess
import threading
from unittest.mock import Mock

import pytest

from farm.jobs import worker_user
from farm.jobs.worker_user import WorkerUser, kill_groups, remove_tree

NOBODY = WorkerUser("nobody", 65534, 65534, by_group=True)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@as_root
def test_groups_of_another_user_end():
    sleeper = subprocess.Popen(["sleep", "600"], user=NOBODY.uid, group=NOBODY.gid, extra_groups=[], process_group=0)
    kill_groups([sleeper.pid], NOBODY)
    assert sleeper.wait(60) == -signal.SIGKILL


def test_nobody_waits_for_a_kill_that_hangs(tmp_path, monkeypatch):
    fifo, begun = tmp_path / "fifo", []
    os.mkfifo(fifo)

    def hangs(*_):
        begun.append(subprocess.Popen(["sh", "-c", f"read line < {fifo}"]))
        return begun[0]

    monkeypatch.setattr(worker_user, "_as_user", hangs)
    kill_groups([1], NOBODY)
    assert begun[0].poll() is None
    fifo.write_text("go on\n")
    for thread in threading.enumerate():
        if thread.name == "kill":
            thread.join(60)
    assert begun[0].returncode == 0  # somebody has seen it out: it is no zombie


def test_a_host_without_memory_for_a_process_is_reported(monkeypatch, caplog, tmp_path):
    none_left = Mock(side_effect=BlockingIOError("Resource temporarily unavailable"))
    monkeypatch.setattr(worker_user, "_as_user", none_left)
    kill_groups([4711], NOBODY)
    assert "process groups 4711" in caplog.text
    remove_tree(tmp_path, NOBODY)
