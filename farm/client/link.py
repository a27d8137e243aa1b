"""ZeroMQ connections to the daemon: one question at a time on each, used again when it went well.

A question given up closes its connection: that is how the daemon learns that nobody waits any more. A daemon that
dies is noticed at once, by the connection's end.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from farm.control.address import Where, connect, probe, refused
from farm.control.client import ENDS, FAILED_HANDSHAKE
from farm.control.exchange import FIRST_SIGN_S, REMOTE_SIGN_S, Exchange
from farm.control.messages import Reply, Request, encode_request
from farm.core.errors import DaemonUnreachableError, FarmError, ProtocolError

STOPPING = "stopping"  # code of the error that a stopping daemon ends its calls with
MS = 1000


class DaemonLostError(DaemonUnreachableError):
    """The farm daemon went away in the middle of an answer."""


class Link:
    """One connection. Ask again only when the last question's replies were read to their end."""

    def __init__(self, context: zmq.asyncio.Context, where: Where) -> None:
        self._where = where
        self._socket: zmq.asyncio.Socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._monitor: zmq.asyncio.Socket = self._socket.get_monitor_socket(ENDS)
        connect(self._socket, where)
        self._poller = zmq.asyncio.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self.busy = False

    def close(self) -> None:
        """Leave."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    async def is_stale(self) -> bool:
        """Whether the daemon it led to has gone while nobody asked."""
        return bool(await self._poller.poll(0))

    async def ask(self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...]) -> AsyncGenerator[Reply, None]:
        """Replies as they come, the answer last.

        Raises:
            DaemonUnreachableError: nobody answers any more.
            FarmError: what the daemon reported.
        """
        request = Request(secrets.token_hex(8), kind, fields, frames)
        message = encode_request(request)
        self.busy = True
        await self._socket.send_multipart(message)
        first_sign_s = FIRST_SIGN_S if isinstance(self._where, Path) else REMOTE_SIGN_S
        exchange = Exchange(request.id, time.monotonic(), first_sign_s)
        while not exchange.ended:
            received = await self._receive(exchange)
            try:
                reply = exchange.received(received, time.monotonic())
            except FarmError as error:
                self.busy = not exchange.ended
                if error.code == STOPPING:
                    raise DaemonLostError("the farm daemon is stopping", hint=error.hint) from error
                raise
            self.busy = not exchange.ended
            if reply is not None:
                yield reply

    async def _receive(self, exchange: Exchange) -> list[bytes]:
        while True:
            wait_ms = max(0, math.ceil((exchange.deadline_s - time.monotonic()) * MS))
            ready = dict(await self._poller.poll(wait_ms))
            if self._socket in ready:  # what came before the connection's end counts
                return await self._socket.recv_multipart()
            if self._monitor not in ready:
                raise exchange.silent(self._where)
            event = parse_monitor_message(await self._monitor.recv_multipart())
            if event["event"] & FAILED_HANDSHAKE:
                raise refused(self._where)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                raise DaemonLostError("the farm daemon went away", hint="farm status tells when it is back")


class Links:
    """Connections to one daemon. For one event loop."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self._context: zmq.asyncio.Context | None = None
        self._idle: list[Link] = []
        self._open: set[Link] = set()

    def close(self) -> None:
        """Leave; the daemon ends what this client still waited for."""
        for link in tuple(self._open):
            self._drop(link)
        self._idle.clear()
        if self._context is not None:
            self._context.term()
            self._context = None

    async def call(self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...] = ()) -> Reply:
        """The answer alone.

        Raises:
            DaemonUnreachableError, FarmError: as `replies`.
        """
        async with aclosing(self.replies(kind, fields, frames)) as replies:
            async for reply in replies:
                if not reply.more:
                    return reply
        raise ProtocolError("the daemon's answer ended early")

    async def replies(
        self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...] = ()
    ) -> AsyncGenerator[Reply, None]:
        """Everything the daemon sends about one question, the answer last. Closing it early ends the work.

        Raises:
            DaemonUnreachableError: nobody answers, or not any more.
            FarmError: what the daemon reported.
        """
        link = await self._take()
        try:
            async with aclosing(link.ask(kind, fields, frames)) as replies:
                async for reply in replies:
                    yield reply
        finally:
            if link.busy or link not in self._open:
                self._drop(link)
            else:
                self._idle.append(link)

    async def _take(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if not await link.is_stale():
                return link
            self._drop(link)
        await asyncio.to_thread(probe, self.where)
        if self._context is None:
            self._context = zmq.asyncio.Context()
        link = Link(self._context, self.where)
        self._open.add(link)
        return link

    def _drop(self, link: Link) -> None:
        if link in self._open:
            self._open.discard(link)
            link.close()
