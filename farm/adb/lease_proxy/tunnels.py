"""Forwards and reverses made under a lease: only its user may use them, and they end with it.

A forward is a listener of the proxy itself that opens a stream to the phone for each connection: only the lease's user
may dial it, it is cut with the lease, and the adb server's table, which all users share, stays untouched: adb would
silently rebind another user's port there.

A reverse is the real adb's: the phone's adbd listens. The adb server aborts, and every phone's streams with it, when a
phone dials a host socket that no reverse of it leads to any more; between `killforward` and adbd's answer that is a
matter of luck (docs/facts.md). So before one is removed, a second one to the same host socket is made under a random
name, and removed when the first is gone: adbd has answered by then, and dials no more.

Streams are copied as an adb server does it: there is no half-close, the end of one side ends both, and the last bytes
of the phone reach their reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

from farm.adb.client import AdbClient
from farm.adb.errors import AdbError, AdbFailed, AdbPortTaken
from farm.adb.tunnels import Tunnel, TunnelKind, parse_reverses
from farm.common.errors import FarmError, HostError, UserError
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter
from farm.common.peers import owner_of, shut_down

LOOPBACK = "127.0.0.1"
BACKLOG = 64  # adb clients open a connection for each step of a command
# Of one listener: descriptors are the whole daemon's; a parallel test runner takes some 50. The oldest connection that
# has not asked for anything makes room, of the user with most of them.
MAX_CONNECTIONS = 256
CHUNK_BYTES = 256 << 10  # as the adb server's own largest packet burst
UNIX_BUFFER_BYTES = 4 << 20  # a unix socket's stays at 208 KiB otherwise: less than one chunk
LAST_BYTES_S = 1.0  # for a client to take what the phone sent last; adb's own limit is one second too
EXHAUSTED_PAUSE_S = 0.5  # without descriptors: look again this soon

Admits = Callable[[socket.socket], Awaitable[str]]  # why a connection is refused; "": it is admitted
Serve = Callable[[socket.socket], Awaitable[None]]
MAX_TUNNELS = 64  # of one lease; removing a reverse takes three answers of the phone, and its next user waits
PLACEHOLDER_BYTES = 8  # random, in the name of the reverse that stands in for one being removed

log = logging.getLogger(__name__)


class LoopbackListener:
    """One listening loopback port. Each admitted connection is served by a task and closed afterwards."""

    def __init__(self, admits: Admits, serve: Serve, turn_away: Serve | None = None) -> None:
        """`turn_away` answers a connection that is not admitted. Without it such a connection is just closed."""
        self._admits = admits
        self._serve = serve
        self._turn_away = turn_away
        self._admission: ClientLimiter[str] = ClientLimiter(Limiter(MAX_CONNECTIONS))
        self._places: dict[socket.socket, ClientPlace[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self.port = 0  # 0 before `open`

    def open(self, port: int = 0) -> int:
        """Listen; 0 lets the kernel choose. Returns the port.

        Raises:
            AdbPortTaken: another program listens there.
            HostError: no socket can be had.
        """
        try:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise HostError(f"cannot listen on {LOOPBACK}: {error.strerror or error}", evidence=str(error)) from error
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
        """Stop listening and cut every connection. Returns when they are closed."""
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
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                owner = owner_of(connection)
            except OSError:  # it left while it queued
                connection.close()
                continue
            self.take(connection, self._admit, f"uid {owner.uid}" if owner else "")

    def take(self, connection: socket.socket, serve: Serve, user: str = "") -> None:
        """Serve a connection of this port until one of the two ends.

        `user`: the connection's owner; "": it comes from another host.
        """
        place = None if self._socket is None else self._admission.enter(user, partial(self._cut, connection))
        if place is None:
            connection.close()
            return
        self._places[connection] = place
        task = asyncio.create_task(self._run(connection, serve), name=f"leased adb {self.port} connection")
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, connection))

    def mark_active(self, connection: socket.socket) -> None:
        """Keep the connection, which has asked for something, when other connections need room."""
        self._admission.mark_active(self._places[connection])

    def _cut(self, connection: socket.socket) -> None:
        log.info("leased adb %d: a connection is cut that has not asked for anything", self.port)
        shut_down(connection)

    def _ended(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._admission.leave(self._places.pop(connection))

    async def _admit(self, connection: socket.socket) -> None:
        refused = await self._admits(connection)
        if not refused:
            await self._serve(connection)
        elif self._turn_away is not None:
            await self._turn_away(connection)

    async def _run(self, connection: socket.socket, serve: Serve) -> None:
        with connection:
            try:
                await serve(connection)
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
    """Let a client read the last bytes sent: closing while bytes of its own are unread would reset the connection."""
    loop = asyncio.get_running_loop()
    try:
        client.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(LAST_BYTES_S):
            while await loop.sock_recv(client, CHUNK_BYTES):
                pass
    except (OSError, TimeoutError):
        return  # it closed, or does not read


async def _copy(source: socket.socket, sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    try:
        while count := await loop.sock_recv_into(source, buffer):
            await loop.sock_sendall(sink, buffer[:count])
            await asyncio.sleep(0)  # neither call waits while both sides are quick: other tasks have their turn
    except OSError as error:
        log.debug("leased adb: a stream broke: %s", error)


class LeaseTunnels:
    """The tunnels of one lease on one phone."""

    def __init__(
        self,
        client: AdbClient,
        serial: str,
        admits: Admits,
        *,
        barred_ports: Callable[[], Collection[int]],
        barred_service: Callable[[str], bool],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """Start without any.

        Args:
            client: of the real adb server.
            serial: the phone's.
            admits: checks the owner of a connection to a forward.
            barred_ports: of the host, where no reverse may lead, asked in a thread. Their listeners identify users by
                the socket's owner or address; a reverse's are the adb server's.
            barred_service: whether no forward may lead to a service of the phone now.
            changed: called after `made` has changed, before the client gets its answer.
        """
        self._client = client
        self._serial = serial
        self._admits = admits
        self._barred_ports = barred_ports
        self._barred_service = barred_service
        self._changed = changed
        self._forwards: dict[str, tuple[Tunnel, LoopbackListener]] = {}  # by the host's socket
        self._reverses: dict[str, Tunnel] = {}  # by the phone's socket
        self._turn = asyncio.Lock()  # one change at a time

    @property
    def made(self) -> tuple[Tunnel, ...]:
        """All present tunnels."""
        return (*(tunnel for tunnel, _ in self._forwards.values()), *self._reverses.values())

    async def restore(self, tunnels: Iterable[Tunnel]) -> None:
        """Adopt the tunnels of an earlier daemon. A forward with a port that is taken by now is dropped."""
        async with self._turn:
            for tunnel in tunnels:
                if tunnel.kind is TunnelKind.REVERSE:
                    self._reverses[tunnel.listen] = tunnel
                    continue
                try:
                    self._listen(tunnel.listen, tunnel.dial)
                except FarmError as error:
                    log.warning("%s: a forward is lost: %s", self._serial, error)

    async def remake_reverses(self) -> tuple[str, ...]:
        """Make again the reverses that the adb server has forgotten. Returns messages about the failures."""
        problems = []
        async with self._turn:
            there = parse_reverses(self._serial, await self._client.list_reverses(self._serial))
            for tunnel in tuple(self._reverses.values()):
                try:
                    if await self._is_barred(tunnel.dial):
                        problems.append(
                            f"reverse {tunnel.listen} is removed: {tunnel.dial} is a port of farm itself by now"
                        )
                        await self._remove_reverse(tunnel)
                    elif tunnel not in there:
                        await self._client.add_reverse(self._serial, tunnel.listen, tunnel.dial)
                except AdbError as error:
                    self._reverses.pop(tunnel.listen, None)
                    problems.append(f"reverse {tunnel.listen} is lost: {error.message}")
        return tuple(problems)

    async def close(self) -> None:
        """Remove all reverses. The phone's adbd drops unconfirmed reverses with the link."""
        async with self._turn:
            await asyncio.gather(*(listener.close() for _, listener in self._forwards.values()))
            self._forwards.clear()
            for remote, tunnel in tuple(self._reverses.items()):
                try:
                    await self._remove_reverse(tunnel)
                except AdbError as error:
                    log.info("%s: reverse %s could not be removed: %s", self._serial, remote, error)
            self._reverses.clear()

    # -- forwards --

    def listing(self) -> str:
        """`SERIAL LOCAL REMOTE` lines."""
        return "".join(f"{self._serial} {each.listen} {each.dial}\n" for each, _ in self._forwards.values())

    async def add_forward(self, local: str, remote: str, *, rebind: bool) -> str:
        """Listen on the host; returns the port of `tcp:0`, or "".

        Raises:
            UserError: the lease has one there and `rebind` is not wanted, or has too many.
            AdbPortTaken: another program listens there.
        """
        async with self._turn:
            if local in self._forwards:
                if not rebind:
                    raise UserError("cannot rebind existing socket")
                await self._forwards.pop(local)[1].close()
            self._check_room()
            port = self._listen(local, remote)
            await self._changed()
            return str(port) if local == "tcp:0" else ""

    async def remove_forward(self, local: str | None) -> None:
        """Stop listening on the host's `local`, or on all.

        Raises:
            UserError: the lease has none there.
        """
        async with self._turn:
            if local is not None and local not in self._forwards:
                raise UserError(f"listener '{local}' not found")
            for each in [local] if local is not None else list(self._forwards):
                await self._forwards.pop(each)[1].close()
            await self._changed()

    def _listen(self, local: str, remote: str) -> int:
        listener = LoopbackListener(self._admits, lambda connection: self._connect(listener, connection, remote))
        port = listener.open(int(local.removeprefix("tcp:")))
        tunnel = Tunnel(TunnelKind.FORWARD, self._serial, f"tcp:{port}", remote)
        self._forwards[tunnel.listen] = (tunnel, listener)
        return port

    async def _connect(self, listener: LoopbackListener, connection: socket.socket, remote: str) -> None:
        listener.mark_active(connection)
        if self._barred_service(remote):  # farm's server had another port when the forward was made
            raise UserError(f"{remote} is farm's own RPC server now")
        async with await self._client.open_service(self._serial, remote) as phone:
            await relay(connection, phone.raw)

    # -- reverses --

    async def add_reverse(self, remote: str, local: str, *, rebind: bool) -> str:
        """Listen on the phone; returns the port of `tcp:0`, or "".

        Raises:
            UserError: the port is barred, or the lease has too many.
            AdbError: the phone refused, or is not there.
        """
        if await self._is_barred(local):
            raise UserError(f"not on a leased adb: the host's {local} is a port of farm itself")
        async with self._turn:
            held = self._reverses.get(remote)
            if held is not None and rebind:
                with contextlib.suppress(AdbFailed):  # adb forgot it with a lost link
                    await self._remove_reverse(held)
            if remote not in self._reverses:
                self._check_room()
            chosen = await self._client.add_reverse(self._serial, remote, local)
            listen = f"tcp:{chosen}" if chosen else remote
            self._reverses[listen] = Tunnel(TunnelKind.REVERSE, self._serial, listen, local)
            await self._changed()
            return chosen

    async def remove_reverse(self, remote: str | None) -> None:
        """Stop listening on the phone's `remote`, or on all that the lease made.

        Raises:
            UserError: the lease has none there.
            AdbError: the phone refused, or is not there.
        """
        async with self._turn:
            if remote is not None and remote not in self._reverses:
                raise UserError(f"listener '{remote}' not found")
            try:
                for each in [remote] if remote is not None else list(self._reverses):
                    await self._remove_reverse(self._reverses[each])
            finally:
                await self._changed()

    async def _is_barred(self, local: str) -> bool:
        return int(local.removeprefix("tcp:")) in await asyncio.to_thread(self._barred_ports)

    def _check_room(self) -> None:
        if len(self.made) >= MAX_TUNNELS:
            raise UserError(f"not on a leased adb: a lease has at most {MAX_TUNNELS} forwards and reverses")

    async def _remove_reverse(self, tunnel: Tunnel) -> None:
        """Remove one although the phone may dial it (see the top of this file)."""
        placeholder = f"localabstract:farm-{secrets.token_hex(PLACEHOLDER_BYTES)}"
        await self._client.add_reverse(self._serial, placeholder, tunnel.dial)
        try:
            await self._client.remove_reverse(self._serial, tunnel.listen)
        finally:
            self._reverses.pop(tunnel.listen, None)
            await self._client.remove_reverse(self._serial, placeholder)
