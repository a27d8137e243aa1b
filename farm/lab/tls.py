"""Ends of TLS: a thread per connection shakes hands, and then copies between TLS and a plain unix socket.

So services see sockets and nothing of TLS: the gate's process can take over the socket of a session, and a busy event
loop delays no connection. OpenSSL works without the interpreter's lock. When one side ends, the other side gets the
bytes read before and is closed too: a service that sends a file says first how many bytes follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from farm.common.errors import HostError
from farm.common.peers import shut_down
from farm.lab.identity import LabIdentity
from farm.tvm_server.connection import UNIX_BUFFER_BYTES

CHUNK_BYTES = 256 << 10
MAX_CERTIFICATE_BYTES = 16 << 10  # PEM; those of members have some 600
LAST_BYTES_S = 5.0  # after the end of one side: the time in which the other takes the bytes already read
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL
STOP_S = 5.0  # for each thread to end: a closed socket ends its copying at once


class TlsError(HostError):
    """The other host did not show a certificate of the lab, or did not take this host's."""

    code = "tls_failed"


def server_context(identity: LabIdentity, certificates: Iterable[str]) -> ssl.SSLContext:
    """For connections from other hosts; accepts these certificates (PEM) and no others."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, identity, certificates)
    context.num_tickets = 0  # no session is resumed: each connection shows its certificate
    return context


def client_context(identity: LabIdentity, certificates: Iterable[str]) -> ssl.SSLContext:
    """For connections to other hosts; accepts these certificates (PEM). The caller checks that it is the right one."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, identity, certificates)


def _context(protocol: int, identity: LabIdentity, certificates: Iterable[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    context.load_cert_chain(identity.certificate_file, identity.key_file)
    if pinned := "\n".join(certificates):
        context.load_verify_locations(cadata=pinned)
    return context


@contextlib.contextmanager
def closed_on_error(sock: socket.socket) -> Iterator[None]:
    """Close the socket when the block fails or is cancelled."""
    try:
        yield
    except BaseException:
        sock.close()
        raise


def tls_socket(sock: socket.socket, context: ssl.SSLContext, *, handshake: bool = False) -> ssl.SSLSocket:
    """TLS over a connected socket, which is closed after an error.

    Raises:
        OSError: the connection was reset before (`wrap_socket` alone would leave it open), or the handshake failed.
    """
    server = context.protocol == ssl.PROTOCOL_TLS_SERVER
    with closed_on_error(sock):
        sock.getpeername()
        return context.wrap_socket(sock, server_side=server, do_handshake_on_connect=handshake)


def is_certificate(text: str) -> bool:
    """Whether OpenSSL reads it: a damaged row must not shut out other members."""
    if not text.isascii() or len(text) > MAX_CERTIFICATE_BYTES:
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
        ssl.PEM_cert_to_DER_cert(text)
    except (ssl.SSLError, ValueError):
        return False
    return True


@dataclass(slots=True, eq=False)
class Secured:
    """A connection after the handshake."""

    certificate: bytes  # of the other host, DER
    sock: socket.socket  # plain and non-blocking; closed by its owner
    over: asyncio.Future[str]  # the reason for its end; "": one side closed it
    cut: Callable[[], None]


class TlsThreads:
    """The threads of all connections. Used on the event loop."""

    def __init__(self, handshake_s: float, idle_s: float) -> None:
        """`handshake_s`: the limit of a handshake. `idle_s`: a connection without a byte for so long ends."""
        self._handshake_s = handshake_s
        self._idle_s = idle_s
        self._threads: set[threading.Thread] = set()
        self._open: set[Secured] = set()

    async def secure(self, sock: socket.socket, context: ssl.SSLContext) -> Secured:
        """Shake hands over a connected socket, which the thread owns from now on. Cancellation ends the handshake.

        Raises:
            TlsError: the other side has no certificate of the context, refuses this host, or is too slow.
        """
        loop = asyncio.get_running_loop()
        secured: asyncio.Future[Secured] = loop.create_future()
        self._threads = {each for each in self._threads if each.is_alive()}
        try:
            tls = tls_socket(sock, context)
        except OSError as error:
            raise TlsError(_reason(error)) from error
        thread = threading.Thread(target=self._run, args=(loop, tls, secured), name="farm-link", daemon=True)
        self._threads.add(thread)
        thread.start()
        try:
            return await secured
        except asyncio.CancelledError:
            if secured.done() and not secured.cancelled() and secured.exception() is None:
                secured.result().sock.close()  # it came in the moment of the cancellation: nobody else owns it
            else:
                shut_down(tls)
            raise

    async def stop(self) -> None:
        """Cut every connection, and wait for the threads."""
        for each in tuple(self._open):
            each.cut()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, STOP_S)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLSocket, secured: asyncio.Future[Secured]) -> None:
        with contextlib.suppress(RuntimeError), tls:  # RuntimeError: the loop is closed, no task waits for the result
            until_s = time.monotonic() + self._handshake_s
            tls.settimeout(self._handshake_s)
            try:
                tls.do_handshake()
            except OSError as error:
                _leave(tls, until_s)  # the caller counts it until then
                loop.call_soon_threadsafe(_fail, secured, TlsError(_reason(error)))
                return
            ours, theirs = _plain_pair()
            with ours:
                over: asyncio.Future[str] = loop.create_future()
                certificate = tls.getpeercert(binary_form=True) or b""
                found = Secured(certificate, theirs, over, partial(shut_down, ours))
                loop.call_soon_threadsafe(self._secured, secured, found)
                why = copy(tls, ours, self._idle_s)
            loop.call_soon_threadsafe(self._over, found, why)

    def _secured(self, secured: asyncio.Future[Secured], found: Secured) -> None:
        self._open.add(found)
        if secured.done():  # cancelled
            found.sock.close()
        else:
            secured.set_result(found)

    def _over(self, found: Secured, why: str) -> None:
        self._open.discard(found)
        found.over.set_result(why)


def _fail(secured: asyncio.Future[Secured], error: TlsError) -> None:
    if not secured.done():
        secured.set_exception(error)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate belongs to no host of the lab ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        return f"it refuses this host ({reason})" if " alert " in reason else f"TLS failed ({reason})"
    if isinstance(error, TimeoutError):
        return "the handshake took too long"
    return error.strerror or str(error) or "the connection was closed"


def _plain_pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
        end.setblocking(False)
    return pair


def _leave(tls: ssl.SSLSocket, until_s: float) -> None:
    """End a connection so that its last bytes arrive: closing it with unread bytes would reset it."""
    with contextlib.suppress(OSError):
        tls.shutdown(socket.SHUT_WR)
        while (left_s := until_s - time.monotonic()) > 0:
            tls.settimeout(left_s)
            if not tls.recv(CHUNK_BYTES):
                return


def copy(tls: ssl.SSLSocket, plain: socket.socket, idle_s: float) -> str:
    """Copy both ways until one side ends or no byte comes for `idle_s`; return why. Blocking, closes nothing."""
    tls.setblocking(False)
    up, down = _OneWay(plain, tls), _OneWay(tls, plain)
    waits = select.poll()
    masks = {tls.fileno(): 0, plain.fileno(): 0}
    for descriptor in masks:
        waits.register(descriptor, 0)
    while True:
        for source, sink, descriptor in ((down, up, tls.fileno()), (up, down, plain.fileno())):
            mask = (0 if source.unsent else select.POLLIN) | (select.POLLOUT if sink.unsent else 0)
            if mask != masks[descriptor]:
                masks[descriptor] = mask
                waits.modify(descriptor, mask)
        ready = not down.unsent and tls.pending() > 0
        events = waits.poll(0 if ready else idle_s * 1000)
        if not events and not ready:
            return f"no byte for {idle_s:g} s"
        gone = {descriptor for descriptor, event in events if event & _GONE}
        try:
            for each, descriptor in ((down, tls.fileno()), (up, plain.fileno())):  # a refusal before the write it fails
                if each.move() or (descriptor in gone and each.unsent):  # else it is read, and ends so
                    each.finish()
                    if each is up:
                        _leave(tls, time.monotonic() + LAST_BYTES_S)
                    return ""
        except OSError as error:
            return _reason(error)


class _OneWay:
    """Copies one way; reads no more while it has unwritten bytes."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source = source
        self._sink = sink
        self._buffer = memoryview(bytearray(CHUNK_BYTES))
        self.unsent = self._buffer[:0]

    def move(self) -> bool:
        """Read and write without waiting; returns whether the source has ended."""
        ended = False
        if not self.unsent:
            ended = self._read()
        if self.unsent:
            self._write()
        return ended

    def finish(self) -> None:
        """Write the rest of a source that has ended; each write may take `LAST_BYTES_S`."""
        with contextlib.suppress(OSError):
            self._sink.settimeout(LAST_BYTES_S)
            self._sink.sendall(self.unsent)
            while not self._read() or self.unsent:
                self._sink.sendall(self.unsent)

    def _read(self) -> bool:
        count = 0
        try:
            while count < CHUNK_BYTES:  # a record of TLS has at most 16 KiB
                got = self._source.recv_into(self._buffer[count:])
                if not got:
                    self.unsent = self._buffer[:count]
                    return True
                count += got
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except ConnectionResetError:  # the end of a side that has not read everything: its last bytes count
            if not count:
                raise
            self.unsent = self._buffer[:count]
            return True
        self.unsent = self._buffer[:count]
        return False

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while self.unsent:
                self.unsent = self.unsent[self._sink.send(self.unsent) :]
