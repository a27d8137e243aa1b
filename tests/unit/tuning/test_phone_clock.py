"""What a phone's clock says of a candidate is a time, or the candidate has none."""

from types import SimpleNamespace

import pytest
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.tuning.measurement_slot import MeasurementSlot, SlotSettings
from farm.tuning.phones import PooledPhone

WORK = SimpleNamespace(library=b"", device_type="cpu", args_info=(), path="", artifact="")


def measured(*told):
    nobody = None
    slot = MeasurementSlot(PooledPhone("lease", "pixel"), nobody, nobody, SlotSettings(EvaluatorConfig(), 1.0))
    session = SimpleNamespace(evaluator=lambda *_: lambda: told)
    return slot._measure(WORK, session).seconds


@pytest.mark.parametrize("told", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_makes_no_candidate_the_best(told):
    with pytest.raises(ValueError, match="the phone's clock says that it took"):
        measured(1e-3, told)


def test_what_is_a_time_counts():
    assert measured(1e-3, 2e-9) == (1e-3, 2e-9)
