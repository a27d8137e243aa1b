"""The farm's event log, in order as plain values.

Events about a change of the store are *drafted*: numbered first, committed in the transaction of their change,
published afterwards. Events are published in the order of their numbers, so a reader of N has seen all that will ever
come before it. A number whose change was not committed is never published: readers see a gap.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, overload

EPOCH_SHIFT = 32  # bits of a number that count within one run of the daemon; JSON readers keep 53 in all
# In memory; older ones are read from the store. So many of the usual size are about 10 MB, and weigh 25 MB below. A
# worker's progress may have half a megabyte.
KEPT_EVENTS, KEPT_BYTES = 20_000, 64 << 20

log = logging.getLogger(__name__)

EventDraft = tuple[str, str, Mapping[str, object]]  # kind, subject, data


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `kind` is a subject and a past tense: `device.ready`, `session.cut`, `lease.granted`."""

    seq: int
    at: datetime
    kind: str
    subject: str  # device name, lease id, job id ...
    data: Mapping[str, object] = field(default_factory=dict)
    drafted: bool = field(default=False, compare=False)  # the store got it with the change it is about

    def to_wire(self) -> dict[str, Any]:
        """The event as JSON, for the wire and for people's programs."""
        return {
            "seq": self.seq,
            "at": self.at.isoformat(),
            "kind": self.kind,
            "subject": self.subject,
            "data": dict(self.data),
        }


class UncommittedEvents(Sequence[Event]):
    """Numbered events whose change is not committed yet.

    The store settles them: `True` once they are committed, `False` when it refused the change. Unsettled ones are
    published when their block ends well and dropped when it raises.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = tuple(events)
        self.committed: bool | None = None  # None: not settled yet

    def settle(self, *, committed: bool) -> None:
        """Record whether the change was committed."""
        self.committed = committed

    def drop(self) -> None:
        """The change did not happen: its events are not published."""
        self.settle(committed=False)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._events[index]

    def __len__(self) -> int:
        return len(self._events)


@dataclass(slots=True)
class _Unpublished:
    """Events that wait to be published until those before them are settled."""

    events: tuple[Event, ...]
    settled: bool


class EventLog:
    """Numbers events and hands them to listeners in order. One per daemon.

    Numbers grow over restarts too: a reader that asks a new daemon for events after an old one's gets all it has.
    """

    def __init__(
        self, epoch: int = 0, clock: Callable[[], datetime] = lambda: datetime.now(UTC), *, after: int = 0
    ) -> None:
        """`epoch` is the number of the daemon's start; `after` that of the event before the first to be shown."""
        # The `host` of an event with this data: that of its phone, else of its daemon; "": there is one host.
        self.host_of: Callable[[Mapping[str, object]], str] = lambda _: ""
        self._clock = clock
        self._events: deque[Event] = deque()
        self._weights: deque[int] = deque()
        self._kept_bytes = 0
        self._listeners: list[Callable[[Event], None]] = []
        self._numbered = self._published = after or epoch << EPOCH_SHIFT
        self._pending: deque[_Unpublished] = deque()  # behind the oldest outstanding draft
        self._publishing = False

    @property
    def seq(self) -> int:
        """The number of the newest published event; lower than any event's before the first."""
        return self._published

    @property
    def oldest(self) -> int:
        """The number of the oldest event in memory; beyond `seq` when there is none."""
        return self._events[0].seq if self._events else self._published + 1

    def publish(self, kind: str, subject: str, /, **data: object) -> Event:
        """Number an event; every listener gets it after the drafts before it. A listener's exception is logged."""
        event = self._next(kind, subject, data, drafted=False)
        self._pending.append(_Unpublished((event,), settled=True))
        self._publish_settled()
        return event

    def show(self, event: Event) -> None:
        """Publish an event that has its number, above all before, from another log."""
        self._pending.append(_Unpublished((event,), settled=True))
        self._publish_settled()

    @contextmanager
    def drafted(self, *events: EventDraft) -> Iterator[UncommittedEvents]:
        """Number events (kind, subject, data) of a change that the block commits: `store....(events=drafts)`."""
        drafts = UncommittedEvents([self._next(kind, subject, data, drafted=True) for kind, subject, data in events])
        pending = _Unpublished(tuple(drafts), settled=False)
        self._pending.append(pending)
        try:
            yield drafts
        except BaseException:
            if drafts.committed is not True:
                drafts.drop()
            raise
        finally:
            if drafts.committed is False:
                pending.events = ()
            pending.settled = True
            self._publish_settled()

    def since(self, seq: int = 0) -> list[Event]:
        """Events in memory after `seq`, oldest first."""
        newer: list[Event] = []
        for event in reversed(self._events):
            if event.seq <= seq:
                break
            newer.append(event)
        newer.reverse()
        return newer

    def newest(self, wanted: Callable[[Event], bool], limit: int) -> list[Event]:
        """The newest events that are wanted, at most `limit`, newest first.

        With those that have happened and wait for a draft that is still being written.
        """
        waiting = [event for each in self._pending if each.settled for event in each.events]
        return list(islice(filter(wanted, chain(reversed(waiting), reversed(self._events))), limit))

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call `listener` for each event from now on; returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _next(self, kind: str, subject: str, data: Mapping[str, object], *, drafted: bool) -> Event:
        self._numbered += 1
        if host := self.host_of(data):
            data = {**data, "host": host}
        return Event(self._numbered, self._clock(), kind, subject, data, drafted)

    def _keep(self, event: Event) -> None:
        """Remember an event, and forget the oldest in its place; the newest stays, whatever its size."""
        self._events.append(event)
        self._weights.append(_weight(event.data))
        self._kept_bytes += self._weights[-1]
        while len(self._events) > KEPT_EVENTS or (self._kept_bytes > KEPT_BYTES and len(self._events) > 1):
            self._events.popleft()
            self._kept_bytes -= self._weights.popleft()

    def _publish_settled(self) -> None:
        """Pass on the events that no outstanding draft precedes; a listener's own events follow after them."""
        if self._publishing:
            return
        self._publishing = True
        try:
            while self._pending and self._pending[0].settled:
                for event in self._pending.popleft().events:
                    self._published = event.seq
                    self._keep(event)
                    for listener in tuple(self._listeners):
                        try:
                            listener(event)
                        except Exception:  # its bug: the other listeners get the event
                            log.exception("a listener failed at event %s of %s", event.kind, event.subject)
        finally:
            self._publishing = False


def _weight(data: object) -> int:
    """Roughly the memory of JSON data, in bytes."""
    weight, left = 0, [data]
    while left:
        each = left.pop()
        weight += 56
        if isinstance(each, str):
            weight += len(each)
        elif isinstance(each, Mapping):
            left += each.keys()
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return weight
