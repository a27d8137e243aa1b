"""A phone that its speed puts out is given back, sent back while it cools, and tried again after that."""

from __future__ import annotations

import pytest
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.tuning import runner
from farm.tuning.measurement_slot import SlotSettings
from farm.tuning.phones import PooledPhone, PoolState
from farm.tuning.runner import PhonePool


class Source:
    """Offers one phone, whatever is given back."""

    def __init__(self):
        self.given_back = 0

    def state(self):
        return PoolState((PooledPhone("lease", "pixel"),), 1)

    def give_back(self, lease):
        self.given_back += 1


class Slot:
    """A slot whose phone was put out at once."""

    broken = False

    def __init__(self, phone, *_):
        self.phone, self.seen, self.work, self.measuring, self.abandoned = phone, True, None, False, False
        self.out, self.alive = "it is hot", False
        self.update = self.start = lambda *_: None
        self.cut_if_overdue = lambda: True
        self.made.append(self)


@pytest.fixture
def pool(monkeypatch):
    """A pool of which the test plays the supervisor."""
    monkeypatch.setattr(runner, "MeasurementSlot", type("NewSlot", (Slot,), {"made": []}))
    monkeypatch.setattr(runner.threading.Thread, "start", lambda _: None)
    return PhonePool(Source(), SlotSettings(EvaluatorConfig(), 1.0), lambda _: None, lambda _: None)


def test_it_is_tried_again_when_it_has_cooled(pool):
    source, made = pool._source, runner.MeasurementSlot.made
    pool._update_slots(source.state(), 0.0)
    assert len(made) == 1
    # As the supervisor does when the slot has given its phone back.
    pool._slots.clear()
    pool._out["pixel"] = pool._sent_back["pixel"] = 0.0
    for now_s in (1.0, 6.0, 7.0, 12.0, 299.0):
        pool._update_slots(source.state(), now_s)
    assert (len(made), source.given_back) == (1, 3)  # not more often than every 5 s
    pool._update_slots(source.state(), 301.0)
    assert len(made) == 2


def test_phones_that_never_get_ready_end_the_run_and_are_named(pool, monkeypatch):
    monkeypatch.setattr(runner, "COOL_S", 0.0)
    rounds, made = [], runner.MeasurementSlot.made

    def wait(_):
        rounds.append(len(made))
        if pool._queue._over is not None:
            pool._closing.set()
        assert len(rounds) < 20

    pool._closing.wait = wait
    runner.MeasurementSlot.broken = True
    pool._supervise()
    assert len(made) == runner.MAX_BROKEN
    over = pool._queue._over
    assert "no phone gets ready: pixel" in over.message
    assert "it is hot" in over.message
    assert "farm explain device pixel" in over.hint
