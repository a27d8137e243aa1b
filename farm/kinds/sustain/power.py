"""The power of a phone between two looks of a sustained run, by the power meter that it may have.

A meter that fails does not end the run: its readings until then count, and a note gives the reason.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from farm.common.errors import HostError
from farm.kinds.energy.meter import PowerMeter
from farm.measure.conditions import PhoneCondition
from farm.measure.energy import window


class RunPower:
    """The mean power of each stretch between two looks, in `watts`; None: it is not known."""

    def __init__(self, meter: PowerMeter | None, clock: Callable[[], float] = time.time) -> None:
        """`meter` None: the phone has none. `clock`: the one of the meter's readings."""
        self.watts: list[float | None] = []
        self.period_s: float | None = None
        self.why_not = ""
        self._meter, self._clock = meter, clock
        self._begun_s: float | None = None
        if meter is not None:
            with self._noting_failure():
                self.period_s = meter.period_s()

    def around(self, look: Callable[[], PhoneCondition]) -> Callable[[], PhoneCondition]:
        """A look at the phone that ends a stretch before it, and begins the next one after it."""

        def looked() -> PhoneCondition:
            if self._begun_s is not None:
                self.watts.append(self._since(self._begun_s))
            found = look()
            self._begun_s = self._clock()
            return found

        return looked

    def notes(self) -> list[str]:
        """Why the power is not known, or not to the end; nothing where the meter did its part, or there is none."""
        return [f"its power is not known to the end: {self.why_not}"] if self.why_not else []

    def _since(self, begun_s: float) -> float | None:
        ended_s, found = self._clock(), None
        if self._meter is not None and self.period_s is not None and not self.why_not:
            with self._noting_failure():
                readings = self._meter.until(ended_s)
                # Until it has settled, the power includes that of reading the phone.
                settled_s = begun_s + PowerMeter.settle_periods * self.period_s
                found = window(readings, settled_s, ended_s, 0.0)
        return None if found is None else found.watts

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except HostError as error:
            self.why_not = error.message


@contextlib.contextmanager
def run_power(words: Sequence[str], why_not: str = "") -> Iterator[RunPower]:
    """The power of a phone whose meter is the command `words`; () where it has none, or is not read: `why_not`."""
    with contextlib.ExitStack() as stack:
        power = RunPower(None)
        power.why_not = why_not
        if words:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                power = RunPower(stack.enter_context(PowerMeter(words, folder)))
            except HostError as error:
                power.why_not = error.message
        yield power
