"""Whether it storms, and what was done while it did."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from farm.common.errors import HostError


class Weather:
    """Whether it storms. Threads wait here while it is calm, and calm waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._storms = False
        self._over = False
        self._under_way = 0

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Wait until it storms; False when it is all over. Calm begins after the turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._storms or self._over)
            goes_on = not self._over
            self._under_way += 1
        try:
            yield goes_on
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait, at most until the storm ends."""
        with self._changed:
            self._changed.wait_for(lambda: not self._storms, seconds)

    def storm(self) -> None:
        with self._changed:
            self._storms = True
            self._changed.notify_all()

    def calm(self, limit_s: float) -> None:
        """End the storm; returns when everybody has finished a turn.

        Raises:
            HostError: somebody has not in time.
        """
        with self._changed:
            self._storms = False
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._under_way, limit_s):
                raise HostError(f"{self._under_way} of the storm's threads do not come to rest")

    def end(self) -> None:
        with self._changed:
            self._storms, self._over = False, True
            self._changed.notify_all()


class Tally:
    """What was done and what came of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.blows: list[tuple[float, str, str]] = []  # Unix seconds, phone ("" all), fault
        self.wrong: list[str] = []  # sessions that told wrong numbers
        self.hung = 0  # clients that did not come back

    def add(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def blow(self, phone: str, fault: str) -> None:
        """A fault begins, on one phone or on what they all hang on (no name)."""
        with self._lock:
            self.blows.append((time.time(), phone, fault))
        self.add(fault)
