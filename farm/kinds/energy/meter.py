"""What measures the power of a phone: a meter beside it, the phone's fuel gauge, or its power rails.

A meter is a command of the farm's configuration that prints `seconds,watts` lines until it is ended. Its output goes
into a file, which is read between windows: a worker that waits for the phone holds no reading up.

The daemon reads the fuel gauge on the phone; this side makes readings of its lines. Lines have the phone's uptime; a
reading's time is by this host's clock. The line that came fastest shows how both clocks stand to each other.

The phone's `perfetto` counts its power rails in traces, one after another. The counters are the chip's and
cumulative: a batch that comes late is as exact as one that comes at once, and what was taken between two traces is in
the second one.
"""

from __future__ import annotations

import base64
import contextlib
import math
import shlex
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

from farm.common.errors import Code, HostError, PhoneError, UserError
from farm.kinds.energy import PowerSource
from farm.kinds.energy.cycles import CyclePlan, CycleTimes, added, cycles_of
from farm.measure import gauge
from farm.measure.energy import EnergyEstimate, EnergyNotResolved, PowerReading, estimate
from farm.measure.gauge import SETTLE_PERIODS, GaugeLine, GaugeScale, GaugeUpdates, gauge_line, recognised, why_fed
from farm.measure.rails import RAILS_SETTLE_PERIODS, PowerRail, UptimeClock, read_rails, readings_of
from farm.worker.channel import DaemonChannel

SILENT_S = 10.0  # a meter that prints nothing for so long has stopped
MAX_APART_S = 2.0  # between its clock and this host's
MAX_BYTES = 256 << 20  # that it may print
MAX_IDLE_W = 100.0  # of a phone or board with its charger; a phone in milliwatts is above
MIN_FIRST = 5  # readings from which its period is known
END_S = 5.0  # it may take so long to end
POLL_S = 0.01
LEARN_S = 90.0  # a phone at rest must have changed its gauge's figure several times by then
FIRST_NAP_S, MAX_NAP_S = 0.1, 2.0
NAPS_PER_PERIOD = 4  # each costs the phone a process
GAUGE_POLL_S = 0.1


class Meter(ABC):
    """What measures a phone's power while a model runs: a command, or the phone's own rails or gauge."""

    settle_periods: float  # for so many of them after a change of load its readings include what was before

    @property
    def counted(self) -> Sequence[str]:
        """The rails whose readings add up to the power; "": a reading is of the whole phone."""
        return ("",)

    @abstractmethod
    def period_s(self) -> float:
        """Seconds between two readings; they begin."""

    @abstractmethod
    def until(self, end_s: float) -> Iterable[PowerReading]:
        """The readings since the last call, up to one at `end_s` or later if they do not come in batches."""

    def rest(self) -> Iterable[PowerReading]:
        """Those of a batch that is not complete: the run has ended."""
        return ()

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """The facts about it that go into the certificate, once its period is known."""


class PowerMeter(Meter):
    """A running meter command."""

    settle_periods = 1.5  # a reading is a mean over the meter's period

    def __init__(
        self, words: Sequence[str], folder: Path, *,
        clock: Callable[[], float] = time.time, wait: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """Start it. `folder`: gets its output; `clock`: seconds since 1970."""
        self._words, self._clock, self._wait = words, clock, wait
        self._output, self._complaints = folder / "meter.csv", folder / "meter.err"
        self._read, self._lines, self._heard_s = 0, 0, clock()
        try:
            with self._output.open("wb") as output, self._complaints.open("wb") as complaints:
                self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=complaints)
        except OSError as error:
            raise self._failed(f"cannot be started: {error.strerror}") from error

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the command."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def period_s(self) -> float:
        """Seconds between two of its readings, from its first ones."""
        first = self._until(lambda found: len(found) >= MIN_FIRST)
        apart_s = first[-1].at_s - self._clock()
        if abs(apart_s) > MAX_APART_S + SILENT_S * (apart_s < 0):
            raise self._failed(
                f"tells a time that is {apart_s:+.0f} s from this host's: it must print seconds since 1970"
            )
        idle_w = median(each.watts for each in first)
        if abs(idle_w) > MAX_IDLE_W:
            raise self._failed(f"tells {idle_w:,.0f} W of an idle phone: it must print watts, not milliwatts")
        return (first[-1].at_s - first[0].at_s) / (len(first) - 1)

    def until(self, end_s: float) -> list[PowerReading]:
        """The readings since the last call, up to one at `end_s` or later."""
        return self._until(lambda found: bool(found) and found[-1].at_s >= end_s)

    def step(self, readings: Sequence[PowerReading]) -> float:
        """The smallest difference that it shows, watts."""
        return step_of(readings)

    def about(self) -> dict[str, Any]:
        """The facts about the meter that go into the certificate."""
        return {"source": "meter", "command": list(self._words)}

    def _until(self, enough: Callable[[list[PowerReading]], bool]) -> list[PowerReading]:
        found = self._new()
        while not enough(found):
            ended = self._process.poll()
            new = self._new()
            found += new
            if ended is not None and not new:
                raise self._failed(f"ended with {ended} in the middle of the measurement")
            if self._clock() - self._heard_s > SILENT_S:
                raise self._failed(f"has printed nothing for {SILENT_S:.0f} s")
            if not new:
                self._wait(POLL_S)
        return found

    def _new(self) -> list[PowerReading]:
        if self._read > MAX_BYTES:
            raise self._failed(f"printed more than {MAX_BYTES >> 20} MiB; let it print means, 100 a second are enough")
        with self._output.open("rb") as output:
            output.seek(self._read)
            whole, newline, _ = output.read().rpartition(b"\n")
        if not newline:
            return []
        self._read += len(whole) + 1
        self._heard_s = self._clock()
        return [self._reading(line) for line in whole.decode(errors="replace").splitlines()]

    def _reading(self, line: str) -> PowerReading:
        self._lines += 1
        reading = reading_of(line)
        if reading is None:
            raise self._failed(f"printed no `seconds,watts` in line {self._lines}: {line[:80]!r}")
        return reading

    def _failed(self, what: str) -> HostError:
        said = self._complaints.read_text(errors="replace")[-2000:] if self._complaints.exists() else ""
        return HostError(
            f"the power meter ({shlex.join(self._words)}) {what}",
            Code.POWER_METER_FAILED,
            hint="run the command by hand; docs/energy.md says what it must print",
            evidence=said,
        )


def reading_of(line: str) -> PowerReading | None:
    """A line `seconds,watts`; None: it is none. Pure."""
    try:
        at_s, watts = (float(part) for part in line.split(","))
    except ValueError:
        return None
    return PowerReading(at_s, watts) if math.isfinite(at_s) and math.isfinite(watts) and at_s > 0 else None


def step_of(readings: Sequence[PowerReading]) -> float:
    """The smallest difference between the values that a meter shows, watts per volt; 0: only one value. Pure."""
    values = sorted({each.watts / each.volts for each in readings})
    largest = max(map(abs, values), default=0.0)
    steps = [above - below for below, above in pairwise(values) if above - below > 1e-9 * largest]
    return min(steps, default=0.0)


def gauge_error(why: str) -> UserError:
    """The error of a gauge that does not show the phone's power; `why` is a clause."""
    return UserError(
        f"the phone's fuel gauge cannot tell its power: {why}", Code.POWER_NOT_MEASURABLE,
        hint="docs/energy.md: when a fuel gauge serves; a power meter is named in [power.meter]",
    )  # fmt: skip


def rails_error(why: str, evidence: str = "") -> PhoneError:
    """The error of power rails that fail in the middle of a run; `why` is a clause."""
    return PhoneError(
        f"the phone's power rails cannot be read: {why}", Code.GAUGE_FAILED, evidence=evidence,
        hint="`farm shell --on NAME -- perfetto --version` shows whether it can; docs/energy.md names what rails need",
    )  # fmt: skip


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
        """Seconds between two updates of its figure, learned while the phone is at rest."""
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
        """The readings since the last call, up to one at `end_s` or later."""
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
            self._wait(GAUGE_POLL_S)
        return found


class RailsMeter(Meter):
    """The rails of the attempt's phone; `period_s` is what a short trace showed before."""

    settle_periods = RAILS_SETTLE_PERIODS

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
        """The readings of all rails in traces that have ended since the last call."""
        return self._new(last=False)

    def rest(self) -> Iterator[PowerReading]:
        """Those of the last trace, which ends now."""
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
    """The meter that a source names. The daemon ends the reading of a phone with the attempt."""
    if source.meter:
        with tempfile.TemporaryDirectory() as folder, PowerMeter(source.meter, Path(folder)) as meter:
            yield meter
    else:
        yield GaugeMeter(daemon) if source.rails_period_s is None else RailsMeter(daemon, source.rails_period_s)
