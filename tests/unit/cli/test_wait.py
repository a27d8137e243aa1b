"""`--wait` with a duration and without."""

from types import SimpleNamespace

import pytest

from farm.cli.main import with_wait_values
from farm.cli.work import WaitLimit, wait_s
from farm.common.durations import BadTimeError


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


def test_jobs_that_waited_too_long_are_cancelled_with_that_reason():
    cancelled = {}
    farm = SimpleNamespace(
        jobs=lambda **_: [SimpleNamespace(id="bench-1", waits="pixel is leased")],
        cancel=lambda jobs, *, why: cancelled.update(dict.fromkeys(jobs, why)),
    )
    limit = WaitLimit(farm, ("bench-1",), 0.001)
    limit.begin()
    limit._timer.join()
    assert cancelled == {"bench-1": "no phone within 0s (--wait)"}


@pytest.mark.parametrize("text", ["-5", "0s", "soon", "1 fortnight"])
def test_what_is_no_duration(text):
    with pytest.raises(BadTimeError):
        wait_s(text)
