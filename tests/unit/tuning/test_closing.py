"""A run that is closed while a session opens says nothing about it."""

from __future__ import annotations

import threading
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.common.errors import PhoneError
from farm.tuning.measurement_slot import SlotSettings
from farm.tuning.phones import PooledPhone, PoolState, SessionOffer
from farm.tuning.runner import PhonePool
from tests.support.waiting import HANG_S


class Source:
    """One phone whose session opens until it is cut, and then does not open."""

    def __init__(self) -> None:
        self.opening, self.cut = threading.Event(), threading.Event()

    def state(self) -> PoolState:
        return PoolState((PooledPhone("lease", "pixel"),), 1)

    def open_session(self, lease: str) -> SessionOffer:
        self.opening.set()
        self.cut.wait()
        raise PhoneError(f"{lease} is over")

    def abort_session(self, lease: str, reason: str) -> None:
        self.cut.set()


def test_it_says_nothing() -> None:
    source: Any = Source()
    said: list[str] = []
    pool = PhonePool(source, SlotSettings(EvaluatorConfig(), 1.0), lambda _: None, said.append)
    assert source.opening.wait(HANG_S)
    pool.close()
    assert source.cut.is_set()
    assert said == []


def test_a_session_that_does_not_open_before_is_told() -> None:
    source: Any = Source()
    said: list[str] = []
    told = threading.Event()

    def tell(text: str) -> None:
        said.append(text)
        told.set()

    pool = PhonePool(source, SlotSettings(EvaluatorConfig(), 1.0), lambda _: None, tell)
    assert source.opening.wait(HANG_S)
    source.cut.set()
    assert told.wait(HANG_S)
    pool.close()
    assert said == ["pixel: lease is over"]
