"""Lines about jobs."""

from dataclasses import replace
from datetime import UTC, datetime

from farm.cli.output.job_events import EventLines
from farm.client import JobInfo
from farm.common.events import Event
from farm.model.job import JobState

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


def job(number, device=""):
    return JobInfo(
        f"job-{number}", "shell", "id", "ann", JobState.QUEUED, "android", device, "", "", 5, AT, None, 0, None, ""
    )


def event(kind, number, **data):
    return Event(1, AT, kind, f"job-{number}", data)


def started(number, device):
    return Event(1, AT, "attempt.started", f"job-{number}.1", {"job": f"job-{number}", "device": device})


def test_a_phone_names_its_job_only_where_no_other_job_has_it():
    alone = EventLines([job(1)])
    assert alone.line(started(1, "pixel")) == "pixel: started"
    pinned = EventLines([job(1, "pixel"), job(2, "galaxy")])
    assert pinned.line(started(2, "galaxy")) == "galaxy: started"
    matrix = EventLines([job(1), job(2)])
    assert matrix.line(started(1, "pixel")) == "job-1 pixel: started"
    assert matrix.line(event("job.progress", 1, step="timing")) == "job-1 pixel: timing"
    assert matrix.line(event("job.done", 1)) == ""


def test_a_job_of_several_phones_at_once_has_its_own_name():
    of_kind = {kind: replace(job(1), kind=kind) for kind in ("tune", "shell", "kind of another release")}
    assert {kind: EventLines([each]).line(started(1, "pixel")) for kind, each in of_kind.items()} == {
        "tune": "job-1: started", "shell": "pixel: started", "kind of another release": "pixel: started",
    }  # fmt: skip


def test_a_step_that_goes_on_is_told_once():
    progress = EventLines([job(1, "pixel"), job(2, "galaxy")])
    told = [progress.line(event("job.progress", 1, step=step)) for step in ("timing", "timing", "running", "timing")]
    assert told == ["pixel: timing", "", "pixel: running", "pixel: timing"]
    assert progress.line(event("job.progress", 2, step="timing")) == "galaxy: timing"
    assert progress.line(started(1, "pixel")) == "pixel: started"
    assert progress.line(event("job.progress", 1, step="timing")) == "pixel: timing"


def test_a_tuning_is_no_one_phones():
    tuning = EventLines([replace(job(1), kind="tune")])
    assert tuning.line(started(1, "pixel")) == "job-1: started"


def test_of_many_jobs_it_is_told_how_many_have_ended():
    many = EventLines([job(number) for number in range(40)])
    lines = [many.line(started(number, "pixel")) for number in range(40)]
    lines += [many.line(event("job.failed" if number == 5 else "job.done", number)) for number in range(40)]
    lines = [line for line in lines if line]
    assert len(lines) == 10
    assert lines[0] == "4 of 40 jobs have ended"
    assert lines[-1] == "40 of 40 jobs have ended, 1 not well"
    error = {"message": "it was unplugged"}
    ended = Event(1, AT, "attempt.ended", "job-1.1", {"job": "job-1", "state": "failed", "error": error})
    assert many.line(ended) == "job-1 pixel: failed: it was unplugged"


def test_a_watcher_hears_of_each_end():
    watching = EventLines([job(number) for number in range(40)], ends=True)
    assert watching.line(event("job.done", 3)) == "job-3: done"
    assert watching.line(event("job.failed", 4, error={"message": "no"})) == "job-4: failed: no"


def test_a_watcher_hears_once_of_an_attempt_that_was_the_last():
    watching = EventLines([job(1)], ends=True)
    error = {"message": "it was unplugged"}
    ended = Event(1, AT, "attempt.ended", "job-1.1", {"job": "job-1", "state": "failed", "error": error})
    assert watching.line(ended) == "job-1: failed: it was unplugged"
    assert watching.line(event("job.failed", 1, error=error)) == ""
    assert watching.line(event("job.failed", 1, error={"message": "nobody is left"})) == "job-1: failed: nobody is left"
