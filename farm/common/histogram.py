"""How often something took how long: a count per upper bound and the sum. Kept where it happens, read at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds in seconds. Twelve or so each: every bound is a time series.
QUICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)  # a call on this host
WAIT_S = (0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)  # a person's or job's wait
# From a fault of a phone until it is ready again.
REPAIR_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 6 * 3600.0, 24 * 3600.0)


class Histogram:
    """One series of observations. Written by one thread; a reader of another may miss the latest one."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: upper bounds, ascending, without the infinite one."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # per bucket, not cumulative
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Upper bound and how many were at most that; the last bound is infinite."""
        seen, rows = 0, []
        for bound, count in zip((*self.bounds, float("inf")), tuple(self.counts), strict=True):
            seen += count
            rows.append((bound, seen))
        return rows
