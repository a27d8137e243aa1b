"""What one user may take of a control door: calls at once, and answers that are kept until they are read."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zmq import MessageTracker

from farm.core.errors import HostError

MAX_CALLS = 1024
MAX_CALLS_PER_CONNECTION = 64  # a person's client has one call at a time, a worker two
# The largest answer is 3 MiB (messages.py), and clients ask for the next chunk when they have read the last one.
MAX_UNREAD_BYTES_PER_CONNECTION = 16 << 20
MAX_UNREAD_BYTES_PER_USER = 64 << 20
JSON_IN_MEMORY = 44  # bytes of lists for one byte of JSON when it is nothing but lists in lists
MAX_HELD_BYTES = 512 << 20  # by requests under way, for as long as their calls: `events` lasts for days
MAX_HELD_BYTES_PER_USER = MAX_HELD_BYTES // 4  # the largest one, or 128 pieces of artifacts
LOOK_THROUGH_EVERY = 256  # answers: by then what was read on connections that say nothing more is forgotten


class BusyError(HostError):
    """The farm has too many calls at once."""

    code = "busy"


@dataclass(frozen=True, slots=True)
class Shares:
    """How many calls one user may have at once, so that nobody can lock the others out."""

    calls: int = MAX_CALLS // 4
    streams: int = MAX_CALLS * 3 // 16  # of those: whoever follows much can still ask
    stream_kinds: frozenset[str] = frozenset()
    operators: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))  # uids without a share
    for_operators: int = MAX_CALLS // 16  # calls that nobody else gets, however many users there are


def in_memory_bytes(body: Sequence[bytes]) -> int:
    """What a request may hold while its call lasts: its JSON, parsed, and its raw frame."""
    return JSON_IN_MEMORY * len(body[0]) + sum(map(len, body[1:]))


class CallCount:
    """Calls under way and the memory that their requests hold, by connection and by user."""

    def __init__(self, shares: Shares | None) -> None:
        """Begin with none. `shares` None: whoever comes is trusted with all calls."""
        self._shares = shares
        self._all = 0
        self._counts: Counter[tuple[str, bytes | int | str]] = Counter()
        self._held_bytes: Counter[int | str] = Counter()  # of those who have a share

    def begin(self, route: bytes, payer: int | str, kind: str, size_bytes: int = 0) -> Callable[[], None]:
        """Count a call; returns what to call at its end.

        Raises:
            BusyError: it would be one too many.
        """
        connection, user, streams = ("connection", route), ("user", payer), ("streams", payer)
        counted: list[tuple[str, bytes | int | str]] = [connection]
        if self._counts[connection] >= MAX_CALLS_PER_CONNECTION:
            raise BusyError(f"this connection has {MAX_CALLS_PER_CONNECTION} calls at once", hint="wait for answers")
        most = MAX_CALLS
        shared = self._shares is not None and payer not in self._shares.operators
        if self._shares is not None and shared:
            most -= self._shares.for_operators
            counted.append(user)
            if self._counts[user] >= self._shares.calls:
                raise BusyError(f"you have {self._shares.calls} calls at once", hint="end some of your farm programs")
            if kind in self._shares.stream_kinds:
                counted.append(streams)
                if self._counts[streams] >= self._shares.streams:
                    raise BusyError(
                        f"you follow {self._shares.streams} things at once", hint="end some `farm watch` or `logs -f`"
                    )
            if self._held_bytes[payer] + size_bytes > MAX_HELD_BYTES_PER_USER:
                raise BusyError("your calls have too much in them together", hint="fewer at once, or smaller ones")
        held_too_much = shared and self._held_bytes.total() + size_bytes > MAX_HELD_BYTES
        if self._all >= most or held_too_much:
            raise BusyError(hint="try again in a moment")
        self._all += 1
        self._counts.update(counted)
        if shared:
            self._held_bytes[payer] += size_bytes

        def end() -> None:
            self._all -= 1
            if shared:
                self._held_bytes[payer] -= size_bytes
                if not self._held_bytes[payer]:
                    del self._held_bytes[payer]
            for each in counted:
                self._counts[each] -= 1
                if not self._counts[each]:
                    del self._counts[each]

        return end


@dataclass(slots=True)
class _Unread:
    """What one connection was sent and has not read."""

    payer: int | str
    size_bytes: int = 0
    answers: deque[tuple[int, MessageTracker]] = field(default_factory=deque)


class UnreadAnswers:
    """Bytes of answers that ZeroMQ keeps in memory for callers that read slower than they ask."""

    def __init__(self) -> None:
        self._by_route: dict[bytes, _Unread] = {}
        self._by_user: Counter[int | str] = Counter()
        self._sent = 0

    def sent(self, route: bytes, payer: int | str, size_bytes: int, tracker: MessageTracker) -> None:
        """Count an answer until `tracker` says that ZeroMQ has no more of it."""
        unread = self._by_route.setdefault(route, _Unread(payer))
        unread.answers.append((size_bytes, tracker))
        unread.size_bytes += size_bytes
        self._by_user[payer] += size_bytes
        self._sent += 1
        if self._sent % LOOK_THROUGH_EVERY == 0:
            self._look(tuple(self._by_route))

    def fits(self, route: bytes, payer: int | str, size_bytes: int) -> bool:
        """Whether so much more may be kept; anything may for a caller that has read all."""
        self._look((route,))
        mine = self._by_route.get(route)
        if mine is not None and mine.size_bytes + size_bytes > MAX_UNREAD_BYTES_PER_CONNECTION:
            return False
        if self._by_user[payer] + size_bytes > MAX_UNREAD_BYTES_PER_USER:
            self._look(tuple(each for each, unread in self._by_route.items() if unread.payer == payer))
        return not self._by_user[payer] or self._by_user[payer] + size_bytes <= MAX_UNREAD_BYTES_PER_USER

    def _look(self, routes: tuple[bytes, ...]) -> None:
        """Forget what was read meanwhile, or went with its connection."""
        for route in routes:
            unread = self._by_route.get(route)
            if unread is None:
                continue
            while unread.answers and unread.answers[0][1].done:
                size_bytes, _ = unread.answers.popleft()
                unread.size_bytes -= size_bytes
                self._by_user[unread.payer] -= size_bytes
            if not unread.answers:
                del self._by_route[route]
                if not self._by_user[unread.payer]:
                    del self._by_user[unread.payer]
