"""The picture of `farm watch`: events in, lines out, at a fixed width."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.cli.output.terminal import ASCII, UNICODE
from farm.cli.watch_picture import WatchView, lines_of, picture_of, refreshed, with_result
from farm.cli.watch_picture import after as after_event
from farm.client import JobInfo
from farm.common.events import Event
from farm.kinds.outcomes import BenchOutcome
from farm.model.job import JobState

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)


def info(number=1, kind="bench", waits=""):
    return JobInfo(
        f"job-{number}", kind, "net.onnx", "ann", JobState.QUEUED, "android", "", "", "", 1, AT, None, 0, None, waits
    )


def event(kind, seconds, subject="job-1", **data):
    return Event(1, AT + timedelta(seconds=seconds), kind, subject, data)


def started(seconds, device="pixel", number=1):
    return event("attempt.started", seconds, f"job-1.{number}", job="job-1", device=device)


def after(picture, *events):
    for each in events:
        picture = after_event(picture, each)
    return picture


def drawn(*pictures, seconds=30, width=80, height=40, marks=ASCII, temperatures=None, notice=""):
    scene = WatchView(AT + timedelta(seconds=seconds), width, height, marks, temperatures or {}, notice)
    return [line.plain.rstrip() for line in lines_of(pictures, scene)]


TIMING = {
    "count": 40, "median_ms": 1.5, "low_ms": 1.45, "high_ms": 1.55, "half_width": 0.033, "wanted_half_width": 0.01,
    "samples_ms": [1.4, 1.5, 1.5, 1.6],
}  # fmt: skip


def standing(trials, points, first=0, **facts):
    told = {
        "trials": trials, "wanted": 40, "estimate_s": points[-1][2], "phones": ["pixel", "nord"], "busy": 2,
        "waits": "", "eta_s": 90.0, "left_out": 0, "points": points, "points_from": first,
        "tasks": [{"name": "conv2d", "trials": trials, "best_ms": 4.0}],
    }  # fmt: skip
    return told | facts


def progress(seconds, **data):
    return event("job.progress", seconds, **data)


def ended(seconds, number=1, state="done", error=None):
    return event("attempt.ended", seconds, f"job-1.{number}", job="job-1", state=state, error=error)


TUNED = picture_of(info(kind="tune"))
TWICE = after(
    picture_of(info()), started(1), progress(2, step="uploading"),
    ended(4, state="failed", error={"message": "it was unplugged"}), event("job.queued", 4), started(6, "nord", 2),
    progress(7, step="compiling"), ended(9, 2), event("job.done", 9),
)  # fmt: skip
WAITING = refreshed(picture_of(info()), info(waits="pixel is held by bob"))
FAILED = after_event(WAITING, event("job.failed", 3, error={"message": "the model is bad"}))
MANY = [picture_of(info(number)) for number in range(30)]
MANY[7] = after(picture_of(info(7)), started(1), progress(2, step="timing"))
MANY[8] = after_event(picture_of(info(8)), event("job.failed", 3, error={"message": "no"}))
TIMED = after(
    picture_of(info()), started(5), progress(20, step="timing", timing=TIMING), ended(30), event("job.done", 30)
)
RESULT = {"verdict": "suspect", "certificate": {"estimate": {"median_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.1e-3}}}
DONE = with_result(
    TIMED, BenchOutcome(job=info(), spec={}, attempts=(), result=RESULT, **BenchOutcome.details({}, RESULT))
)
SHOWN = {
    "a bench with its phases, heat and interval": drawn(
        after(picture_of(info()), started(5), progress(5, step="compiling"), progress(12, step="timing"),
              progress(20, step="timing", timing=TIMING)),
        temperatures={"pixel": "41.2C 2h ago"},
    ),
    "a bench that is done has its result and not the figures of a try": drawn(DONE),
    "two that are done": drawn(DONE, DONE, width=120),
    "a tuning with its curve": drawn(
        after(TUNED, started(0),
              progress(9, step="trial 10 of 40", tuning=standing(10, [[1, 1.0, 0.012], [10, 9.0, 0.008]])),
              progress(20, step="trial 20 of 40", tuning=standing(20, [[20, 19.0, 0.004]], first=2))),
        width=70,
    ),
    "attempts once there are two": drawn(TWICE),
    "why it waits": drawn(WAITING),
    "why it failed": drawn(FAILED),
    "many jobs are a line each, those that run first": drawn(*MANY, height=8),
    "a daemon that is away is the first line": drawn(picture_of(info()), notice="the farm daemon went away"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_it_shows(snapshot, name):
    snapshot("\n".join(SHOWN[name]))


def test_a_curve_that_is_told_anew_takes_the_place_of_the_old_one():
    first = event("job.progress", 1, tuning=standing(2, [[1, 1.0, 0.012], [2, 2.0, 0.011]]))
    raised = event("job.progress", 2, tuning=standing(3, [[1, 1.0, 0.02], [3, 3.0, 0.01]], first=0))
    picture = after(picture_of(info(kind="tune")), first, raised)
    assert picture.points == ((1.0, 20.0), (3.0, 10.0))
    later = after_event(
        picture_of(info(kind="tune")), event("job.progress", 2, tuning=standing(9, [[9, 9.0, 0.01]], first=5))
    )
    assert later.points == ((9.0, 10.0),)  # whoever comes later sees the curve from there


def test_what_has_ended_waits_for_nothing():
    assert refreshed(FAILED, info(waits="late news")) == FAILED


@pytest.mark.parametrize("size", [(20, 3), (80, 24), (300, 100)])
def test_it_fits_and_steers_nothing(size):
    evil = replace(picture_of(info()), name="\x1b[2J" * 50)
    evil = after_event(evil, event("job.progress", 1, step="x\r\x1b[31m" * 40, timing={"median_ms": "much"}))
    lines = drawn(evil, width=size[0], height=size[1], marks=UNICODE)
    assert len(lines) <= size[1]
    assert all(len(line) <= size[0] and "\x1b" not in line for line in lines)


def test_of_no_job_there_is_nothing_to_draw():
    """A name that is no job's: the daemon refuses it."""
    assert drawn() == []
