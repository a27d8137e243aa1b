"""Which steps of a worker an attempt's log keeps."""

from types import SimpleNamespace
from unittest.mock import Mock

from farm.kinds.execution import LeaseHost


def test_the_standings_of_a_timing_do_not_repeat_its_step_in_the_log():
    kept, told = [], []
    context = SimpleNamespace(
        log=lambda text, **_: kept.append(text), progress=lambda step, **facts: told.append((step, facts))
    )
    host = LeaseHost(context, Mock())
    host.progressed("timing", {})
    host.progressed("timing", {"timing": {"count": 40}})
    assert kept == ["timing"]
    assert told == [("timing", {}), ("timing", {"timing": {"count": 40}})]
