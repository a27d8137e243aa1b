"""Delays between tries that double."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_DOUBLINGS = 30  # any limit is reached by then, and a float overflows at 1024


@dataclass(frozen=True, slots=True)
class BackOff:
    """`first_s`, twice that, ... at most `limit_s`."""

    first_s: float
    limit_s: float

    def delay_s(self, failures: int) -> float:
        """The delay after that many failures in a row (at least one)."""
        return min(self.limit_s, self.first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
