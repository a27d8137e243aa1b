"""What a phone's clock says of a candidate is a time, or the candidate has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.tuning.measurement_slot import MeasurementSlot, SlotSettings
from farm.tuning.phones import PooledPhone

WORK: Any = SimpleNamespace(library=b"", device_type="cpu", args_info=(), path="", artifact="")


def measured(*told: float) -> tuple[float, ...]:
    nobody: Any = None
    slot = MeasurementSlot(PooledPhone("lease", "pixel"), nobody, nobody, SlotSettings(EvaluatorConfig(), 1.0))
    session: Any = SimpleNamespace(evaluator=lambda *_: lambda: told)
    return slot._measure(WORK, session).seconds


@pytest.mark.parametrize("told", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_makes_no_candidate_the_best(told: float) -> None:
    with pytest.raises(ValueError, match="the phone's clock says that it took"):
        measured(1e-3, told)


def test_what_is_a_time_counts() -> None:
    assert measured(1e-3, 2e-9) == (1e-3, 2e-9)
