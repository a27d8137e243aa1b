"""A power meter: a command of the farm's configuration that prints `seconds,watts` lines until it is ended.

Its output goes into a file, which is read between windows: a worker that waits for the phone holds no reading up.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from farm.common.errors import Code, HostError, PhoneError, UserError
from farm.measure.energy import PowerReading

SILENT_S = 10.0  # a meter that prints nothing for so long has stopped
MAX_APART_S = 2.0  # between its clock and this host's
MAX_BYTES = 256 << 20  # that it may print
MIN_FIRST = 5  # readings from which its period is known
END_S = 5.0  # it may take so long to end
POLL_S = 0.01


class Meter(ABC):
    """What measures a phone's power while a model runs: a command, or the phone's own rails or gauge."""

    settle_periods: float  # for so many of them after a change of load its readings include what was before

    @property
    def counted(self) -> Sequence[str]:
        """The rails whose readings add up to the power; "": a reading is of the whole phone."""
        return ("",)

    @abstractmethod
    def period_s(self) -> float:
        """Seconds between two readings; they begin.

        Raises:
            FarmError: it does not measure the power.
        """

    @abstractmethod
    def until(self, end_s: float) -> Iterable[PowerReading]:
        """The readings since the last call, up to one at `end_s` or later if they do not come in batches.

        Raises:
            FarmError: it stopped, or printed something else; the readings before it may have been given.
        """

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
        """Start it. `folder`: gets its output; `clock`: seconds since 1970.

        Raises:
            HostError: it cannot be started.
        """
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
        """Seconds between two of its readings, from its first ones.

        Raises:
            HostError: it stopped, prints something else, or its clock is another.
        """
        first = self._until(lambda found: len(found) >= MIN_FIRST)
        apart_s = first[-1].at_s - self._clock()
        if abs(apart_s) > MAX_APART_S + SILENT_S * (apart_s < 0):
            raise self._failed(
                f"tells a time that is {apart_s:+.0f} s from this host's: it must print seconds since 1970"
            )
        return (first[-1].at_s - first[0].at_s) / (len(first) - 1)

    def until(self, end_s: float) -> list[PowerReading]:
        """The readings since the last call, up to one at `end_s` or later.

        Raises:
            HostError: it stopped, or prints something else.
        """
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
