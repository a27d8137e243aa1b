"""A worker's heart: it outlasts a daemon that is stuck for less than the daemon would wait for it."""

import errno
import threading
from types import SimpleNamespace

import pytest

from farm.common.errors import DaemonUnreachableError, HostError, NotAllowedError
from farm.jobs.attempt import SILENCE_LIMIT_S
from farm.worker import channel as module
from farm.worker.channel import DaemonChannel
from tests.support.waiting import HANG_S


class Clients:
    """The connections of one worker, and the clock: each call is answered as the test says, after so long."""

    def __init__(self, *answers):
        self.answers = list(answers)  # (seconds it took, error or None)
        self.now_s = 0.0
        self.limits_s = []
        self.beats = 0
        self.ended = threading.Event()

    def __call__(self, path, *, silent_after_s, **credentials):
        self.limits_s.append(silent_after_s)
        return self

    def call(self, kind):
        self.beats += 1
        took_s, error = self.answers.pop(0) if self.answers else (0.0, NotAllowedError("the attempt is over"))
        self.now_s += took_s
        if error is not None:
            raise error

    def close(self):
        self.ended.set()


def beats(monkeypatch, *answers):
    """How many heartbeats a worker sends before it ends by itself."""
    clients = Clients(*answers)
    monkeypatch.setattr(module, "ControlClient", clients)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clients.now_s))
    with DaemonChannel(SimpleNamespace(socket="/none", token="", attempt="a.1", fence=1)):
        assert clients.ended.wait(HANG_S)
    assert clients.limits_s == [SILENCE_LIMIT_S] * 2
    return clients.beats


STUCK = DaemonUnreachableError("stuck")


def test_a_daemon_that_is_stuck_for_a_moment(monkeypatch):
    assert beats(monkeypatch, (1, None), (9, STUCK), (1, None), (9, STUCK), (5, STUCK), (1, None)) == 7


@pytest.mark.parametrize("answers", [[(16, STUCK)], [(8, STUCK), (8, STUCK)]])
def test_a_daemon_that_is_gone(monkeypatch, answers):
    assert beats(monkeypatch, *answers, (0, None)) == len(answers)


def test_a_daemon_that_refuses(monkeypatch):
    assert beats(monkeypatch, (0, NotAllowedError("no")), (0, None)) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "no space"), "host"),
        (ValueError("no space"), "worker_bug"),
        (PermissionError(errno.EACCES, "x"), "worker_bug"),
    ],
)
def test_a_full_disk_is_the_hosts_and_no_bug_of_a_worker(tmp_path, monkeypatch, error, code):
    order = SimpleNamespace(folder=str(tmp_path), task="farm.kinds.bench.worker")
    assert module._unforeseen(error, order).code == code
    monkeypatch.setattr(module, "lacking", lambda _: errno.ENOSPC)  # TVM and linkers have words of their own
    assert isinstance(module._unforeseen(error, order), HostError)
