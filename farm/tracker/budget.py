"""The memory that slow peers of one door may take together. No I/O."""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """Something that keeps bytes for a peer. Told apart by identity."""

    def evict(self, held_bytes: int) -> None:
        """Give all of them up, and say so by `Budget.hold(self, 0)` before returning."""


class Budget:
    """Counts the bytes that each holder keeps; beyond the limit, whoever keeps most is evicted."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Holder, int] = {}
        self.total_bytes = 0

    def hold(self, holder: Holder, held_bytes: int) -> None:
        """`holder` keeps `held_bytes` from now on. Evicts until all fit, `holder` itself if it keeps most."""
        self.total_bytes += held_bytes - self._held.pop(holder, 0)
        if held_bytes:
            self._held[holder] = held_bytes
        while self.total_bytes > self._limit_bytes:
            largest = max(self._held, key=self._held.__getitem__)  # of equals, the one that has not moved for longest
            largest.evict(self._held[largest])
