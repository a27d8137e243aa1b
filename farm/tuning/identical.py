"""Phones of one pool are alike on paper; here it is measured. The rule is pure; `Judge` reads the reference kernel.

A phone's *factor* is how much slower it runs the reference kernel than the pool's first phone did when it joined. What
it measures is divided by that, so heat and lesser chips cost no good candidate its place. A phone that is too far off,
or that became so, is left out: beyond some limit one number cannot stand for another chip's caches and clocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIMIT = 0.15  # a factor further from 1, or from what it was when the phone joined, is too far
EVERY_S = 60.0  # a phone warms up within minutes
READINGS = 5  # about 5 ms each; the least of them counts: whatever gets in the way only adds time
DOUBTS = 4  # so many times as many before a phone is left out


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a phone's results are worth.

    Attributes:
        factor: divide its seconds by this.
        out: why it must not be used in this run any more; empty: it may.
    """

    factor: float = 1.0
    out: str = ""


@dataclass(frozen=True, slots=True)
class Scale:
    """What is known of one phone."""

    joined: float  # its factor when it joined
    now: float

    @property
    def drift(self) -> float:
        """How far it is from where it was."""
        return self.now / self.joined - 1


def opinion(device: str, scale: Scale, limit: float | None, *, first: bool) -> Opinion:
    """Whether a phone may stay. The first one is the measure of all others: it stays, its drift is taken out.

    Args:
        device: its name, for the words.
        scale: what was measured.
        limit: how far from 1 is too far; None: nothing is.
        first: whether it is the pool's first phone.
    """
    if limit is None or first:
        return Opinion(scale.now)
    if abs(scale.now - 1) > limit:
        how = "slower" if scale.now > 1 else "faster"
        return Opinion(
            scale.now,
            f"{device} runs the reference kernel {abs(scale.now - 1):.0%} {how} than the first phone "
            f"(at most {limit:.0%}): it is not identical",
        )
    if abs(scale.drift) > limit:
        return Opinion(scale.now, f"{device} has drifted by {scale.drift:+.0%} since it joined (at most {limit:.0%})")
    return Opinion(scale.now)


class Judge:
    """Asked by the threads that serve the phones, each about its own."""

    def __init__(
        self,
        load: Callable[[Any], Callable[[], float]],
        *,
        limit: float | None = LIMIT,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load`: puts the kernel into a raw `tvm.rpc` session; what it returns reads once, in seconds."""
        self._load = load
        self._limit = limit
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._nominal_s: float | None = None
        self._first = ""
        self._loaded: dict[str, tuple[Any, Callable[[], float]]] = {}
        self._looked_s: dict[str, float] = {}
        self.scales: dict[str, Scale] = {}
        self.left_out: dict[str, str] = {}

    def look(self, device: str, session: Any) -> Opinion:
        """What `device` is worth now; measured when it joins and then from time to time, else remembered.

        Args:
            device: the phone's name.
            session: an open `tvm.rpc.RPCSession` to it, which nothing else uses meanwhile.

        Raises:
            Exception: what TVM raises when the session breaks.
        """
        now_s = self._clock()
        if device in self.scales and now_s - self._looked_s[device] < self._every_s:
            return Opinion(self.scales[device].now, self.left_out.get(device, ""))
        found = self._judged(device, self._read_s(device, session, READINGS))
        if found.out:
            found = self._judged(device, self._read_s(device, session, READINGS * DOUBTS))
        self._looked_s[device] = now_s
        if found.out:
            self.left_out[device] = found.out
        return found

    def _read_s(self, device: str, session: Any, readings: int) -> float:
        known, read = self._loaded.get(device, (None, None))
        if known is not session or read is None:
            read = self._load(session)
            # The reading of an earlier session is freed here: that session has ended, so nobody is asked for it.
            self._loaded[device] = (session, read)
        return min(read() for _ in range(readings))

    def _judged(self, device: str, seconds: float) -> Opinion:
        with self._lock:
            if self._nominal_s is None:
                self._nominal_s, self._first = seconds, device
            factor = seconds / self._nominal_s
            before = self.scales.get(device)
            # While a phone is doubted at its joining, the better reading is its joining.
            joined = before.joined if before and device in self._looked_s else factor
            self.scales[device] = Scale(joined, factor)
            return opinion(device, self.scales[device], self._limit, first=device == self._first)
