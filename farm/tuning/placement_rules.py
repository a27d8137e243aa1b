"""Where a candidate is built: on a builder, on this host, or on both. Decisions only: no I/O, no clock.

Builders come first: this host's cores also search. Without builders everything goes to the host's own build server at
once, which queues. With builders each side gets what it has room for and the rest waits, so that neither runs empty
while the other has a queue. What a builder does not answer in time is built here too; the first whole library wins.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

MIN_WAIT_S = 5.0  # for a builder's answer
MEDIANS = 4.0  # times what builders usually take
REMEMBERED = 64  # answers, for the median


@dataclass(frozen=True, slots=True)
class Place:
    """Have the candidate of that number built there now."""

    number: int
    remote: bool


@dataclass(slots=True)
class Placement:
    """The candidates of a run that are not built yet."""

    local_slots: int
    remote_slots: int = 0  # that the farm grants to this run
    waiting: deque[int] = field(default_factory=deque)
    local: set[int] = field(default_factory=set)
    remote: dict[int, float] = field(default_factory=dict)  # since when, in the order of placing
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # of builders' libraries

    @property
    def limit_s(self) -> float:
        """How long a builder may take before the candidate is built here too."""
        return max(MIN_WAIT_S, MEDIANS * median(self.took_s)) if self.took_s else MIN_WAIT_S

    def place(self, now_s: float) -> list[Place]:
        """The new placements of builds; each is returned once."""
        late = [number for number, since_s in self.remote.items() if now_s - since_s >= self.limit_s]
        placed = [Place(number, remote=False) for number in late if number not in self.local]
        self.local.update(late)
        while self.waiting:
            if len(self.remote) < self.remote_slots:
                number = self.waiting.popleft()
                self.remote[number] = now_s
                placed.append(Place(number, remote=True))
            elif not self.remote_slots or len(self.local) < self.local_slots:
                number = self.waiting.popleft()
                self.local.add(number)
                placed.append(Place(number, remote=False))
            else:
                break
        return placed

    def grant(self, slots: int) -> list[Place]:
        """So many candidates may be at builders from now on; with none, all that they had is built here."""
        self.remote_slots = slots
        return [] if slots else [each for number in list(self.remote) for each in self.not_built(number)]

    def not_built(self, number: int) -> list[Place]:
        """Builders gave no library for it: it is built here, at once."""
        if self.remote.pop(number, None) is None or number in self.local:
            return []
        self.local.add(number)
        return [Place(number, remote=False)]

    def answered(self, number: int, now_s: float) -> None:
        """A builder gave its library."""
        if (since_s := self.remote.get(number)) is not None:
            self.took_s.append(now_s - since_s)

    def ended(self, number: int) -> bool:
        """It has its answer; whether a builder still works at it."""
        self.local.discard(number)
        return self.remote.pop(number, None) is not None
