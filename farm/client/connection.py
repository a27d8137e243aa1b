"""Connections to the daemon: questions, streams, restarts waited out.

A connection takes one question at a time and is used again when it went well. A question given up closes it: that is
how the daemon learns that the caller waits no more. A daemon that dies is noticed at once, by the connection's end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from farm.common.errors import Code, DaemonUnreachableError, FarmError, ProtocolError
from farm.control.address import Where, connect, probe, refused
from farm.control.client import ENDS, FAILED_HANDSHAKE, Exchange
from farm.control.messages import Reply, Request, encode_request

RESTART_S = 60.0  # a start with 100,000 jobs of history takes seconds; an upgrade of the package half a minute
POLL_S = 0.1  # how often an absent daemon is looked for; a unix socket costs nothing to try

logger = logging.getLogger("farm.client")

OnNotice = Callable[[str], None]
OnTransfer = Callable[[str, int, int], None]  # a file's name, bytes that are there, bytes in all
MS = 1000


class DaemonConnection:
    """Asks the daemon. One that was there and is gone is waited for; one that never was is an error at once.

    Every question of the clients may be asked twice without harm: that is what makes asking again after a restart safe.
    """

    def __init__(self, where: Where, *, restart_s: float = RESTART_S, on_notice: OnNotice = logger.warning) -> None:
        """`restart_s`: how long a restarting daemon is waited for; `on_notice` is called with sentences for people."""
        self._where = where
        self._restart_s = restart_s
        self.on_notice = on_notice
        self.on_transfer: OnTransfer | None = None
        self._met = False
        self._disconnected = False
        self._context: zmq.asyncio.Context | None = None
        self._idle: list[Link] = []
        self._open: set[Link] = set()

    def transfers(self, name: str) -> Callable[[int, int], None] | None:
        """The callback for the progress of the file of that name; None: there is none."""
        return partial(self.on_transfer, name) if self.on_transfer is not None else None

    def close(self) -> None:
        """Leave; the daemon ends this client's open calls (jobs continue)."""
        for link in tuple(self._open):
            self._drop(link)
        self._idle.clear()
        if self._context is not None:
            self._context.term()
            self._context = None

    async def call(self, kind: str, /, *, frames: tuple[bytes, ...] = (), **fields: Any) -> Mapping[str, Any]:
        """The fields of the answer.

        Raises:
            DaemonUnreachableError: no daemon answers, and none came back in time.
            FarmError: what the daemon reported.
        """
        return (await self.ask(kind, fields, frames)).fields

    async def call_head(self, kind: str, /, **fields: Any) -> Mapping[str, Any]:
        """As `call`. While no head of the lab answers, it is asked again, for as long as a restarting daemon is."""
        until_s, said = time.monotonic() + self._restart_s, False
        while True:
            try:
                return await self.call(kind, **fields)
            except FarmError as error:
                if error.code != Code.HEAD_AWAY or time.monotonic() >= until_s:
                    raise
                if not said:
                    self.on_notice(f"{error.message}; waiting up to {self._restart_s:.0f} s for one that does")
                said = True
            await asyncio.sleep(POLL_S)

    async def ask(self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...] = ()) -> Reply:
        """As `call`, with the raw frames of the answer."""
        while True:
            try:
                reply = await self._answer(kind, fields, frames)
            except DaemonUnreachableError as error:
                await self.wait_until_back(error)
            else:
                self._met = True
                return reply

    async def stream(self, kind: str, /, **fields: Any) -> AsyncGenerator[Reply, None]:
        """Messages ahead of the answer, then the answer. Broken off, it raises: ask again after `wait_until_back`."""
        async with aclosing(self._replies(kind, fields)) as replies:
            async for reply in replies:
                self._met = True
                yield reply

    async def wait_until_back(self, error: DaemonUnreachableError) -> None:
        """Return when a daemon that went away answers again.

        Raises:
            DaemonUnreachableError: `error`, when none was ever there, or none has come back in time.
        """
        if not self._met:
            raise error
        if not self._disconnected:
            self._disconnected = True
            self.on_notice(f"{error.message}; waiting up to {self._restart_s:.0f} s for it to come back")
        deadline = time.monotonic() + self._restart_s
        while time.monotonic() < deadline:
            try:
                await self._answer("ping", {})
            except DaemonUnreachableError as latest:
                error = latest
                await asyncio.sleep(POLL_S)
            else:
                if self._disconnected:
                    self._disconnected = False
                    self.on_notice("the farm daemon is back")
                return
        raise error

    async def _answer(self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...] = ()) -> Reply:
        async with aclosing(self._replies(kind, fields, frames)) as replies:
            async for reply in replies:
                if not reply.more:
                    return reply
        raise ProtocolError("the daemon's answer ended early")

    async def _replies(
        self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...] = ()
    ) -> AsyncGenerator[Reply, None]:
        """Everything the daemon sends about one question, the answer last. Closing it early ends the work."""
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
        await asyncio.to_thread(probe, self._where)
        if self._context is None:
            self._context = zmq.asyncio.Context()
        link = Link(self._context, self._where)
        self._open.add(link)
        return link

    def _drop(self, link: Link) -> None:
        if link in self._open:
            self._open.discard(link)
            link.close()


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
        """Whether the daemon it led to has gone between calls."""
        return bool(await self._poller.poll(0))

    async def ask(self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...]) -> AsyncGenerator[Reply, None]:
        """Replies as they come, the answer last.

        Raises:
            DaemonUnreachableError: the daemon does not answer any more.
            FarmError: what the daemon reported.
        """
        request = Request(secrets.token_hex(8), kind, fields, frames)
        message = encode_request(request)
        self.busy = True
        await self._socket.send_multipart(message)
        exchange = Exchange(request, time.monotonic(), self._where)
        while not exchange.ended:
            received = await self._receive(exchange)
            try:
                reply = exchange.received(received, time.monotonic())
            except FarmError as error:
                self.busy = not exchange.ended
                if error.code == Code.STOPPING:
                    raise DaemonUnreachableError("the farm daemon is stopping", hint=error.hint) from error
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
                raise exchange.silent()
            event = parse_monitor_message(await self._monitor.recv_multipart())
            if event["event"] & FAILED_HANDSHAKE:
                raise refused(self._where)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                raise DaemonUnreachableError("the farm daemon went away", hint="farm status tells when it is back")
