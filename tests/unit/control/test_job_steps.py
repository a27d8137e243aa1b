"""What running jobs do, folded from their events."""

import json

import pytest

from farm.common.errors import UserError, error_to_wire
from farm.common.events import EventLog
from farm.control.messages import Reply, encode_reply
from farm.control.verbs import fitting
from farm.control.verbs.job_views import JobSteps, in_brief


def progress(events, step, *, attempt=1, **data):
    events.publish("job.progress", "j1", step=step, device="pixel", attempt=attempt, **data)


def test_the_latest_step_is_kept_until_the_job_stops():
    events = EventLog()
    steps = JobSteps(events)
    assert steps.of("j1") is None
    progress(events, "compiling")
    progress(events, "timing")
    events.publish("job.running", "j1")
    step = steps.of("j1")
    assert (step.step, step.device, step.attempt, step.done, step.of) == ("timing", "pixel", 1, None, None)
    assert step.row()["step"] == "timing"
    for end in ("job.queued", "job.done", "job.failed", "job.cancelled"):
        progress(events, "timing")
        events.publish(end, "j1")
        assert steps.of("j1") is None


def test_a_search_tells_only_new_points_and_where_they_belong():
    events = EventLog()
    steps = JobSteps(events)
    told = {"trials": 2, "wanted": 8, "tasks": []}
    progress(events, "trial 2 of 8", tuning={**told, "points": [[1, 0.5, 3e-3], [2, 0.9, 2e-3]], "points_from": 0})
    progress(events, "trial 4 of 8", tuning={**told, "trials": 4, "points": [[4, 2.0, 1e-3]], "points_from": 2})
    progress(events, "building")
    step = steps.of("j1")
    assert (step.step, step.done, step.of) == ("building", 4, 8)
    assert [point[0] for point in step.curve] == [1, 2, 4]
    progress(events, "raised", tuning={**told, "points": [[1, 0.5, 9e-3]], "points_from": 0})
    assert steps.of("j1").curve == ((1.0, 0.5, 9e-3),)
    wire = steps.of("j1").to_wire()
    assert wire["curve"] == [[1.0, 0.5, 9e-3]]
    assert "points" not in wire["tuning"]


def test_another_attempt_begins_with_nothing():
    events = EventLog()
    steps = JobSteps(events)
    progress(events, "trial 1", tuning={"trials": 1, "wanted": 2, "points": [[1, 1, 1]], "points_from": 0})
    progress(events, "reading the model", attempt=2)
    assert (steps.of("j1").done, steps.of("j1").curve) == (None, ())


def test_a_list_has_the_figures_of_a_result_and_nothing_that_cannot_be_shown():
    right = {"verdict": "trusted", "estimate": {"median_ms": 1.5, "count": 40}, "comparison": {"answer": "faster"}}
    assert in_brief({**right, "samples_s": [1.0]}) == right
    forged = {"verdict": ["a"], "estimate": {"median_ms": "fast", "low_ms": 10**400, "x": {}}, "exit_code": True}
    assert in_brief({**forged, "speedup": "x"}) == {"estimate": {}}
    endless = {"verdict": "x" * 10_000, "estimate": {"y" * 10_000: 1}, "comparison": {f"z{n}": n for n in range(9_999)}}
    assert len(json.dumps(in_brief(endless))) < 1_000


def test_a_page_of_jobs_fits_one_message_whatever_their_errors_say():
    """Fifty jobs of one user kept the list of jobs from all users."""
    error = error_to_wire(UserError("\N{SNOWMAN}" * 10_000, hint="\N{SNOWMAN}" * 10_000))
    rows = [{"id": f"j{number}", "error": error} for number in range(500)]
    shown = fitting(rows)
    assert 20 < len(shown) < 500
    assert shown == rows[: len(shown)]
    encode_reply(Reply("a", {"jobs": shown}))
    assert fitting(rows[:3]) == rows[:3]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (
            {"certificate": {"reasons": [
                {"verdict": "suspect", "cause": "samples too alike"}, {"verdict": "rejected", "cause": "too noisy"},
            ]}},
            "too noisy",
        ),
        ({"comparison": {"answer": "cannot tell", "reasons": [{"cause": "too few pairs"}]}}, "too few pairs"),
        ({"certificate": {"reasons": []}}, None),
        ({"certificate": {"reasons": [7, {"cause": "x" * 100}]}}, f"{'x' * 59}…"),
        ({"certificate": {"reasons": "forged"}, "comparison": 7}, None),
    ],
)  # fmt: skip
def test_a_list_has_the_gravest_reason_against_a_result(result, why):
    assert in_brief(result).get("why") == why
