"""The phone's own fuel gauge as a meter. The daemon reads it on the phone, this side makes readings of its lines.

Lines have the phone's uptime; a reading's time is by this host's clock. The line that came fastest shows how both
clocks stand to each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from farm.common.errors import Code, PhoneError
from farm.kinds.energy.meter import SILENT_S, Meter, gauge_error, step_of
from farm.measure import gauge
from farm.measure.energy import PowerReading
from farm.measure.gauge import SETTLE_PERIODS, GaugeLine, GaugeScale, GaugeUpdates, gauge_line, recognised, why_fed
from farm.worker.channel import DaemonChannel

LEARN_S = 90.0  # a phone at rest must have changed its gauge's figure several times by then
FIRST_NAP_S, MAX_NAP_S = 0.1, 2.0
NAPS_PER_PERIOD = 4  # each costs the phone a process
POLL_S = 0.1


class GaugeMeter(Meter):
    """The gauge of the attempt's phone."""

    settle_periods = SETTLE_PERIODS

    def __init__(
        self, daemon: DaemonChannel, *,
        clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._daemon, self._clock, self._wait = daemon, clock, wait
        self._nap_s, self._heard_s = FIRST_NAP_S, clock()
        self._name = ""
        self._begun_s = float("inf")  # when the phone's uptime began, seconds since 1970 by this host's clock
        self._scale: GaugeScale | None = None
        self._updates: GaugeUpdates | None = None

    def period_s(self) -> float:
        """Seconds between two updates of its figure, learned while the phone is at rest.

        Raises:
            UserError: the battery does not feed the phone, or the gauge's figures cannot be believed.
            PhoneError: it says nothing.
        """
        lines: list[GaugeLine] = []
        begun_s = self._clock()
        while (period_s := gauge.period_s(lines)) is None:
            if fed := why_fed(lines):
                raise gauge_error(fed)
            if self._clock() - begun_s > LEARN_S:
                what = gauge.figure_of(lines) or "figure"
                raise gauge_error(f"its gauge's {what} did not change several times in {LEARN_S:.0f} s")
            lines += self._new()
        found = recognised(lines)
        if isinstance(found, str):
            raise gauge_error(found)
        self._scale, self._updates = found, GaugeUpdates(found, period_s)
        self._nap_s = min(max(period_s / NAPS_PER_PERIOD, FIRST_NAP_S), MAX_NAP_S)
        return period_s

    def until(self, end_s: float) -> list[PowerReading]:
        """The readings since the last call, up to one at `end_s` or later.

        Raises:
            UserError: the cable feeds the phone again.
            PhoneError: the gauge fell silent.
        """
        assert self._updates is not None, "its period is asked for first"
        found: list[PowerReading] = []
        seen_s = 0.0
        while seen_s < end_s:
            for line in (lines := self._new()):
                seen_s = self._begun_s + line.uptime_s
                if (reading := self._updates.reading(line, self._begun_s)) is not None:
                    found.append(reading)
            if fed := why_fed(lines):
                raise gauge_error(fed)
        return found

    def step(self, readings: Sequence[PowerReading]) -> float:
        """The smallest difference that it shows, amperes; 0 for a counter, whose changes are counted exactly."""
        counted = self._scale is not None and self._scale.figure != "current"
        return 0.0 if counted else step_of(readings)

    def about(self) -> dict[str, Any]:
        """The facts about the gauge that go into the certificate."""
        assert self._scale is not None, "its period is asked for first"
        return self._scale.about(self._name)

    def _new(self) -> list[GaugeLine]:
        """The lines since the last call; waits a moment where there is none."""
        found: list[GaugeLine] = []
        for arrived_s, text in self._daemon.call("gauge", nap_s=self._nap_s)["lines"]:
            if text.startswith("gauge "):
                self._name = text.removeprefix("gauge ")
                continue
            if (line := gauge_line(text)) is None:
                raise PhoneError(
                    f"the phone's gauge is not understood: {text[:80]!r}", Code.GAUGE_FAILED,
                    hint="`farm shell --on NAME -- cat /sys/class/power_supply/battery/uevent` shows what it says",
                )  # fmt: skip
            self._begun_s = min(self._begun_s, arrived_s - line.uptime_s)
            found.append(line)
        if found:
            self._heard_s = self._clock()
        elif self._clock() - self._heard_s > SILENT_S + self._nap_s:
            raise PhoneError(
                f"the phone's gauge has told nothing for {SILENT_S:.0f} s", Code.GAUGE_FAILED,
                hint="`farm device show NAME` tells whether the phone answers",
            )  # fmt: skip
        else:
            self._wait(POLL_S)
        return found
