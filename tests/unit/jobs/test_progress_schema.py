"""What workers tell reaches everybody, and nothing else does: it is the workers' own words, or refused."""

import copy
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.common.events import EventLog
from farm.control.verbs.job_views import JobSteps
from farm.jobs.attempt import HeartbeatWatch, LiveAttempt, Task
from farm.jobs.progress_schema import MAX_FACTS_BYTES, MAX_UNREAD_BYTES, check_facts
from farm.metrics.ledger import Ledger
from farm.tuning.progress import TaskProgress
from farm.worker.measuring import plain

ROW = TaskProgress(name="conv", weight=2, trials=8, failed=1, flop=1e6, latest_s=1e-3)
TUNING = {
    "trials": 8, "wanted": 64, "estimate_s": None, "phones": ["a"], "busy": 1, "waits": "", "spent_s": 1.5,
    "eta_s": None, "left_out": 0, "of_tasks": 3, "tasks": [ROW.to_wire(0.0)], "points": [[8, 1.5, 0.25]],
    "points_from": 0,
    "builds": {"local": 3, "remote": 5},
}  # fmt: skip
TIMING = plain(
    {
        "count": 3, "median_ms": 1.0, "low_ms": math.nan, "high_ms": math.inf, "half_width": 0.1,
        "wanted_half_width": 0.02, "samples_ms": [1.0, 2],
    }
)  # fmt: skip


BOTH = {"tuning": TUNING, "timing": TIMING}
UNREAD = {"seen": ["a", "b"], "trials": 10**400}


@pytest.mark.parametrize(
    "facts", [{}, {"tuning": TUNING}, {"timing": TIMING}, {"tuning": TUNING, "timing": TIMING}, UNREAD]
)
def test_what_workers_tell_is_told(facts):
    check_facts(facts)


WRONG = [
    {"tuning": TUNING | {name: value}}
    for name, values in {
        "trials": (10**400, -1, True, "8"),
        "spent_s": (math.nan,),
        "estimate_s": (math.inf, 10**400),
        "points": (None, [[1, 2]], [[1, 2, "x"]], [1]),
        "points_from": (1.5,),
        "builds": ({"elsewhere": 1}, {"local": -1}),
        "phones": ("a",),
        "waits": ("x" * 5000,),
        "tasks": ([{"name": "conv"}],),
        "more": (1,),
    }.items()
    for value in values
] + [
    {"timing": TIMING | {"median_ms": "fast"}},
    {"timing": TIMING | {"samples_ms": [{}]}},
    {"timing": TIMING | {"samples_ms": [1.0] * MAX_FACTS_BYTES}},
    {"tuning": []},
    {"timing": b"x"},
    {"mine": b"x"},
    {"mine": "x" * MAX_FACTS_BYTES},
    {"mine": "x" * MAX_UNREAD_BYTES},
]


@pytest.mark.parametrize("facts", WRONG)
def test_anything_else_is_refused(facts):
    with pytest.raises(ProtocolError):
        check_facts(facts)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(TUNING)), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from([("tuning", name) for name in TUNING] + [("timing", name) for name in TIMING]), JSON)
def test_what_passes_harms_no_listener(place, value):
    room, name = place
    facts = copy.deepcopy(BOTH)
    facts[room][name] = value
    try:
        check_facts(facts)
    except ProtocolError:
        return
    events, ledger = EventLog(), Ledger()
    steps = JobSteps(events)
    events.subscribe(ledger.take)
    for _ in range(2):
        events.publish("job.progress", "tune-0a", step="search", attempt=1, **facts)
    assert math.isfinite(float(ledger.trials))
    assert steps.of("tune-0a") is not None


async def test_a_worker_that_tells_nonsense_is_refused_and_nobody_hears_it():
    told = []
    host = SimpleNamespace(progressed=lambda step, _fields: told.append(step))
    attempt = LiveAttempt(Task("a.1", 1, "m", {}, 10.0), host, HeartbeatWatch(0.0, 0.0))
    with pytest.raises(ProtocolError):
        await attempt.handle("progress", {"step": "search", "tuning": {**TUNING, "trials": 10**400}})
    await attempt.handle("progress", {"step": "search", "tuning": TUNING})
    assert told == ["search"]
