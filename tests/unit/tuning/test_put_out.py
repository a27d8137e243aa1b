"""A phone that its speed puts out is given back, sent back while it cools, and tried again after that."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.tuning import runner
from farm.tuning.measurement_slot import SlotSettings
from farm.tuning.phones import PooledPhone, PoolState
from farm.tuning.runner import PhonePool


class Source:
    """Offers one phone, whatever is given back."""

    def __init__(self) -> None:
        self.given_back = 0

    def state(self) -> PoolState:
        return PoolState((PooledPhone("lease", "pixel"),), 1)

    def give_back(self, lease: str) -> None:
        self.given_back += 1


class Slot:
    """A slot whose phone was put out at once."""

    made: ClassVar[list[Slot]] = []
    broken = False

    def __init__(self, phone: PooledPhone, *_: object) -> None:
        self.phone, self.seen, self.work, self.measuring, self.abandoned = phone, True, None, False, False
        self.out, self.alive = "it is hot", False
        self.made.append(self)

    def update(self, *_: object) -> None: ...
    def start(self) -> None: ...
    def cut_if_overdue(self) -> bool:
        return True


def test_it_is_tried_again_when_it_has_cooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MeasurementSlot", Slot)
    monkeypatch.setattr(runner.threading.Thread, "start", lambda _: None)
    source: Any = Source()
    pool = PhonePool(source, SlotSettings(EvaluatorConfig(), 1.0), lambda _: None, lambda _: None)
    pool._update_slots(source.state(), 0.0)
    assert len(Slot.made) == 1
    # As the supervisor does when the slot has given its phone back.
    pool._slots.clear()
    pool._out["pixel"] = pool._sent_back["pixel"] = 0.0
    for now_s in (1.0, 6.0, 7.0, 12.0, 299.0):
        pool._update_slots(source.state(), now_s)
    assert (len(Slot.made), source.given_back) == (1, 3)  # not more often than every 5 s
    pool._update_slots(source.state(), 301.0)
    assert len(Slot.made) == 2


def test_phones_that_never_get_ready_end_the_run_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MeasurementSlot", Slot)
    monkeypatch.setattr(runner.threading.Thread, "start", lambda _: None)
    monkeypatch.setattr(runner, "COOL_S", 0.0)
    Slot.made.clear()
    pool = PhonePool(Source(), SlotSettings(EvaluatorConfig(), 1.0), lambda _: None, lambda _: None)  # type: ignore[arg-type]
    rounds = []

    def wait(_: float) -> None:
        rounds.append(len(Slot.made))
        if pool._queue._over is not None:
            pool._closing.set()
        assert len(rounds) < 20

    monkeypatch.setattr(pool._closing, "wait", wait)
    monkeypatch.setattr(Slot, "broken", True)
    pool._supervise()
    assert len(Slot.made) == runner.MOST_BROKEN
    over = pool._queue._over
    assert over is not None
    assert "no phone gets ready: pixel" in over.message
    assert "it is hot" in over.message
    assert "farm explain device pixel" in over.hint
