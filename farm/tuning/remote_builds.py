"""A run's orders at the farm's builders: a thread with a unix socket to the process that has the builders.

Nothing here is trusted to come: a socket that is not there, or ends, means that there are no builders, and everything
that builders had counts as lost. The same holds for a silent process. The link is tried again now and then.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from farm.common.errors import ProtocolError
from farm.common.frames import FrameReader, frame

POLL_S = 0.5  # between two looks for late answers
SILENT_S = 5.0  # the process says every second how many slots there are
SEND_LIMIT_S = 2.0
CONNECT_EVERY_S = 5.0
READ_BYTES = 1 << 18


class RemoteBuilds:
    """The link to the farm's builders. Begins with `begin`."""

    def __init__(
        self, path: str, on_slots: Callable[[int], None], on_answer: Callable[[int, bytes, str], None]
    ) -> None:
        """`path` is of the unix socket.

        `on_slots`: called now and then with the number of orders that may be at builders; 0: their orders are lost.
        `on_answer`: called with each order's number, library and error; with neither, it must be built here.
        """
        self._path, self._on_slots, self._on_answer = path, on_slots, on_answer
        self._identity = ""
        self._lock = threading.Lock()  # over writing
        self._link: socket.socket | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remote builds", daemon=True)

    def begin(self, identity: str) -> None:
        """Ask for slots at builders of this identity, the first time."""
        if not self._identity:
            self._identity = identity
            self._thread.start()

    def order(self, fields: Mapping[str, Any], module: bytes) -> None:
        """Have a candidate built."""
        self._send(frame(fields, module))

    def cancel(self, number: int) -> None:
        """No caller waits for it any more."""
        self._send(frame({"cancel": number}))

    def close(self) -> None:
        """End the link."""
        self._closed.set()
        with self._lock, contextlib.suppress(OSError):
            if self._link is not None:
                self._link.shutdown(socket.SHUT_RDWR)
        if self._identity:
            self._thread.join(CONNECT_EVERY_S)

    def _send(self, message: bytes) -> None:
        with self._lock:
            if self._link is None:
                return
            try:
                self._link.sendall(message)
            except OSError:  # it has ended, or reads nothing: the thread finds out
                with contextlib.suppress(OSError):
                    self._link.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError, ProtocolError, KeyError), self._connected() as link:
                self._read(link)
            self._on_slots(0)
            self._closed.wait(CONNECT_EVERY_S)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(SEND_LIMIT_S)
            link.connect(self._path)
            link.sendall(frame({"identity": self._identity}))
            with self._lock:
                self._link = link
            try:
                yield link
            finally:
                with self._lock:
                    self._link = None

    def _read(self, link: socket.socket) -> None:
        answers, slots, heard_s = FrameReader(), 0, time.monotonic()
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while not self._closed.is_set() and time.monotonic() - heard_s < SILENT_S:
            if poll.poll(POLL_S * 1e3):
                if not (data := link.recv(READ_BYTES)):
                    return
                heard_s = time.monotonic()
                for fields, library in answers.feed(data):
                    if "slots" in fields:
                        slots = fields["slots"]
                    else:
                        self._on_answer(fields["number"], library, fields.get("error", ""))
            self._on_slots(slots)
