"""A search that stands still says nothing: each time is a line of the job's log."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from farm.kinds.tune.run import News


def test_a_standing_is_told_when_trials_or_phones_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, said = 0.0, []
    monkeypatch.setattr("farm.kinds.tune.run.time.monotonic", lambda: now_s)
    status = SimpleNamespace(phones=("pixel",), busy=0, waits="")
    estimate = SimpleNamespace(seconds=math.inf, weights={}, best_s={}, curve=[], raised=0)
    search: Any = SimpleNamespace(
        done=101, options=SimpleNamespace(trials=300), estimate=estimate, spent_s=1.0, earlier=0, tasks=[],
        database=SimpleNamespace(defaults=dict),
    )  # fmt: skip
    tell: Any = SimpleNamespace(progress=lambda step, **_: said.append(step))
    news = News(tell, SimpleNamespace(status=lambda: status), lambda: None, dict)  # type: ignore[arg-type]

    def wait(**changes: Any) -> int:
        nonlocal now_s
        now_s += 10.0
        vars(status).update(changes)
        news.on_progress(search)
        return len(said)

    assert [wait(), wait(busy=1), wait(busy=0)] == [1, 1, 1]
    search.done = 102
    assert [wait(), wait()] == [2, 2]
    assert [wait(waits="held for 5 s"), wait(waits="held for 4.5 s"), wait(phones=("pixel", "galaxy"))] == [3, 3, 4]
