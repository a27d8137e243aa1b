"""The phone's own power rails as a meter: its `perfetto` counts them for the whole run and is asked at the end.

The counters are the chip's and cumulative: a batch that comes late is as exact as one that comes at once.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Self

from farm.kinds.energy.cycles import CyclePlan, CycleTimes, added, cycles_of
from farm.kinds.energy.meter import rails_error
from farm.measure.energy import EnergyEstimate, EnergyNotResolved, PowerReading, estimate
from farm.measure.rails import SETTLE_PERIODS, PowerRail, UptimeClock, read_rails, readings_of
from farm.worker.channel import DaemonChannel


class RailsMeter:
    """The rails of the attempt's phone; `period_s` is what a short trace showed before."""

    settle_periods = SETTLE_PERIODS

    def __init__(self, daemon: DaemonChannel, period_s: float) -> None:
        self._daemon, self._period_s = daemon, period_s
        self._rails: list[PowerRail] = []
        self._net_j: dict[str, float] = {}  # of an inference, by the rail's name

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """The daemon ends the trace with the attempt."""

    def period_s(self) -> float:
        """Seconds between two counts; they begin."""
        self._daemon.call("rails.watch")
        return self._period_s

    def until(self, end_s: float) -> list[PowerReading]:  # noqa: ARG002 - as other meters
        """None: they come at the end.

        Raises:
            PhoneError: the phone stopped counting.
        """
        self._daemon.call("rails.watch")
        return []

    def joules(
        self, times: Sequence[CycleTimes], planned: CyclePlan, half_width: float
    ) -> EnergyEstimate | EnergyNotResolved:
        """The joules of one inference through the rails that count, and for the certificate those of each rail.

        Raises:
            PhoneError: the phone's trace is none, or names no rail.
        """
        clock = self._read()
        by_rail = {}
        for rail in self._rails:
            found = cycles_of(readings_of(rail, clock), times, planned, 0.0)  # energy is counted exactly: no steps
            if not isinstance(found, EnergyNotResolved):
                by_rail[rail.name] = found
            elif rail.counted:
                return found
        counted = [by_rail[rail.name] for rail in self._rails if rail.counted]
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

    def _read(self) -> UptimeClock:
        trace, total = b"", 1
        while len(trace) < total:
            answer = self._daemon.call("rails.read", offset=len(trace))
            trace, total = trace + base64.b64decode(answer["data"]), answer["total"]
        try:
            self._rails = read_rails(trace)
        except ValueError as error:
            raise rails_error(str(error)) from error
        if not any(each.counted for each in self._rails):
            raise rails_error("its trace of the whole run names none")
        begun, ended = answer["clock"]
        return UptimeClock(tuple(begun), tuple(ended))
