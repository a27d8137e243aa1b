"""A search that stands still says nothing: each time is a line of the job's log."""

import math
from types import SimpleNamespace

from farm.kinds.tune.run import News


def test_a_standing_is_told_when_trials_or_phones_have_changed(monkeypatch):
    now_s, said = 0.0, []
    monkeypatch.setattr("farm.kinds.tune.run.time.monotonic", lambda: now_s)
    status = SimpleNamespace(phones=("pixel",), busy=0, waits="")
    search = SimpleNamespace(
        done=101, options=SimpleNamespace(trials=300), spent_s=1.0, earlier=0, tasks=[],
        estimate=SimpleNamespace(seconds=math.inf, weights={}, best_s={}, curve=[], raised=0),
        database=SimpleNamespace(defaults=dict),
    )  # fmt: skip
    tell = SimpleNamespace(progress=lambda step, **_: said.append(step))
    news = News(tell, SimpleNamespace(status=lambda: status), lambda: None, dict)

    def told(done=101, **changes):
        nonlocal now_s
        now_s += 10.0
        search.done = done
        vars(status).update(changes)
        news.on_progress(search)
        return len(said)

    assert [told(), told(busy=1), told(busy=0)] == [1, 1, 1]
    assert [told(102), told(102)] == [2, 2]
    assert [told(102, waits=f"held for {each} s") for each in (5, 4.5)] == [3, 3]
    assert told(102, phones=("pixel", "galaxy")) == 4
