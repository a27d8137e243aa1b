"""`farm shell` in this process, with a farm whose jobs never end."""

import threading
from types import SimpleNamespace

import pytest
import typer

from farm.cli import shell, work
from farm.core.errors import ExitCode


class Farm:
    """Its one job talks for ever."""

    def __init__(self):
        self.cancelled = []
        self.read = threading.Event()

    def logs(self, job, *, attempt, follow):
        self.read.set()
        threading.Event().wait()
        yield from ()

    def cancel(self, submitted):
        self.cancelled += submitted
        return ()


STARTED = SimpleNamespace(kind="attempt.started", subject="shell-1.1", data={"job": "shell-1", "device": "pixel"})


@pytest.mark.parametrize(("raised", "seen", "cancels"), [(KeyboardInterrupt, typer.Exit, 1), (KeyError, KeyError, 0)])
def test_nothing_waits_for_the_output_of_a_job_that_is_not_followed_any_more(monkeypatch, raised, seen, cancels):
    farm = Farm()

    def follow(_farm, _submitted, *, on_event):
        on_event(STARTED)
        farm.read.wait()
        raise raised

    monkeypatch.setattr(work, "follow", follow)
    with pytest.raises(seen) as ended:
        shell._stream(farm, SimpleNamespace(jobs=("shell-1",)))
    assert len(farm.cancelled) == cancels
    assert getattr(ended.value, "exit_code", ExitCode.FAILED) == ExitCode.FAILED
