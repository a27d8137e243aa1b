"""Readings of every device over time, in bounded memory: an hour as they came, a day at five minutes. No I/O.

About 2.6 kB for each column (a sensor, a clock): 24 columns of 200 devices are 13 MB.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from farm.model.health import Health

FINE_S = 3600.0
FINE_ROWS = 360  # one in 10 s, as often as a device is probed
COARSE_S = 24 * 3600.0
COARSE_EVERY_S = 300.0
COARSE_ROWS = 288
MAX_COLUMNS = 24
LINE_POINTS = 40  # of the wall's line: drawn for every device at once
LINE_EVERY_S = FINE_S / LINE_POINTS
SHOWN = "TEMP"  # the one temperature that people see beside a device's name


class Quantity(StrEnum):
    """The quantity of a column; `UNITS` has its unit."""

    TEMPERATURE = "temperature"
    BATTERY = "battery"
    CLOCK = "clock"


UNITS = {Quantity.TEMPERATURE: "°C", Quantity.BATTERY: "%", Quantity.CLOCK: "MHz"}
Column = tuple[Quantity, str]  # what, of which sensor or core


def columns_of(health: Health, shown_c: float | None) -> dict[Column, float]:
    """The figures of one probe that are kept."""
    row: dict[Column, float] = {}
    if shown_c is not None:
        row[Quantity.TEMPERATURE, SHOWN] = shown_c
    if health.battery.percent is not None:
        row[Quantity.BATTERY, "battery"] = float(health.battery.percent)
    if health.battery.celsius is not None:
        row[Quantity.TEMPERATURE, "battery"] = health.battery.celsius
    for cluster in health.cpu:
        if cluster.khz is not None and cluster.cores:
            row[Quantity.CLOCK, f"cpu {cluster.span}"] = cluster.khz / 1e3
    if health.gpu.clock_hz is not None:
        row[Quantity.CLOCK, "gpu"] = health.gpu.clock_hz / 1e6
    hottest: dict[str, float] = {}
    for each in health.temperatures:  # one line for each part of the phone: some have 80 sensors
        hottest[each.group.value] = max(each.celsius, hottest.get(each.group.value, -math.inf))
    for group, value in hottest.items():
        row.setdefault((Quantity.TEMPERATURE, group), value)
    return row


@dataclass(slots=True)
class _Ring:
    """Rows of a fixed number of columns that come and go; the oldest is overwritten."""

    rows: int
    at_s: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[Column, array[float]] = field(default_factory=dict)
    start: int = 0

    def add(self, at_s: float, row: Mapping[Column, float]) -> None:
        full = len(self.at_s) == self.rows
        for column in row:
            if column not in self.columns and len(self.columns) < MAX_COLUMNS:
                self.columns[column] = array("f", [math.nan]) * len(self.at_s)
        if full:
            self.at_s[self.start] = at_s
            for column, values in self.columns.items():
                values[self.start] = row.get(column, math.nan)
            self.start = (self.start + 1) % self.rows
        else:
            self.at_s.append(at_s)
            for column, values in self.columns.items():
                values.append(row.get(column, math.nan))

    def order(self) -> Iterator[int]:
        """Places of the rows, oldest first."""
        count = len(self.at_s)
        return ((self.start + number) % count for number in range(count))


class ReadingSeries:
    """Readings of one device."""

    def __init__(self) -> None:
        self._fine = _Ring(FINE_ROWS)
        self._coarse = _Ring(COARSE_ROWS)
        self._line: deque[tuple[int, float]] = deque(maxlen=LINE_POINTS)  # place in time, the latest there
        self._bucket_s = -math.inf  # when the bucket under way began
        self._first_s = -math.inf  # when its first probe was: before that nothing was read
        self._sums: dict[Column, tuple[float, int, float]] = {}  # sum, count, greatest

    def add(self, at_s: float, row: Mapping[Column, float]) -> None:
        """One probe's figures; `at_s` is seconds since the epoch, not before the last one's."""
        self._fine.add(at_s, row)
        if (shown := row.get((Quantity.TEMPERATURE, SHOWN))) is not None:
            place = int(at_s // LINE_EVERY_S)
            if self._line and self._line[-1][0] == place:
                self._line.pop()
            self._line.append((place, round(shown, 1)))
        bucket_s = at_s // COARSE_EVERY_S * COARSE_EVERY_S
        if bucket_s != self._bucket_s:
            self._flush()
            self._bucket_s, self._first_s = bucket_s, at_s
        for column, value in row.items():
            total, count, greatest = self._sums.get(column, (0.0, 0, -math.inf))
            self._sums[column] = (total + value, count + 1, max(greatest, value))

    def line(self, now_s: float) -> list[float | None]:
        """The shown temperature of the last hour at `LINE_POINTS` places, oldest first; None where nothing was read."""
        first = int(now_s // LINE_EVERY_S) - LINE_POINTS + 1
        found: list[float | None] = [None] * LINE_POINTS
        for place, value in self._line:
            if 0 <= place - first < LINE_POINTS:
                found[place - first] = value
        return found

    def read(self, since_s: float) -> tuple[list[float], dict[Column, list[float | None]]]:
        """Times and columns from `since_s` on: five-minute rows (greatest temperature, mean of the rest), then all."""
        oldest_fine_s = min((self._fine.at_s[place] for place in self._fine.order()), default=math.inf)
        rows = [(self._coarse, place) for place in self._coarse.order() if self._coarse.at_s[place] < oldest_fine_s]
        rows += [(self._fine, place) for place in self._fine.order()]
        rows = [(ring, place) for ring, place in rows if ring.at_s[place] >= since_s]
        names = list(dict.fromkeys((*self._fine.columns, *self._coarse.columns)))
        return [ring.at_s[place] for ring, place in rows], {name: _column(rows, name) for name in names}

    def _flush(self) -> None:
        if self._sums:
            self._coarse.add(
                self._first_s,
                {
                    column: greatest if column[0] is Quantity.TEMPERATURE else total / count
                    for column, (total, count, greatest) in self._sums.items()
                },
            )
        self._sums = {}


def _column(rows: Sequence[tuple[_Ring, int]], name: Column) -> list[float | None]:
    found: list[float | None] = []
    for ring, place in rows:
        values = ring.columns.get(name)
        value = math.nan if values is None else values[place]
        found.append(None if math.isnan(value) else round(value, 2))
    return found


MAX_DEVICES = 2000  # serials ever seen; beyond that the one longest silent goes


class FleetReadings:
    """A series by serial: a renamed device keeps its own."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch."""
        self.clock = clock
        self._series: dict[str, ReadingSeries] = {}

    def add(self, serial: str, health: Health, shown_c: float | None) -> None:
        """Add the readings of a probe."""
        series = self._series.pop(serial, None) or ReadingSeries()
        if len(self._series) >= MAX_DEVICES:
            del self._series[next(iter(self._series))]
        self._series[serial] = series
        series.add(self.clock(), columns_of(health, shown_c))

    def of(self, serial: str) -> ReadingSeries:
        """The readings of a device; empty before its first."""
        return self._series.get(serial) or ReadingSeries()
