"""The phone's own power rails as a meter: its `perfetto` counts them in traces, one after another.

The counters are the chip's and cumulative: a batch that comes late is as exact as one that comes at once, and what was
taken between two traces is in the second one.
"""

from __future__ import annotations

import base64
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from farm.kinds.energy.cycles import CyclePlan, CycleTimes, added, cycles_of
from farm.kinds.energy.gauge import GaugeMeter
from farm.kinds.energy.meter import Meter, PowerMeter, rails_error
from farm.kinds.energy.spec import PowerSource
from farm.measure.energy import EnergyEstimate, EnergyNotResolved, PowerReading, estimate
from farm.measure.rails import SETTLE_PERIODS, PowerRail, UptimeClock, read_rails, readings_of
from farm.worker.channel import DaemonChannel


class RailsMeter(Meter):
    """The rails of the attempt's phone; `period_s` is what a short trace showed before."""

    settle_periods = SETTLE_PERIODS

    def __init__(self, daemon: DaemonChannel, period_s: float) -> None:
        self._daemon, self._period_s = daemon, period_s
        self._rails: list[PowerRail] = []
        self._net_j: dict[str, float] = {}  # of an inference, by the rail's name

    @property
    def counted(self) -> Sequence[str]:
        """The rails whose readings add up to the power; none before the first trace."""
        return [each.name for each in self._rails if each.counted]

    def period_s(self) -> float:
        """Seconds between two counts; they begin."""
        list(self.until(0.0))
        return self._period_s

    def until(self, end_s: float) -> Iterator[PowerReading]:  # noqa: ARG002 - as other meters
        """The readings of all rails in traces that have ended since the last call.

        Raises:
            PhoneError: the phone stopped counting, or printed something else than a trace.
        """
        return self._new(last=False)

    def rest(self) -> Iterator[PowerReading]:
        """Those of the last trace, which ends now.

        Raises:
            PhoneError: as `until`, or no trace names a rail that counts.
        """
        yield from self._new(last=True)
        if not self.counted:
            raise rails_error("its traces of the whole run name none")

    def joules(
        self, readings: Sequence[PowerReading], times: Sequence[CycleTimes], planned: CyclePlan, half_width: float
    ) -> EnergyEstimate | EnergyNotResolved:
        """The joules of one inference through the rails that count, and for the certificate those of each rail."""
        by_rail = {}
        for rail in self._rails:
            own = [each for each in readings if each.rail == rail.name]
            found = cycles_of(own, times, planned, 0.0)  # energy is counted exactly: no steps
            if not isinstance(found, EnergyNotResolved):
                by_rail[rail.name] = found
            elif rail.counted:
                return found
        counted = [by_rail[name] for name in self.counted]
        total = estimate([added(each) for each in zip(*counted, strict=True)], planned.run_s, half_width)
        if isinstance(total, EnergyEstimate):
            for name, cycles in by_rail.items():
                self._net_j[name] = sum(each.net_j for each in cycles[-total.cycles :]) / total.cycles
        return total

    def about(self) -> dict[str, Any]:
        """The facts about the rails that go into the certificate."""
        net_j = self._net_j
        rails = [
            {"name": each.name, "subsystem": each.subsystem, "counted": each.counted, "net_j": net_j.get(each.name)}
            for each in self._rails
        ]
        return {"source": "power rails", "rails": rails}

    def _new(self, *, last: bool) -> Iterator[PowerReading]:
        while answer := self._daemon.call("rails.read", last=last):
            clock = UptimeClock(*map(tuple, answer["clock"]))
            try:
                self._rails = read_rails(base64.b64decode(answer["trace"]), self._rails)
            except ValueError as error:
                raise rails_error(str(error)) from error
            yield from (reading for rail in self._rails for reading in readings_of(rail, clock))


@contextlib.contextmanager
def opened_meter(source: PowerSource, daemon: DaemonChannel) -> Iterator[PowerMeter | GaugeMeter | RailsMeter]:
    """The meter that a source names. The daemon ends the reading of a phone with the attempt.

    Raises:
        HostError: its command cannot be started.
    """
    if source.meter:
        with tempfile.TemporaryDirectory() as folder, PowerMeter(source.meter, Path(folder)) as meter:
            yield meter
    else:
        yield GaugeMeter(daemon) if source.rails_period_s is None else RailsMeter(daemon, source.rails_period_s)
