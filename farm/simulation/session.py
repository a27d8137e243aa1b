"""One host's streams over one link: the receiver of each byte, and the bytes that wait until the host asks for more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from farm.simulation.adbd import (
    DataReceived,
    DeviceConnection,
    Event,
    KeyOffered,
    StreamClosed,
    StreamRequested,
    WentOnline,
    WriteAllowed,
)
from farm.simulation.link import PhoneLink

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from farm.simulation.packets import Buffer


class StreamService(Protocol):
    """A service behind a stream. All calls come from the event loop and must not block for long."""

    def received(self, payload: Buffer, /) -> None:
        """Bytes from the host; the service calls `stream.acknowledge()` when it wants more."""

    def drained(self) -> None:
        """The host took everything that was written."""

    def closed(self) -> None:
        """The stream is gone (the host closed it, or the link was lost): release everything."""


class Stream:
    """A service's end of a stream."""

    def __init__(self, session: AdbSession, number: int) -> None:
        self._session = session
        self.number = number
        self._queue: deque[Buffer] = deque()
        self._finishing = False
        self.service: StreamService | None = None
        self.is_open = True
        self.queued_bytes = 0

    @property
    def max_payload(self) -> int:
        """The most bytes one `write` can move in one packet."""
        return self._session.connection.max_payload

    def accept(self, service: StreamService) -> None:
        """The service runs."""
        self.service = service
        if self.is_open:
            self._session.connection.accept(self.number)
            self._session.link.wake()

    def refuse(self) -> None:
        """There is no such service."""
        if self.is_open:
            self.is_open = False
            self._session.forget(self.number)
            self._session.connection.refuse(self.number)
            self._session.link.wake()

    def write(self, data: Buffer) -> None:
        """Send bytes, now or when the host asks for more. `data` must never change afterwards."""
        if not self.is_open or not len(data):
            return
        if not self._queue and len(data) <= self.max_payload and self._session.connection.may_write(self.number):
            self.queued_bytes = len(data)
            self._session.connection.write(self.number, data)
        else:
            self._queue.append(data)
            self.queued_bytes += len(data)
        self._session.link.wake()

    def acknowledge(self, *, at_once: bool = False) -> None:
        """Ask the host for more bytes; `at_once` when the caller is about to work on the ones it got."""
        if self.is_open:
            self._session.connection.acknowledge(self.number)
            if at_once:
                self._session.link.flush()
            else:
                self._session.link.wake()

    def finish(self) -> None:
        """Close the stream once the host took everything written."""
        self._finishing = True
        if not self.queued_bytes:
            self.close()

    def close(self) -> None:
        """Close the stream now. The service is not told: it knows."""
        if self.is_open:
            self.is_open = False
            self._session.forget(self.number)
            self._session.connection.close(self.number)
            self._session.link.wake()

    def write_allowed(self) -> None:
        """The host asks for more (called by the session)."""
        if self._queue:
            payload = self._next_payload()
            self.queued_bytes = len(payload) + sum(len(item) for item in self._queue)
            self._session.connection.write(self.number, payload)
            return
        self.queued_bytes = 0
        if self._finishing:
            self.close()
        elif self.service is not None:
            self.service.drained()

    def lost(self) -> None:
        """The host's end is gone (called by the session)."""
        if self.is_open:
            self.is_open = False
            self._queue.clear()
            if self.service is not None:
                self.service.closed()

    def _next_payload(self) -> Buffer:
        limit = self.max_payload
        first = self._queue.popleft()
        if len(first) > limit:
            view = memoryview(first)
            self._queue.appendleft(view[limit:])
            return view[:limit]
        if not self._queue or len(first) + len(self._queue[0]) > limit:
            return first
        payload = bytearray(first)
        while self._queue and len(payload) + len(self._queue[0]) <= limit:
            payload += self._queue.popleft()
        return payload


class AdbSession:
    """Everything one host does over one link."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        connection: DeviceConnection,
        *,
        open_service: Callable[[str, Stream], None],
        on_online: Callable[[], None],
        on_key: Callable[[bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self.connection = connection
        self.refuses_everything = False
        self._open_service = open_service
        self._on_online = on_online
        self._on_key = on_key
        self._lost_callback = on_lost
        self._streams: dict[int, Stream] = {}
        self.link = PhoneLink(loop, sock, connection, on_event=self._on_event, on_lost=self._on_lost)

    def open(self, service: str) -> Stream:
        """Ask the host for a service (a reverse's destination). `drained` of its service follows when it is there."""
        stream = Stream(self, self.connection.open(service))
        self._streams[stream.number] = stream
        self.link.wake()
        return stream

    def accept_host(self) -> None:
        """The person at the phone accepted the host's key."""
        self._on_event(self.connection.accept_host())
        self.link.wake()

    def forget(self, number: int) -> None:
        """A stream ended from our side."""
        self._streams.pop(number, None)

    def close(self) -> None:
        """Pull the cable: every service loses its stream."""
        self.link.close()
        self._drop(tuple(self._streams))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            stream = self._streams.get(event.stream)
            if stream is not None and stream.service is not None:
                stream.service.received(event.payload)
        elif isinstance(event, WriteAllowed):
            stream = self._streams.get(event.stream)
            if stream is not None:
                stream.write_allowed()
        elif isinstance(event, StreamRequested):
            stream = self._streams[event.stream] = Stream(self, event.stream)
            if self.refuses_everything:
                stream.refuse()
            else:
                self._open_service(event.service, stream)
        elif isinstance(event, StreamClosed):
            self._drop((event.stream,))
        elif isinstance(event, KeyOffered):
            self._on_key(event.public_key)
        elif isinstance(event, WentOnline):
            self._drop(event.dropped)
            self._on_online()

    def _on_lost(self, reason: str) -> None:
        self._drop(tuple(self._streams))
        self._lost_callback(reason)

    def _drop(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            stream = self._streams.pop(number, None)
            if stream is not None:
                stream.lost()
