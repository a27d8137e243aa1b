"""The link of a host to the other hosts of its lab: it listens for them, dials them, and has the services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from farm.common.errors import Code, FarmError, HostError, HostUnreachableError, ProtocolError
from farm.common.limiter import ClientLimiter, ClientPlace, Limiter
from farm.common.tasks import BackgroundTasks
from farm.lab.hosts import KnownHosts, PinnedHosts
from farm.lab.identity import LabIdentity
from farm.lab.tls import Secured, TlsError, TlsThreads, closed_on_error
from farm.lab.wire import (
    MAX_BYTES,
    VERSION,
    FirstMessageReader,
    Preface,
    PrefaceAnswer,
    decode_answer,
    decode_preface,
    encode_answer,
    encode_preface,
)
from farm.store.mailbox import HostRecord
from farm.tvm_server.connection import set_options
from farm.tvm_server.listener import Acceptor, address_at, bind, refusal_log

BACK = "back"  # the service that hosts dial because this one has asked them to
LISTEN_HINT = "[lab] listen must be an address of this host (`ip -br address`)"
STALLED_S = 30.0  # in which the other host takes what was written, up to some MB; else it is cut off
CHECK_EVERY_S = 5.0  # whether the hosts of open connections are still in the table

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Bounds of one connection, or of all together."""

    handshake_s: float = 5.0  # of TLS
    preface_s: float = 5.0  # from there to the preface
    dial_s: float = 10.0  # to connect, shake hands and be answered
    idle_s: float = 3600.0  # a connection without a byte; services have shorter limits of their own
    # Handshakes at once: half are for addresses of known hosts, and other addresses have at most half each. The oldest
    # of an address makes room.
    unknown: int = 64
    dialled: int = 8  # handshakes at once with one host
    of_host: int = 512  # connections of one host
    unanswered: int = 64  # letters to a host that does not listen and has not dialled since
    ask_again_s: float = 30.0  # to a host with so many, one letter in this time


@dataclass(slots=True, eq=False)
class LinkConnection:
    """A connection to a service of another host. Its owner closes it."""

    host: str  # the other one
    fields: Mapping[str, Any]  # JSON, of the preface (at the host that was dialled) or of the answer
    sock: socket.socket  # plain and non-blocking
    early: bytes = b""  # read already, before the bytes that the socket still has
    passed_on: bool = False  # the socket has another owner now
    _writer: asyncio.StreamWriter | None = field(default=None, repr=False)

    async def streams(self, most_line_bytes: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Reader and writer over the socket. Call it once, and not after `take`."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(most_line_bytes, loop=loop)
        reader.feed_data(self.early)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_unix_connection(lambda: protocol, sock=self.sock)
        self._writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return reader, self._writer

    async def drain(self) -> None:
        """Wait until the other host has taken most of what was written.

        Raises:
            OSError: the connection is lost, or was cut because the other host reads nothing.
        """
        assert self._writer is not None
        async with self._cut_when_stalled():
            await self._writer.drain()

    def take(self) -> tuple[socket.socket, bytes]:
        """The socket and its early bytes; the caller owns the socket from now on."""
        self.passed_on = True
        return self.sock, self.early

    async def close(self) -> None:
        """Send the bytes that were written, then end the connection. Harmless when repeated, and after `take`.

        A host that does not take them is cut off.
        """
        if self.passed_on:
            return
        if self._writer is None:
            self.sock.close()
            return
        with contextlib.suppress(OSError):
            self._writer.close()
            async with self._cut_when_stalled():
                await self._writer.wait_closed()

    @asynccontextmanager
    async def _cut_when_stalled(self) -> AsyncIterator[None]:
        """Else a host that does not read would hold the connection, its thread and its task."""
        assert self._writer is not None
        try:
            async with asyncio.timeout(STALLED_S):
                yield
        except TimeoutError:
            self._writer.transport.abort()
            raise


@dataclass(slots=True, eq=False)
class LinkCall(LinkConnection):
    """A connection from another host. A service accepts it, or raises the reason for its refusal."""

    accepted: bool = False

    async def accept(self, **fields: Any) -> None:
        """Answer the preface: from now on the connection is the service's."""
        self.accepted = True
        await asyncio.get_running_loop().sock_sendall(self.sock, encode_answer(PrefaceAnswer(fields)))


# Serves one connection; the link closes it afterwards, unless the service has taken it. The link sends an error that is
# raised before `accept` to the other host.
Service = Callable[[LinkCall], Awaitable[None]]


class HostLink:
    """All connections between this host and others. Used on the event loop."""

    def __init__(
        self,
        identity: LabIdentity,
        read_hosts: Callable[[], Awaitable[Sequence[HostRecord]]],
        limits: LinkLimits = LinkLimits(),
    ) -> None:
        """`read_hosts` returns every row of the host table."""
        self.identity = identity
        self._limits = limits
        self._hosts = KnownHosts(identity, read_hosts)
        self._services: dict[str, Service] = {}
        self._tls = TlsThreads(limits.handshake_s, limits.idle_s)
        self._acceptor = Acceptor(self._accepted)
        self._seen: set[str] = set()  # addresses from which hosts of the lab have come
        half = limits.unknown // 2
        self._unknown: ClientLimiter[str] = ClientLimiter(
            Limiter(limits.unknown, half, reserved=half, operators=self._seen)
        )
        self._dialled = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(limits.dialled))  # by host
        self._of_host: Limiter[str] = Limiter(per_key=limits.of_host)
        self._open: dict[Secured, str] = {}  # -> its host
        self._tasks = BackgroundTasks()
        self._ask_back: Callable[[str, str], None] | None = None
        self._awaited: dict[tuple[str, str], asyncio.Future[tuple[socket.socket, bytes]]] = {}  # by host and token
        self._unanswered: dict[str, tuple[int, float]] = {}  # by host: letters that it has not answered, latest (s)
        self._checking: asyncio.Task[None] | None = None
        self._log_refused = refusal_log()

    @property
    def port(self) -> int:
        """The port where it listens; 0: it does not."""
        return self._acceptor.port

    def serve(self, service: str, handler: Service) -> None:
        """Let this handler serve the connections whose preface names this service."""
        assert service not in self._services, service
        self._services[service] = handler

    def listen(self, address: str, port: int) -> None:
        """Accept connections there.

        Raises:
            HostError: the port is taken, or this host has no such address.
        """
        self._acceptor.take(bind(address, port, LISTEN_HINT))

    async def stop(self) -> None:
        """Stop listening, and cut every connection."""
        self._acceptor.stop()
        if self._checking is not None:
            self._checking.cancel()
        await asyncio.sleep(0)  # tasks of connections that have just come begin, and so close them when they end
        await self._tls.stop()
        await self._tasks.end(0.0)

    async def hosts(self) -> Mapping[str, HostRecord]:
        """The other hosts by name; see `KnownHosts.recent`."""
        return (await self._hosts.recent()).hosts

    # --- to another host ------------------------------------------------------------------------------------------

    async def dial(
        self, host: str, service: str, fields: Mapping[str, Any] | None = None, *, limit_s: float | None = None
    ) -> LinkConnection:
        """Connect to a service of another host; the connection has the fields of its answer.

        Args:
            host: its name.
            service: the service there.
            fields: of the request, JSON.
            limit_s: until it has answered; None: `LinkLimits.dial_s`.

        Raises:
            HostUnreachableError: it is no host of the lab, does not answer, or another host answers.
            FarmError: the service's refusal.
        """
        limit_s = self._limits.dial_s if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._dial(host, encode_preface(Preface(service, fields or {})))
        except TimeoutError as error:
            raise _unreachable(host, f"it has not answered within {limit_s:g} s") from error
        except (TlsError, OSError, ProtocolError) as error:
            raise _unreachable(host, str(error)) from error

    async def _dial(self, host: str, preface: bytes) -> LinkConnection:
        try:
            return await self._dial_by(await self._hosts.recent(), host, preface)
        except (HostUnreachableError, TlsError, OSError, ProtocolError):
            return await self._dial_by(await self._hosts.now(), host, preface)

    async def _dial_by(self, table: PinnedHosts, host: str, preface: bytes) -> LinkConnection:
        row = table.hosts.get(host)
        if row is None:
            raise _unreachable(host, "it is no host of the lab", "farm host list")
        if not row.address and row.beat_at is None:
            raise _unreachable(host, "it does not run", "start its daemon")
        if not row.address:
            return await self._dialled_back(host, preface)
        async with self._dialled[host]:
            secured = await self._tls.secure(await _connected(row.address), table.client)
        if table.names.get(secured.certificate) != host:
            secured.sock.close()
            raise TlsError(f"{row.address} is another host of the lab")
        self._keep(secured, host)
        return await _answered(host, secured.sock, preface, over=secured.over)

    # --- hosts that do not listen ---------------------------------------------------------------------------------

    def ask_back_by(self, ask: Callable[[str, str], None]) -> None:
        """A host that does not listen dials this one with a token (`dial_back`) once `ask(host, token)` was called."""
        self._ask_back = ask
        self.serve(BACK, self._came_back)

    def dial_back(self, host: str, token: str) -> None:
        """Serve a connection with a host as if it had dialled this one, in the background."""
        self._tasks.spawn(self._serve_back(host, token), f"a connection with host {host}")

    async def _dialled_back(self, host: str, preface: bytes) -> LinkConnection:
        if self._ask_back is None or not self.port:
            raise _unreachable(
                host, f"neither it nor {self.identity.name} listens for others", "set [lab] listen on one of them"
            )
        self._count_letter(host)
        token = secrets.token_hex(16)
        came = self._awaited[host, token] = asyncio.get_running_loop().create_future()
        try:
            self._ask_back(host, token)
            sock, early = await came
        except asyncio.CancelledError:
            if came.done() and not came.cancelled():
                came.result()[0].close()  # it came in the moment of the cancellation
            raise
        finally:
            del self._awaited[host, token]
        return await _answered(host, sock, preface, early)

    def _count_letter(self, host: str) -> None:
        """Bound the letters to a host that takes none of them.

        Raises:
            HostUnreachableError: it has too many.
        """
        now_s = asyncio.get_running_loop().time()
        count, latest_s = self._unanswered.get(host, (0, -math.inf))
        if count >= self._limits.unanswered and now_s - latest_s < self._limits.ask_again_s:
            raise _unreachable(host, f"it was asked {count} times to dial this host, and has not", "farm host list")
        self._unanswered[host] = count + 1, now_s

    async def _came_back(self, call: LinkCall) -> None:
        self._unanswered.pop(call.host, None)
        came = self._awaited.get((call.host, str(call.fields.get("token"))))
        if came is None or came.done():
            raise HostError(f"{self.identity.name} does not wait for {call.host} any more", Code.HOST_LOST)
        await call.accept()
        if not came.done():
            came.set_result(call.take())

    async def _serve_back(self, host: str, token: str) -> None:
        try:
            connection = await self.dial(host, BACK, {"token": token})
        except FarmError as error:
            log.info("host %s wants to be dialled: %s", host, error.message)
            return
        sock, early = connection.take()
        try:
            with closed_on_error(sock):
                async with asyncio.timeout(self._limits.preface_s):
                    preface, early = await _first_message(sock, decode_preface, early)
                call = self._checked(host, preface, sock, early)
        except (OSError, FarmError) as error:  # TimeoutError is an OSError
            self._log_refused(host, f"host {host}: {str(error) or 'it has sent no preface'}")
            return
        await self._handle(preface.service, call)

    # --- from another host ----------------------------------------------------------------------------------------

    def _accepted(self, sock: socket.socket) -> None:
        if not (address := address_at(sock)):
            return
        place = self._unknown.enter(address, lambda: self._cut(address, sock, task))
        if place is None:
            sock.close()
            self._log_refused(address, "too many connections at once of no known host")
            return
        task = self._tasks.spawn(self._serve(sock, address, place), "a host's connection")

    def _cut(self, address: str, sock: socket.socket, task: asyncio.Task[None]) -> None:
        task.cancel()
        sock.close()  # for a task that has not begun
        self._log_refused(address, "too many connections at once of no known host: the oldest are cut")

    async def _serve(self, sock: socket.socket, address: str, place: ClientPlace[str]) -> None:
        try:
            with closed_on_error(sock):
                known = await self._hosts.any()
                secured = await self._tls.secure(sock, known.server)
            self._unknown.mark_active(place)
            with closed_on_error(secured.sock):
                table = await self._hosts.now()  # it decides whether the host is let in
        except (TlsError, OSError) as error:
            self._log_refused(address, f"refused as a host of the lab: {error}")
            return
        finally:
            self._unknown.leave(place)
        with closed_on_error(secured.sock):
            called = await self._called(address, table, secured)
        if called is not None:
            await self._handle(*called)

    async def _called(self, address: str, table: PinnedHosts, secured: Secured) -> tuple[str, LinkCall] | None:
        """The service and the call of an accepted host; None: it was refused."""
        host = table.names.get(secured.certificate)
        reason = ""
        if host is None:
            reason = "its certificate belongs to no host of the lab"
        elif not self._of_host.fits(host):
            reason = f"host {host} has {self._of_host.per_key} connections"
        else:
            self._keep(secured, host)
            self._seen.add(address)
            try:
                async with asyncio.timeout(self._limits.preface_s):
                    preface, early = await _first_message(secured.sock, decode_preface)
                return preface.service, self._checked(host, preface, secured.sock, early)
            except TimeoutError:
                reason = f"host {host} has sent no preface within {self._limits.preface_s:g} s"
            except (OSError, FarmError) as error:
                reason = f"host {host}: {error}"
        secured.sock.close()
        self._log_refused(address, reason)
        return None

    def _checked(self, host: str, preface: Preface, sock: socket.socket, early: bytes) -> LinkCall:
        reason = ""
        if preface.version != VERSION:
            reason = (
                f"it speaks version {preface.version} of the protocol between hosts, {self.identity.name} {VERSION}"
            )
        elif preface.service not in self._services:
            reason = f"host {host} wants the service {preface.service!r}, which host {self.identity.name} does not have"
        if reason:
            error = HostError(reason, Code.BAD_HOST_VERSION, hint="upgrade the host that has the older release")
            _send(sock, PrefaceAnswer(error=error))
            raise error
        return LinkCall(host, preface.fields, sock, early)

    async def _handle(self, service: str, call: LinkCall) -> None:
        try:
            await self._services[service](call)
        except FarmError as error:
            log.debug("%s of %s: %s", service, call.host, error)
            if not call.accepted:
                _send(call.sock, PrefaceAnswer(error=error))
        except (OSError, asyncio.IncompleteReadError) as error:
            log.debug("%s of %s: its connection was lost: %s", service, call.host, error)
        except Exception as error:
            log.exception("%s of host %s failed inside farm", service, call.host)
            if not call.accepted:
                _send(call.sock, PrefaceAnswer(error=FarmError(f"{type(error).__name__} at host {self.identity.name}")))
        finally:
            await call.close()

    # --- open connections -----------------------------------------------------------------------------------------

    def _keep(self, secured: Secured, host: str) -> None:
        self._open[secured] = host
        self._of_host.take(host)
        secured.over.add_done_callback(lambda _: self._over(secured))
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(), name="hosts of open connections")

    def _over(self, secured: Secured) -> None:
        self._of_host.give_back(self._open.pop(secured))

    async def _check(self) -> None:
        """Cut the connections of hosts that were removed, or have another certificate now."""
        while self._open:
            await asyncio.sleep(CHECK_EVERY_S)
            names = (await self._hosts.recent()).names
            for secured, host in tuple(self._open.items()):
                if names.get(secured.certificate) != host:
                    self._log_refused(host, "it is no host of the lab any more: its connections are cut")
                    secured.cut()
        self._checking = None


async def _connected(address: str) -> socket.socket:
    """A connection to HOST:PORT."""
    loop = asyncio.get_running_loop()
    name, _, port = address.rpartition(":")
    try:
        places = await loop.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = places[0]
        sock = socket.socket(family, kind, protocol)
        with closed_on_error(sock):
            set_options(sock)
            await loop.sock_connect(sock, place)
    except (OSError, UnicodeError) as error:  # the latter: no name of a host
        raise OSError(f"{address}: {getattr(error, 'strerror', '') or error}") from error
    return sock


async def _answered(
    host: str, sock: socket.socket, preface: bytes, early: bytes = b"", over: asyncio.Future[str] | None = None
) -> LinkConnection:
    """Send a preface; returns the connection once the other host has accepted it. After an error the socket is closed.

    Args:
        host: the other one.
        sock: of the connection.
        preface: to be sent.
        early: bytes that were read already.
        over: why the connection has ended; None: the reason is not known.

    Raises:
        FarmError: the other host refuses, or sends no answer.
    """
    with closed_on_error(sock):
        try:
            await asyncio.get_running_loop().sock_sendall(sock, preface)
            answer, early = await _first_message(sock, decode_answer, early)
        except ConnectionError as error:  # the thread of the connection has the reason
            reason = "" if over is None else await asyncio.shield(over)
            raise ProtocolError(reason or "it closed the connection") from error
        if answer.error is not None:
            raise answer.error
    return LinkConnection(host, answer.fields, sock, early)


async def _first_message(
    sock: socket.socket, decode: Callable[[Mapping[str, Any]], T], early: bytes = b""
) -> tuple[T, bytes]:
    """The first message, and the bytes behind it; `early` was read already."""
    loop, reader = asyncio.get_running_loop(), FirstMessageReader(decode)
    message = reader.feed(early)
    while message is None:
        if not (data := await loop.sock_recv(sock, MAX_BYTES)):
            raise ConnectionResetError("it closed the connection before its first message")
        message = reader.feed(data)
    return message, reader.trailing_data()


def _send(sock: socket.socket, answer: PrefaceAnswer) -> None:
    """Send without waiting: a new socket has room for an answer, and a host that has gone needs none."""
    with contextlib.suppress(OSError):
        sock.send(encode_answer(answer))


def _unreachable(host: str, reason: str, hint: str = "") -> HostUnreachableError:
    hint = hint or f"see whether the daemon of {host} runs, and its [lab] listen can be reached from here"
    return HostUnreachableError(f"host {host} cannot be reached: {reason}", hint=hint)
