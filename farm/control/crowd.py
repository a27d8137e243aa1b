"""How many connections a door has: libzmq takes all that come and aborts the process when it runs out of descriptors.

It tells a monitor (zmq_socket_monitor(3)) of each connection it takes, by its descriptor. A thread of its own reads
that, so that a busy event loop lets nobody in, and shuts down what is too much. libzmq itself waits for the thread once
a thousand are unread, so nobody is faster than it where the process may have 4,096 descriptors or more.

libzmq owns the descriptors and cannot drop one peer of a ROUTER. So a connection is ended by its number: the receiving
half only, as both would be EPOLLHUP, on which libzmq may abort in a handshake. A number is forgotten when its
connection ends or is used again; what is used again before the thread has heard so is none of this door, or a client of
it, which comes back.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator

import zmq
from zmq.utils.monitor import recv_monitor_message

MOST = 1024  # connections of one door
OF_DESCRIPTORS = 4  # a door has at most such a part of the process's descriptors
SHARE = 4  # one owner has at most such a part of a door's connections
UNREAD = 64
TOLD_S = 60.0  # how long a crowd is a problem after the latest connection that was cut
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED

logger = logging.getLogger(__name__)


def raise_descriptor_limit(most: int = 65536) -> None:
    """Have as many descriptors as the host allows, up to `most`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Crowd:
    """Counts a door's connections by whose they are, and ends those beyond an owner's share and the door's limit."""

    def __init__(self, door: str, owner: Callable[[socket.socket], Hashable | None]) -> None:
        """`owner` says whose a connection is; None: it is none of this door (its number was used again)."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = MOST if files == resource.RLIM_INFINITY else min(MOST, files // OF_DESCRIPTORS)
        self._door = door
        self._owner = owner
        self._owners: dict[int, Hashable] = {}  # descriptor -> whose
        self._speakers: dict[int, Hashable] = {}  # descriptor -> who sent messages by it
        self._counts: Counter[Hashable] = Counter()
        self._thread: threading.Thread | None = None
        self._cut_at = 0.0
        self._cut_of = ""
        self.cut = 0  # ever

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def problem(self) -> str:
        """Who has too many; "" nobody in the last minute."""
        if not self.cut or time.monotonic() - self._cut_at > TOLD_S:
            return ""
        return f"{self._cut_of} opens too many connections to door {self._door}: {self.cut} were cut so far"

    def watch(self, context: zmq.Context[zmq.Socket[bytes]], door: zmq.Socket[bytes]) -> None:
        """Begin, before the door is bound; ends when `context` does."""
        where = f"inproc://crowd-{id(self)}"
        door.monitor(where, EVENTS)
        monitor = context.socket(zmq.PAIR)
        monitor.rcvhwm = UNREAD
        monitor.connect(where)
        self._thread = threading.Thread(
            target=self._run, args=(monitor,), name=f"door {self._door}: crowd", daemon=True
        )
        self._thread.start()

    def spoke(self, descriptor: int, who: Hashable) -> None:
        """Note who sends by a connection."""
        self._speakers[descriptor] = who

    def leaving(self, who: Hashable) -> Hashable:
        """The same connections, whoever is called so by the time that they are ended."""
        them = object()
        self._speakers.update({each: them for each, speaker in tuple(self._speakers.items()) if speaker == who})
        return them

    def end(self, who: Hashable) -> int:
        """End the connections of who sent by them; returns how many."""
        ended = 0
        for descriptor, speaker in tuple(self._speakers.items()):
            if speaker == who:
                with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
                    if self._owner(connection) is not None:
                        _end(connection)
                        ended += 1
        return ended

    def ended(self) -> None:
        """Wait for the thread's end; the context has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, monitor: zmq.Socket[bytes]) -> None:
        with monitor, contextlib.suppress(zmq.ContextTerminated):
            while True:
                told = recv_monitor_message(monitor)
                try:
                    self._heard(told["event"], told["value"])
                except Exception:
                    logger.exception("door %s: a connection is not counted", self._door)

    def _heard(self, event: int, descriptor: int) -> None:
        self._speakers.pop(descriptor, None)
        left = self._owners.pop(descriptor, None)
        if left is not None:
            self._counts[left] -= 1
            if not self._counts[left]:
                del self._counts[left]
        if event != zmq.EVENT_ACCEPTED:
            return
        with contextlib.suppress(OSError), _borrowed(descriptor) as connection:  # OSError: it has ended
            owner = self._owner(connection)
            if owner is None:
                return
            self._owners[descriptor] = owner
            self._counts[owner] += 1
            if self._counts[owner] > self.most // SHARE or len(self._owners) > self.most:
                self._tell(owner)
                _end(connection)

    def _tell(self, owner: Hashable) -> None:
        self.cut += 1
        self._cut_at, self._cut_of = time.monotonic(), str(owner)
        if self.cut == 10 ** (len(str(self.cut)) - 1):
            logger.warning("%s", self.problem)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The connection of that number, which is libzmq's. No duplicate: there may be no descriptor left for one."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()  # libzmq closes it


def _end(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RD)
