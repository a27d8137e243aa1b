"""What workers tell reaches everybody, and nothing else does: it is the workers' own words, or refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import ProtocolError
from farm.common.events import EventLog
from farm.control.verbs.job_views import JobSteps
from farm.jobs.attempt import HeartbeatWatch, LiveAttempt, Task
from farm.jobs.progress_schema import MAX_FACTS_BYTES, check_facts
from farm.metrics.ledger import Ledger
from farm.tuning.progress import TaskProgress
from farm.worker.certificate import plain

ROW = TaskProgress(name="conv", weight=2, trials=8, failed=1, flop=1e6, latest_s=1e-3)
TUNING: dict[str, Any] = {
    "trials": 8, "wanted": 64, "estimate_s": None, "phones": ["a"], "busy": 1, "waits": "", "spent_s": 1.5,
    "eta_s": None, "left_out": 0, "of_tasks": 3, "tasks": [ROW.to_wire(0.0)], "points": [[8, 1.5, 0.25]],
    "points_from": 0,
    "builds": {"local": 3, "remote": 5},
}  # fmt: skip
TIMING: dict[str, Any] = plain(
    {
        "count": 3, "median_ms": 1.0, "low_ms": math.nan, "high_ms": math.inf, "half_width": 0.1,
        "wanted_half_width": 0.02, "samples_ms": [1.0, 2],
    }
)  # fmt: skip


@pytest.mark.parametrize("facts", [{}, {"tuning": TUNING}, {"timing": TIMING}, {"tuning": TUNING, "timing": TIMING}])
def test_what_workers_tell_is_told(facts: dict[str, Any]) -> None:
    check_facts(facts)


@pytest.mark.parametrize(
    ("room", "name", "value"),
    [
        ("tuning", "trials", 10**400),
        ("tuning", "trials", -1),
        ("tuning", "trials", True),
        ("tuning", "trials", "8"),
        ("tuning", "spent_s", math.nan),
        ("tuning", "estimate_s", math.inf),
        ("tuning", "estimate_s", 10**400),
        ("tuning", "points", None),
        ("tuning", "points", [[1, 2]]),
        ("tuning", "points", [[1, 2, "x"]]),
        ("tuning", "points", [1]),
        ("tuning", "points_from", 1.5),
        ("tuning", "builds", {"elsewhere": 1}),
        ("tuning", "builds", {"local": -1}),
        ("tuning", "phones", "a"),
        ("tuning", "waits", "x" * 5000),
        ("tuning", "tasks", [{"name": "conv"}]),
        ("tuning", "more", 1),
        ("timing", "median_ms", "fast"),
        ("timing", "samples_ms", [{}]),
        ("timing", "samples_ms", [1.0] * MAX_FACTS_BYTES),
    ],
)
def test_anything_else_is_refused(room: str, name: str, value: object) -> None:
    facts = copy.deepcopy({"tuning": TUNING, "timing": TIMING})
    facts[room][name] = value
    with pytest.raises(ProtocolError):
        check_facts(facts)


@pytest.mark.parametrize("facts", [{"tuning": []}, {"timing": b"x"}, {"mine": b"x"}, {"mine": "x" * MAX_FACTS_BYTES}])
def test_what_cannot_be_told_is_refused(facts: Mapping[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        check_facts(facts)


def test_facts_that_nobody_reads_are_passed_on() -> None:
    check_facts({"seen": ["a", "b"], "trials": 10**400})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(TUNING)), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from([("tuning", name) for name in TUNING] + [("timing", name) for name in TIMING]), JSON)
def test_what_passes_harms_no_listener(place: tuple[str, str], value: object) -> None:
    room, name = place
    facts = copy.deepcopy({"tuning": TUNING, "timing": TIMING})
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


class Host:
    """Notes what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        self.told.append(step)


async def test_a_worker_that_tells_nonsense_is_refused_and_nobody_hears_it() -> None:
    host = Host()
    attempt = LiveAttempt(Task("a.1", 1, "m", {}, 10.0), host, HeartbeatWatch(0.0, 0.0))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError):
        await attempt.handle("progress", {"step": "search", "tuning": {**TUNING, "trials": 10**400}})
    await attempt.handle("progress", {"step": "search", "tuning": TUNING})
    assert host.told == ["search"]
