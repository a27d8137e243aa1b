"""`farm shell` in this process, with a farm whose jobs never end."""

import threading
from types import SimpleNamespace

import pytest

from farm.cli import work
from farm.common.errors import HostError
from farm.kinds.shell import command as shell


class Farm:
    """Its one job talks forever."""

    def __init__(self, error=None):
        self.read, self.error = threading.Event(), error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def logs(self, job, *, attempt, follow):
        if self.error:
            raise self.error
        self.read.set()
        threading.Event().wait()
        yield from ()


STARTED = SimpleNamespace(kind="attempt.started", subject="shell-1.1", data={"job": "shell-1", "device": "pixel"})


@pytest.mark.parametrize("raised", [KeyboardInterrupt, KeyError])
def test_nothing_waits_for_the_output_of_a_job_that_is_not_followed_any_more(monkeypatch, raised):
    farm = Farm()

    def submit_and_wait(_farm, _spec, *, on_event, **_):
        on_event(STARTED)
        farm.read.wait()
        raise raised

    monkeypatch.setattr(work, "client", lambda: farm)
    monkeypatch.setattr(work, "submit_and_wait", submit_and_wait)
    with pytest.raises(raised):
        shell.shell(["id"], on="android")


def test_output_that_cannot_be_read_is_a_warning_and_no_traceback(monkeypatch, capsys):
    said = "the log of shell-1.1 cannot be read: Not a directory"
    monkeypatch.setattr(work, "client", lambda: Farm(HostError(said)))
    monkeypatch.setattr(work, "submit_and_wait", lambda *_, on_event, **__: (None, (on_event(STARTED), ())[1]))
    monkeypatch.setattr(work, "finish", lambda *_, **__: None)
    shell.shell(["id"], on="android")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: the output is incomplete: {said}")
    assert line.endswith("farm job show shell-1")
