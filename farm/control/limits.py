"""Limits of a control socket, in all and for each user: calls at once, their memory, unread answers, connections.

libzmq takes all connections and aborts the process when it runs out of descriptors. It reports each connection it takes
to a monitor (zmq_socket_monitor(3)), by its descriptor. A thread of its own reads that, so that a busy event loop
changes nothing. The oldest connection without a message makes room for another one of its owner, or of all. Of the
connections beyond the limits the latest few stay, so that their requests are answered with the limit that was reached;
it ends the others. libzmq itself waits for the thread once a thousand are unread, so no client is faster than it where
the process may have 4,096 descriptors or more.

libzmq owns the descriptors and cannot drop one peer of a ROUTER. So a connection is ended by its number: the receiving
half only, as both would be EPOLLHUP, on which libzmq may abort in a handshake. A number may be used again before the
thread has read so: it belongs to another socket then, or to a client of this one, which connects again. The connections
of one sender are known by their number and their peer's address, whatever the thread has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import zmq
from zmq import MessageTracker
from zmq.utils.monitor import recv_monitor_message

from farm.common.errors import HostError
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter

MAX_CALLS = 1024
MAX_CALLS_PER_CONNECTION = 64  # a person's client has one call at a time, a worker two
# The largest answer is 3 MiB (messages.py), and clients ask for the next chunk when they have read the last one.
MAX_UNREAD_BYTES_PER_CONNECTION = 16 << 20
MAX_UNREAD_BYTES_PER_USER = 64 << 20
JSON_IN_MEMORY = 44  # bytes of lists for one byte of JSON when it is nothing but lists in lists
MAX_HELD_BYTES = 512 << 20  # by requests under way, for as long as their calls: `events` lasts for days
MAX_HELD_BYTES_PER_USER = MAX_HELD_BYTES // 4  # the largest one, or 128 pieces of artifacts
LOOK_THROUGH_EVERY = 256  # answers: by then what was read on connections that say nothing more is forgotten
MAX_CONNECTIONS = 1024  # connections of one control socket
DESCRIPTOR_PART = 4  # a control socket has at most such a part of the process's descriptors
OWNER_PART = 4  # one owner has at most such a part of the connections
MAX_REFUSED = 64  # connections beyond the limits that stay for a refusal, of all owners
MAX_REFUSED_PER_OWNER = 16
UNREAD_EVENTS = 64
SPEAK_S = 1.0  # a connection without a message by then makes room for another one of its owner
REPORTED_S = 60.0  # how long the limit is reported as a problem after the latest refused connection
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
logger = logging.getLogger(__name__)


class BusyError(HostError):
    """The farm has too many calls at once."""

    code = "busy"


@dataclass(frozen=True, slots=True)
class CallQuota:
    """How many calls one user may have at once, so that no user can lock the others out."""

    calls: int = MAX_CALLS // 4
    streams: int = MAX_CALLS * 3 // 16  # of those: a user with many streams can still make other calls
    all_streams: int = MAX_CALLS // 2  # of all users: however many follow something, others can make calls
    stream_kinds: Container[str] = frozenset()
    # Uids, and accounts of keys, without a quota.
    operators: Container[int | str] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    for_operators: int = MAX_CALLS // 16  # calls that only operators get, however many users there are


class StreamTurns:
    """Messages of streams leave one by one, users in turn, so that many readers hold the loop no longer than one."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # by user, the next one first
        self._running = False

    async def wait(self, user: Hashable) -> None:
        """Return when it is the turn of a message of this user."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        if not self._running:
            self._running = True
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        """One message for each run of the loop, which does all its other work in between."""
        self._running = bool(self._waiting)
        if not self._running:
            return
        user = next(iter(self._waiting))
        turns = self._waiting.pop(user)
        while turns:
            turn = turns.popleft()
            if not turn.done():  # its call was not cancelled
                turn.set_result(None)
                break
        if turns:
            self._waiting[user] = turns
        asyncio.get_running_loop().call_soon(self._next)


def in_memory_bytes(body: Sequence[bytes]) -> int:
    """The memory that a request holds while its call lasts: its JSON, parsed, and its raw frame."""
    return JSON_IN_MEMORY * len(body[0]) + sum(map(len, body[1:]))


class CallLimiter:
    """Bounds calls under way and the memory that their requests hold, by connection and by user."""

    def __init__(self, quota: CallQuota | None) -> None:
        """Begin with none. `quota` None: all callers are trusted with all calls."""
        self._quota = quota
        self._connections: Limiter[bytes] = Limiter(per_key=MAX_CALLS_PER_CONNECTION)
        self._calls: Limiter[int | str] = Limiter(MAX_CALLS)
        if quota is not None:
            self._calls = Limiter(MAX_CALLS, quota.calls, reserved=quota.for_operators, operators=quota.operators)
        self._streams: Limiter[int | str] = Limiter()
        if quota is not None:
            self._streams = Limiter(quota.all_streams, quota.streams)
        self._held_bytes: Limiter[int | str] = Limiter(MAX_HELD_BYTES, MAX_HELD_BYTES_PER_USER)

    def begin(self, route: bytes, quota_key: int | str, kind: str, size_bytes: int = 0) -> Callable[[], None]:
        """Count a call; returns the function to call at its end.

        Raises:
            BusyError: it would be one too many.
        """
        quota = self._quota
        bounded = quota is not None and quota_key not in quota.operators
        streams = quota is not None and bounded and kind in quota.stream_kinds
        if not self._connections.fits(route):
            raise BusyError(f"this connection has {MAX_CALLS_PER_CONNECTION} calls at once", hint="wait for answers")
        if not self._calls.key_fits(quota_key):
            raise BusyError(f"you have {self._calls.per_key} calls at once", hint="end some of your farm programs")
        if streams and not self._streams.key_fits(quota_key):
            raise BusyError(
                f"you follow {self._streams.per_key} things at once", hint="end some `farm watch` or `logs -f`"
            )
        if bounded and not self._held_bytes.key_fits(quota_key, size_bytes):
            raise BusyError("your calls have too much in them together", hint="fewer at once, or smaller ones")
        if streams and not self._streams.total_fits(quota_key):
            raise BusyError(f"{_usage(self._streams)} streams are followed at once", hint="try again in a moment")
        if not self._calls.total_fits(quota_key):
            raise BusyError(f"the farm has {_usage(self._calls)} calls at once", hint="try again in a moment")
        if bounded and not self._held_bytes.total_fits(quota_key, size_bytes):
            raise BusyError(hint="try again in a moment")
        self._connections.take(route)
        self._calls.take(quota_key)
        if streams:
            self._streams.take(quota_key)
        if bounded:
            self._held_bytes.take(quota_key, size_bytes)

        def end() -> None:
            self._connections.give_back(route)
            self._calls.give_back(quota_key)
            if streams:
                self._streams.give_back(quota_key)
            if bounded:
                self._held_bytes.give_back(quota_key, size_bytes)

        return end


def _usage(limiter: Limiter[int | str]) -> str:
    """The amount that is taken, and by whom most: `512 (192 by uid 1001)`."""
    largest = limiter.largest
    return f"{limiter.taken} ({limiter.of(largest)} by {largest if isinstance(largest, str) else f'uid {largest}'})"


class UnreadLimiter:
    """Bounds the bytes of answers that ZeroMQ keeps in memory for callers that read slower than they ask."""

    def __init__(self) -> None:
        self._connections: Limiter[bytes] = Limiter(per_key=MAX_UNREAD_BYTES_PER_CONNECTION)
        self._users: Limiter[int | str] = Limiter(per_key=MAX_UNREAD_BYTES_PER_USER)
        self._answers: dict[bytes, tuple[int | str, deque[tuple[int, MessageTracker]]]] = {}  # by connection
        self._sent = 0

    def sent(self, route: bytes, quota_key: int | str, size_bytes: int, tracker: MessageTracker) -> None:
        """Count an answer until `tracker` reports that ZeroMQ has sent all of it."""
        quota_key, answers = self._answers.setdefault(route, (quota_key, deque()))
        answers.append((size_bytes, tracker))
        self._connections.take(route, size_bytes)
        self._users.take(quota_key, size_bytes)
        self._sent += 1
        if self._sent % LOOK_THROUGH_EVERY == 0:
            self.forget_read(tuple(self._answers))

    def fits(self, route: bytes, quota_key: int | str, size_bytes: int) -> bool:
        """Whether so much more may be kept; anything may for a caller that has read all."""
        self.forget_read((route,))
        if route in self._answers and not self._connections.fits(route, size_bytes):
            return False
        if not self._users.fits(quota_key, size_bytes):
            self.forget_read(tuple(each for each, (answer_key, _) in self._answers.items() if answer_key == quota_key))
        return not self._users.of(quota_key) or self._users.fits(quota_key, size_bytes)

    def forget_read(self, routes: Iterable[bytes]) -> None:
        """Forget answers that were read meanwhile, or went with their connection."""
        for route in routes:
            if route not in self._answers:
                continue
            quota_key, answers = self._answers[route]
            while answers and answers[0][1].done:
                size_bytes, _ = answers.popleft()
                self._connections.give_back(route, size_bytes)
                self._users.give_back(quota_key, size_bytes)
            if not answers:
                del self._answers[route]


def raise_descriptor_limit(most: int = 65536) -> None:
    """Have as many descriptors as the host allows, up to `most`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class _Speaker:
    """Who sends over a connection, from which address, and its number at the ROUTER."""

    sender: Hashable
    address: object
    route: bytes


def _is_later(route: bytes, other: bytes) -> bool:
    """Whether libzmq gave `route` to a connection after `other`: it counts them, in four bytes behind a zero."""
    return (int.from_bytes(route[1:5]) - int.from_bytes(other[1:5])) % (1 << 32) < 1 << 31


class ConnectionLimiter:
    """Counts connections by owner, and refuses those beyond the limit of one owner or of all."""

    def __init__(self, name: str, owner: Callable[[socket.socket], Hashable | None]) -> None:
        """`owner` returns the owner of a connection; None: it belongs to another socket (its number was used again)."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // DESCRIPTOR_PART)
        self._admission: ClientLimiter[Hashable] = ClientLimiter(Limiter.shared(most, OWNER_PART))
        self._name = name
        self._owner = owner
        self._places: dict[int, ClientPlace[Hashable]] = {}  # by descriptor
        self._young: deque[tuple[float, ClientPlace[Hashable]]] = deque()  # with the time of acceptance
        self._refused: dict[int, Hashable] = {}  # descriptor -> owner, of those beyond the limits, the oldest first
        self._speakers: dict[int, _Speaker] = {}  # by descriptor
        self._thread: threading.Thread | None = None
        self._refused_at = 0.0
        self._refused_owner = ""
        self.refusals = 0  # ever

    def __len__(self) -> int:
        return len(self._places)

    @property
    def problem(self) -> str:
        """The owner that has too many; "" when none had in the last minute."""
        if not self.refusals or time.monotonic() - self._refused_at > REPORTED_S:
            return ""
        problem = f"{self._refused_owner} opens too many connections to control socket {self._name}"
        return f"{problem}: {self.refusals} were refused so far"

    def watch(self, context: zmq.Context[zmq.Socket[bytes]], watched: zmq.Socket[bytes]) -> None:
        """Begin, before the socket is bound; ends when `context` does."""
        where = f"inproc://connections-{id(self)}"
        watched.monitor(where, EVENTS)
        monitor = context.socket(zmq.PAIR)
        monitor.rcvhwm = UNREAD_EVENTS
        monitor.connect(where)
        self._thread = threading.Thread(
            target=self._run, args=(monitor,), name=f"connections of {self._name}", daemon=True
        )
        self._thread.start()

    def check(self, descriptor: int) -> None:
        """Check that requests over this connection may be answered.

        Raises:
            BusyError: it is beyond the limits.
        """
        owner, limiter = self._refused.get(descriptor), self._admission.limiter
        if owner is None or limiter.fits(owner, 0):
            return
        hint = "end some of its farm programs, such as farm watch, farm top and scripts"
        if not limiter.key_fits(owner, 0):
            most = f"at most {limiter.per_key:g} are allowed"
            raise BusyError(f"{owner} has {limiter.of(owner)} connections to the farm, {most}", hint=hint)
        largest = limiter.largest
        raise BusyError(
            f"the farm has all its {limiter.total:g} connections, {limiter.of(largest)} with {largest}",
            hint=hint,
        )

    def note_sender(self, descriptor: int, sender: Hashable, route: bytes) -> None:
        """Note who sends over a connection. Its peer's address stays with it: the number may be used again.

        By then messages of the connection that had the number before may be unread: its `route`, which libzmq has
        given to it, is older.
        """
        known = self._speakers.get(descriptor)
        if known is not None and known.route == route:
            return
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:  # OSError: it has ended
            address = connection.getpeername()
            if known is None or known.address != address or _is_later(route, known.route):
                self._speakers[descriptor] = _Speaker(sender, address, route)

    def mark_leaving(self, sender: Hashable) -> Hashable:
        """A handle for these connections, valid when another sender has the name by the time that they are ended."""
        them = object()
        for each, speaker in self._speakers.items():
            if speaker.sender == sender:
                self._speakers[each] = replace(speaker, sender=them)
        return them

    def cut_connections(self, sender: Hashable) -> int:
        """End the connections over which `sender` sent; returns how many."""
        return sum(self._cut(each, one.address) for each, one in self._speakers.items() if one.sender == sender)

    def ended(self) -> None:
        """Wait for the thread's end; the context has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, monitor: zmq.Socket[bytes]) -> None:
        with monitor, contextlib.suppress(zmq.ContextTerminated):
            while True:
                event = recv_monitor_message(monitor)
                try:
                    self._on_event(event["event"], event["value"])
                except Exception:
                    logger.exception("control socket %s: a connection is not counted", self._name)

    def _on_event(self, event: int, descriptor: int) -> None:
        self._refused.pop(descriptor, None)
        left = self._places.pop(descriptor, None)
        if left is not None:
            self._admission.leave(left)
        if event != zmq.EVENT_ACCEPTED:
            return
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:  # OSError: it has ended
            owner = self._owner(connection)
            if owner is None:
                return
            self._mark_silent()
            place = self._places[descriptor] = self._admission.count(owner, partial(self._cut_silent, descriptor))
            self._young.append((time.monotonic(), place))
            if self._admission.make_room(place):
                self._admission.mark_active(place)  # for SPEAK_S
            else:
                self._refuse(descriptor, owner)

    def _mark_silent(self) -> None:
        """Let connections make room for others once they have had time for a message."""
        now_s = time.monotonic()
        while self._young and self._young[0][0] <= now_s - SPEAK_S:
            self._admission.mark_silent(self._young.popleft()[1])

    def _cut_silent(self, descriptor: int) -> bool:
        """End a connection over which no message came; False: one came."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:  # OSError: it has ended
            speaker = self._speakers.get(descriptor)
            if speaker is not None and speaker.address == connection.getpeername():
                return False
        self._places.pop(descriptor, None)
        self._cut(descriptor)
        return True

    def _refuse(self, descriptor: int, owner: Hashable) -> None:
        """Keep the connection for a refusal; where there are too many of those, in the place of the oldest one."""
        self.refusals += 1
        self._refused_at, self._refused_owner = time.monotonic(), str(owner)
        if self.refusals == 10 ** (len(str(self.refusals)) - 1):
            logger.warning("%s", self.problem)
        own = [each for each, its_owner in self._refused.items() if its_owner == owner]
        many = len(own) >= MAX_REFUSED_PER_OWNER
        if many or len(self._refused) >= MAX_REFUSED:
            oldest = own[0] if many else next(iter(self._refused))
            del self._refused[oldest]
            self._cut(oldest)
        self._refused[descriptor] = owner

    def _cut(self, descriptor: int, address: object = None) -> bool:
        """End a connection, unless its number is another socket's or address's by now; whether it was ended."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
            if self._owner(connection) is not None and address in (None, connection.getpeername()):
                connection.shutdown(socket.SHUT_RD)
                return True
        return False


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The connection of that number, which is libzmq's. No duplicate: there may be no descriptor left for one."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()  # libzmq closes it
