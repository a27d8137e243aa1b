"""The picture of `farm watch`: events in, lines out, at a fixed width."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.cli.output.terminal import ASCII, UNICODE
from farm.cli.watch_picture import WatchView, lines_of, picture_of, refreshed, with_result
from farm.cli.watch_picture import after as after_event
from farm.client import JobInfo
from farm.common.events import Event
from farm.kinds.bench.outcome import BenchOutcome
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


def test_a_bench_with_its_phases_heat_and_interval():
    picture = after(
        picture_of(info()), started(5), event("job.progress", 5, step="compiling"),
        event("job.progress", 12, step="timing"), event("job.progress", 20, step="timing", timing=TIMING),
    )  # fmt: skip
    assert drawn(picture, temperatures={"pixel": "41.2C 2h ago"}) == [
        "job-1 running  bench net.onnx  30s",
        "  phone    pixel, 41.2C 2h ago",
        "    compiling                                7.0 s",
        "  > timing                                   18.0 s",
        "  median   1.500 ms (1.450 to 1.550), uncertain by ±3.3 %, goal ±1 %, 40 samples",
        "  course   _++#",
        "                                       #######",
        "           =======                     #######              =======",
        "           #######                     #######              #######",
        "           1.4                                               1.6 ms",
    ]


def test_a_bench_that_is_done_shows_its_result_and_not_the_figures_of_a_try():
    picture = after(
        picture_of(info()), started(5), event("job.progress", 20, step="timing", timing=TIMING),
        event("attempt.ended", 30, "job-1.1", job="job-1", state="done"), event("job.done", 30),
    )  # fmt: skip
    estimate = {"median_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.1e-3}
    result = {"verdict": "suspect", "certificate": {"estimate": estimate}}
    outcome = BenchOutcome(job=info(), spec={}, attempts=(), result=result, **BenchOutcome.details({}, result))
    picture = with_result(picture, outcome)
    assert drawn(picture)[-1] == "  result   median 2.000 ms (1.900 .. 2.100), suspect"
    assert not any("samples" in line for line in drawn(picture))
    assert "median 2.000 ms" in drawn(picture, picture, width=120)[-1]


def test_a_tuning_with_its_curve():
    picture = after(
        picture_of(info(kind="tune")), started(0),
        event("job.progress", 9, step="trial 10 of 40", tuning=standing(10, [[1, 1.0, 0.012], [10, 9.0, 0.008]])),
        event("job.progress", 20, step="trial 20 of 40", tuning=standing(20, [[20, 19.0, 0.004]], first=2)),
    )  # fmt: skip
    assert drawn(picture, width=70) == [
        "job-1 running  tune net.onnx  30s",
        "  phone    pixel",
        "  trials   ###############............... 20 of 40, 1m 30s left",
        "  phones   2 of 2 busy: pixel, nord",
        "  best     4.000 ms estimated for the whole model",
        "  estimated latency, ms, over trials",
        "  12  --------------",
        "                    |",
        "                    |",
        "                    ----------------",
        "                                    |",
        "                                    |",
        "                                    |",
        "   4                                -",
        "     0                                                            40",
        "    conv2d                                       20 trials  best 4.00~",
    ]


def test_a_curve_that_is_told_anew_takes_the_place_of_the_old_one():
    first = event("job.progress", 1, tuning=standing(2, [[1, 1.0, 0.012], [2, 2.0, 0.011]]))
    raised = event("job.progress", 2, tuning=standing(3, [[1, 1.0, 0.02], [3, 3.0, 0.01]], first=0))
    picture = after(picture_of(info(kind="tune")), first, raised)
    assert picture.points == ((1.0, 20.0), (3.0, 10.0))
    later = after_event(
        picture_of(info(kind="tune")), event("job.progress", 2, tuning=standing(9, [[9, 9.0, 0.01]], first=5))
    )
    assert later.points == ((9.0, 10.0),)  # whoever comes later sees the curve from there


def test_attempts_are_told_once_there_are_two():
    error = {"message": "it was unplugged"}
    picture = after(
        picture_of(info()), started(1), event("job.progress", 2, step="uploading"),
        event("attempt.ended", 4, "job-1.1", job="job-1", state="failed", error=error),
        event("job.queued", 4), started(6, "nord", 2), event("job.progress", 7, step="compiling"),
        event("attempt.ended", 9, "job-1.2", job="job-1", state="done", error=None), event("job.done", 9),
    )  # fmt: skip
    assert drawn(picture) == [
        "job-1 done  bench net.onnx  9s",
        "  phone    nord",
        "  attempt 1  pixel failed: it was unplugged",
        "  attempt 2  nord done",
        "    compiling                                2.0 s",
    ]


def test_why_it_waits_and_why_it_failed():
    waiting = refreshed(picture_of(info()), info(waits="pixel is held by bob"))
    assert drawn(waiting)[1] == "  waits    pixel is held by bob"
    failed = after_event(waiting, event("job.failed", 3, error={"message": "the model is bad"}))
    assert drawn(failed) == ["job-1 failed  bench net.onnx  3s", "  error    the model is bad"]
    assert refreshed(failed, info(waits="late news")) == failed


def test_many_jobs_are_a_line_each_those_that_run_first():
    pictures = [picture_of(info(number)) for number in range(30)]
    pictures[7] = after(picture_of(info(7)), started(1), event("job.progress", 2, step="timing"))
    pictures[8] = after_event(picture_of(info(8)), event("job.failed", 3, error={"message": "no"}))
    lines = drawn(*pictures, height=8)
    assert lines[:3] == [
        "1 of 30 jobs have ended #.............................  1 failed  28 queued  1 ~",
        "job-7   running  pixel  timing",
        "job-8   failed   -      no",
    ]
    assert lines[-1] == "~ 24 lines more"
    assert len(lines) == 8


def test_a_daemon_that_is_away_is_the_first_line():
    assert drawn(picture_of(info()), notice="the farm daemon went away")[0] == "the farm daemon went away"


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
