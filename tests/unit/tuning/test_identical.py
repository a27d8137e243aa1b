"""Which phones may stay in a pool, and what their results are divided by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farm.tuning.identical import DOUBTS, READINGS, Judge, Opinion, Scale, opinion


class Phones:
    """Readings of the reference kernel, by session."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.speed: dict[str, list[float]] = {}
        self.loads: list[str] = []
        self.reads = 0

    def load(self, session: str) -> Callable[[], float]:
        self.loads.append(session)

        def read() -> float:
            self.reads += 1
            readings = self.speed[session]
            return readings.pop(0) if len(readings) > 1 else readings[0]

        return read

    def judge(self, limit: float | None = 0.15) -> Judge:
        return Judge(self.load, limit=limit, every_s=60, clock=lambda: self.now_s)


@pytest.mark.parametrize(
    ("scale", "first", "out"),
    [
        (Scale(1.0, 1.1), False, ""),
        (Scale(1.0, 0.9), False, ""),
        (Scale(1.2, 1.2), False, "b runs the reference kernel 20% slower than the first phone (at most 15%)"),
        (Scale(0.8, 0.8), False, "20% faster"),
        (Scale(0.9, 1.1), False, "b has drifted by +22% since it joined (at most 15%)"),
        (Scale(1.0, 1.5), True, ""),
    ],
)
def test_how_far_is_too_far(scale: Scale, first: bool, out: str) -> None:
    found = opinion("b", scale, 0.15, first=first)
    assert found.factor == scale.now
    assert out in found.out
    assert bool(found.out) == bool(out)


def test_without_a_limit_every_phone_stays() -> None:
    assert opinion("b", Scale(1.0, 9.0), None, first=False) == Opinion(9.0)


def test_the_first_phone_is_the_measure() -> None:
    phones = Phones()
    phones.speed = {"A": [0.010, 0.001, 0.002], "B": [0.0011]}
    judge = phones.judge()
    assert judge.look("a", "A").factor == 1.0
    assert judge.look("b", "B").factor == pytest.approx(1.1)
    assert phones.loads == ["A", "B"]


def test_a_phone_is_read_again_only_after_a_while_and_in_a_new_session_loaded_again() -> None:
    phones = Phones()
    phones.speed = {"A": [0.001], "A2": [0.0012]}
    judge = phones.judge()
    judge.look("a", "A")
    phones.now_s = 59
    assert judge.look("a", "A2").factor == 1.0
    assert phones.reads == READINGS
    phones.now_s = 61
    assert judge.look("a", "A2").factor == pytest.approx(1.2)
    assert phones.loads == ["A", "A2"]


def test_a_slow_reading_is_doubted_before_a_phone_is_left_out() -> None:
    phones = Phones()
    phones.speed = {"A": [0.001], "B": [0.002] * READINGS + [0.001]}
    judge = phones.judge()
    judge.look("a", "A")
    assert judge.look("b", "B").out == ""
    assert phones.reads == READINGS * (2 + DOUBTS)
    assert judge.scales["b"] == Scale(1.0, 1.0)


def test_who_is_left_out_stays_out() -> None:
    phones = Phones()
    phones.speed = {"A": [0.001], "B": [0.002]}
    judge = phones.judge()
    judge.look("a", "A")
    out = judge.look("b", "B").out
    assert "100% slower" in out
    assert judge.look("b", "B").out == out
    assert judge.left_out == {"b": out}
