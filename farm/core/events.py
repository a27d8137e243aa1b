"""What happened, in order: the farm's event log as plain values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

EPOCH_SHIFT = 32  # bits of a number that count within one run of the daemon; JSON readers keep 53 in all
KEPT_EVENTS = 20_000  # in memory; about 10 MB. Older ones are gone for `since=` readers.


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `kind` is past tense with its room: `device.ready`, `session.cut`, `lease.granted`."""

    seq: int
    at: datetime
    kind: str
    subject: str  # device name, lease id, job id ...
    data: Mapping[str, object] = field(default_factory=dict)


class EventLog:
    """Numbers events and hands them to listeners in order. One per daemon.

    Numbers grow over restarts too: whoever asks a new daemon for what came after an old one's event gets all it has.
    """

    def __init__(self, epoch: int = 0, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`epoch` is the number of the daemon's start."""
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._listeners: list[Callable[[Event], None]] = []
        self._seq = epoch << EPOCH_SHIFT

    @property
    def seq(self) -> int:
        """The number of the newest event; lower than any event's before the first."""
        return self._seq

    def publish(self, kind: str, subject: str, **data: object) -> Event:
        """Append an event and call every listener with it."""
        self._seq += 1
        event = Event(self._seq, self._clock(), kind, subject, data)
        self._events.append(event)
        for listener in tuple(self._listeners):
            listener(event)
        return event

    def since(self, seq: int = 0) -> Iterable[Event]:
        """Events after `seq`, oldest first."""
        return [event for event in self._events if event.seq > seq]

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` for each event from now on; returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
