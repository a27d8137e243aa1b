"""`--wait` with a duration and without."""

import pytest

from farm.cli import work
from farm.cli.main import with_wait_values
from farm.cli.work import WaitLimit, follow, wait_s
from farm.client.model import Submitted
from farm.common.durations import BadTimeError
from farm.common.errors import NoPhoneError
from tests.unit.cli.test_watch_screen import info


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("submit a.toml --wait", "submit a.toml --wait="),
        ("submit --wait a.toml", "submit --wait= a.toml"),
        ("submit a.toml --wait --json", "submit a.toml --wait= --json"),
        ("submit a.toml --wait 5m", "submit a.toml --wait 5m"),
        ("submit a.toml --wait=5m", "submit a.toml --wait=5m"),
        ("drain --wait -5", "drain --wait -5"),
        ("lease run --on android prog --wait", "lease run --on android prog --wait"),
        ("shell --on android -- prog --wait", "shell --on android -- prog --wait"),
        ("", ""),
    ],
)
def test_a_wait_without_a_duration_has_no_limit(line, read):
    assert with_wait_values(line.split()) == read.split()


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("", None), ("90", 90), ("1.5", 1.5), ("2m", 120)])
def test_durations_and_seconds(text, seconds):
    assert wait_s(text) == seconds


@pytest.mark.parametrize("text", ["-5", "0s", "soon", "1 fortnight"])
def test_what_is_no_duration(text):
    with pytest.raises(BadTimeError):
        wait_s(text)


class Queue:
    """A farm whose jobs wait."""

    def __init__(self, operator, *waits):
        self.rows = [info(at, waits=why) for at, why in enumerate(waits)]
        self.submitted = [Submitted(tuple(self.rows))]
        self.operator, self.asked, self.cancelled = operator, [], {}

    def watch(self, jobs, idle_s):
        yield from (None, None, None)

    def jobs(self, **_):
        return self.rows

    def needs_operator(self, job):
        self.asked.append(job)
        return self.operator

    def cancel(self, jobs, *, why, state=("running",)):
        self.cancelled |= dict.fromkeys(jobs, why)
        self.states = state


@pytest.mark.parametrize(
    ("operator", "first"),
    [("", "wait longer (--wait)"), ("farm device release pixel", "farm device release pixel (an operator)")],
)
def test_jobs_that_waited_too_long_are_cancelled_with_that_reason(operator, first):
    farm = Queue(operator, "pixel is leased")
    limit = WaitLimit(farm, ("job-0",), 0.001)
    limit.begin()
    limit._timer.join()
    assert farm.cancelled == {"job-0": "no phone within 0s (--wait)"}
    assert "running" not in farm.states  # one may have begun since it was asked about
    with pytest.raises(NoPhoneError, match="no phone within 0s: pixel is leased") as raised:
        limit.check(1)
    assert raised.value.hint == f"{first}, or choose others: farm device list"


@pytest.mark.parametrize("quiet", [False, True])  # --json must not hang either
def test_a_job_that_only_an_operator_can_free_is_not_waited_for(quiet):
    farm = Queue("farm device release pixel", "pixel: quarantined: cracked")
    with pytest.raises(NoPhoneError, match="only an operator can free a phone: pixel: quarantined") as raised:
        follow(farm, farm.submitted, quiet=quiet)
    assert raised.value.exit_code == 3
    assert raised.value.hint.startswith("farm device release pixel (an operator). job-0 stays queued")
    follow(farm, farm.submitted, quiet=True, limit_s=60.0)  # who asked to wait so long does


def test_work_with_effects_is_not_left_in_the_queue_for_an_operator():
    farm = Queue("farm device release pixel", "pixel: quarantined: cracked")
    with pytest.raises(NoPhoneError) as raised:
        follow(farm, farm.submitted, leave=False)
    assert farm.cancelled == {"job-0": raised.value.message}


def test_what_comes_free_by_itself_is_waited_for_and_said_once(capsys):
    farm = Queue("", "pixel: held by bob for 2 s")
    follow(farm, farm.submitted)
    assert (farm.asked, capsys.readouterr().err) == (["job-0"], "job-0 waits: pixel: held by bob for 2 s\n")


def test_on_a_terminal_the_reason_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(work, "is_lively", lambda _: True)
    farm = Queue("", "pixel: held by bob for 2 s", "galaxy: offline")
    follow(farm, farm.submitted)
    said = capsys.readouterr().err
    assert "\n" not in said
    assert said.split("\r\x1b[K")[-2:] == ["job-0 waits: pixel: held by bob for 2 s (and 1 more)", ""]
