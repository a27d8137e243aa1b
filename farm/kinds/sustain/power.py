"""The power of a phone between two looks of a sustained run, by what measures it: meter, power rails or fuel gauge.

A source that fails does not end the run: its readings until then count, and a note gives the reason.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from farm.common.errors import FarmError
from farm.kinds.energy.meter import Meter
from farm.kinds.energy.rails import opened_meter
from farm.kinds.energy.spec import PowerSource
from farm.measure.conditions import PhoneCondition
from farm.measure.energy import PowerReading, window
from farm.worker.channel import DaemonChannel


class RunPower:
    """The mean power of each stretch between two looks, in `watts` once it has ended; None: it is not known.

    Of the readings it keeps those of stretches that a batch does not cover yet.
    """

    def __init__(self, meter: Meter | None, why_not: str = "", clock: Callable[[], float] = time.time) -> None:
        """`meter` None: nothing measures the power, for the reason `why_not`. `clock`: the one of the readings."""
        self.watts: list[float | None] = []
        self.period_s: float | None = None
        self._meter, self._why_not, self._clock = meter, why_not, clock
        self._begun_s: float | None = None
        self._stretches: deque[tuple[float, float]] = deque()  # that await their readings
        self._readings: list[PowerReading] = []
        if meter is not None:
            with self._noting_failure():
                self.period_s = meter.period_s()

    def around(self, look: Callable[[], PhoneCondition]) -> Callable[[], PhoneCondition]:
        """A look at the phone that ends a stretch before it, and begins the next one after it."""

        def looked() -> PhoneCondition:
            if self._begun_s is not None:
                self._stretches.append((self._begun_s, self._clock()))
                self._read(self._begun_s)  # what is there: the phone must not wait for a meter
                self._take(to_end=False)
            found = look()
            self._begun_s = self._clock()
            return found

        return looked

    def end(self) -> None:
        """Read what is left; the last look was the run's end."""
        if self._stretches:
            self._read(self._stretches[-1][1], rest=True)
        self._take(to_end=True)
        if self.period_s is not None and not self._why_not and not any(self.watts):
            self._why_not = f"a reading every {self.period_s:.3g} s is too rare between two looks at the phone"

    def about(self) -> dict[str, Any] | None:
        """What measured it, for the certificate; None: nothing."""
        if self._meter is None or self.period_s is None:
            return None
        return {**self._meter.about(), "period_s": self.period_s}

    def notes(self) -> list[str]:
        """Why the power is not known, or not to the end; nothing where the source did its part."""
        known = " to the end" if any(self.watts) else ""
        return [f"its power is not known{known}: {self._why_not}"] if self._why_not else []

    def _read(self, end_s: float, *, rest: bool = False) -> None:
        if self._meter is None or self._why_not:
            return
        with self._noting_failure():  # what was given before it stays
            self._readings += self._meter.until(end_s)
            if rest:
                self._readings += self._meter.rest()

    def _take(self, *, to_end: bool) -> None:
        """The watts of the stretches that readings cover; `to_end`: of all, as far as they do."""
        rails = [] if self._meter is None else self._meter.counted
        sources = [[each for each in self._readings if each.rail == rail] for rail in rails]
        told_s = min((each[-1].at_s if each else 0.0 for each in sources), default=0.0)
        while self._stretches and (to_end or self._stretches[0][1] <= told_s):
            self.watts.append(self._mean_w(sources, *self._stretches.popleft()))
        needed_s = self._stretches[0][0] if self._stretches else self._clock()
        self._readings = [each for each in self._readings if each.at_s > needed_s]

    def _mean_w(self, sources: list[list[PowerReading]], begun_s: float, ended_s: float) -> float | None:
        if self._meter is None or self.period_s is None or not sources:
            return None
        # Until it has settled, the power includes that of reading the phone.
        settled_s = begun_s + self._meter.settle_periods * self.period_s
        found = [window(each, settled_s, ended_s, 0.0) for each in sources]
        known = [each.watts for each in found if each is not None]
        return sum(known) if len(known) == len(found) else None

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except FarmError as error:
            self._why_not = error.message


@contextlib.contextmanager
def run_power(source: PowerSource, daemon: DaemonChannel) -> Iterator[RunPower]:
    """The power of a run by a source, whose commands end with the context."""
    if source.none:
        yield RunPower(None, source.none)
        return
    daemon.progress("reading the power")
    with contextlib.ExitStack() as stack:
        try:
            power = RunPower(stack.enter_context(opened_meter(source, daemon)))
        except FarmError as error:
            power = RunPower(None, error.message)
        yield power
