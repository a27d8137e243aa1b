"""What a leased adb does with sockets: a loopback door for one user, whose connections all end with it, and copying.

Streams are copied as an adb server does it: there is no half-close, the end of one side ends both, and what the phone
sent last reaches its reader.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from farm.adb.errors import AdbPortTaken
from farm.core.errors import FarmError, HostError

LOOPBACK = "127.0.0.1"
BACKLOG = 64  # adb clients open a connection for each step of a command
MAX_CONNECTIONS = 256  # of one door: descriptors are the whole daemon's; a parallel test runner takes some 50
CHUNK_BYTES = 256 << 10  # as the adb server's own largest packet burst
UNIX_BUFFER_BYTES = 4 << 20  # a unix socket's stays at 208 KiB otherwise: less than one chunk
LAST_BYTES_S = 1.0  # for a client to take what the phone sent last; adb's own limit is one second too
EXHAUSTED_PAUSE_S = 0.5  # without descriptors: look again this soon

Admits = Callable[[socket.socket], Awaitable[str]]  # why a connection is turned away; "": it may come in
Serve = Callable[[socket.socket], Awaitable[None]]

log = logging.getLogger(__name__)


class Doorway:
    """One listening loopback port. Each admitted connection is served by a task and closed afterwards."""

    def __init__(self, admits: Admits, serve: Serve, turn_away: Serve | None = None) -> None:
        """`turn_away` tells somebody who is not admitted; nothing is said without it."""
        self._admits = admits
        self._serve = serve
        self._turn_away = turn_away
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self.port = 0  # 0 before `open`

    def open(self, port: int = 0) -> int:
        """Listen; 0 lets the kernel choose. Returns the port.

        Raises:
            AdbPortTaken: somebody else listens there.
            HostError: no socket can be had.
        """
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((LOOPBACK, port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            kind = AdbPortTaken if port else HostError
            raise kind(
                f"cannot listen on {LOOPBACK} port {port}: {error.strerror or error}",
                hint=f"`ss -ltnp 'sport = :{port}'` names the program that has it" if port else "",
                evidence=str(error),
            ) from error
        self._socket = listener
        self.port = int(listener.getsockname()[1])
        self._accepting = asyncio.create_task(self._accept(listener), name=f"leased adb {self.port}")
        return self.port

    async def close(self) -> None:
        """Stop listening and cut every connection; returns when they are closed."""
        tasks = [*self._tasks, *([self._accepting] if self._accepting else [])]
        self._accepting = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except ConnectionError:
                continue  # it left while it queued
            except OSError as error:
                log.warning("leased adb %d cannot accept: %s", self.port, error.strerror or error)
                await asyncio.sleep(EXHAUSTED_PAUSE_S)
                continue
            if len(self._tasks) >= MAX_CONNECTIONS:
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._run(connection), name=f"leased adb {self.port} connection")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: socket.socket) -> None:
        with connection:
            try:
                refused = await self._admits(connection)
                if not refused:
                    await self._serve(connection)
                elif self._turn_away is not None:
                    await self._turn_away(connection)
            except (OSError, TimeoutError) as error:
                log.debug("leased adb %d: a connection ended: %s", self.port, error)
            except FarmError as error:
                log.info("leased adb %d: %s", self.port, error)
            except Exception:
                log.exception("leased adb %d: a bug in farm", self.port)


async def relay(client: socket.socket, phone: socket.socket) -> None:
    """Copy both ways until either side ends. Neither socket is closed here; of the client's, the writing half is."""
    if phone.family == socket.AF_UNIX:
        phone.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
    up = asyncio.create_task(_copy(client, phone), name="leased adb up")
    down = asyncio.create_task(_copy(phone, client), name="leased adb down")
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
    await finish(client)


async def finish(client: socket.socket) -> None:
    """Let a client read what was sent last: closing while bytes of its own are unread would reset the connection."""
    loop = asyncio.get_running_loop()
    try:
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(LAST_BYTES_S):
            while await loop.sock_recv(client, CHUNK_BYTES):
                pass
    except (OSError, TimeoutError):
        return  # it left, or does not want it


async def _copy(source: socket.socket, sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        while count := await loop.sock_recv_into(source, buffer):
            await loop.sock_sendall(sink, buffer[:count])
            await asyncio.sleep(0)  # neither call waits while both sides are quick: others have their turn
    except OSError as error:
        log.debug("leased adb: a stream broke: %s", error)
