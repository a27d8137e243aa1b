"""Streams that are sockets on the phone: `tcp:PORT`, `localabstract:NAME`, and dials of reverse forwards.

`ReverseTable` has the listeners of `reverse:`, whose connections the host answers. They live as long as the link.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.common.errors import ProtocolError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from farm.simulation.machine import Machine
    from farm.simulation.packets import Buffer
    from farm.simulation.session import AdbSession, Stream

_FIRST_READ_BYTES = 16 * 1024  # RPC messages are small; who fills a buffer gets a larger one
_MAX_READ_BYTES = 256 * 1024
_CONNECT_TIMEOUT_S = 10.0
_LOOPBACK = "127.0.0.1"

Address = tuple[socket.AddressFamily, tuple[str, int] | str]


def parse_address(spec: str, translate: Callable[[bytes], bytes] = bytes) -> Address:
    """Where a socket name of adb leads on this phone; `translate` is its machine's, for names that are paths."""
    kind, colon, rest = spec.partition(":")
    if not colon:
        raise ProtocolError(f"unknown socket specification: {spec}")
    if kind == "tcp":
        port = rest.rpartition(":")[2]
        if not port.isdecimal() or int(port) > 0xFFFF:
            raise ProtocolError(f"bad port number '{port}'")
        return socket.AF_INET, (_LOOPBACK, int(port))
    if kind in {"localabstract", "local"} and rest and not (kind == "local" and rest.startswith("/")):
        return socket.AF_UNIX, "\0" + rest
    if kind in {"localfilesystem", "localreserved", "local"} and rest:
        path = f"/dev/socket/{rest}" if kind == "localreserved" else rest
        return socket.AF_UNIX, os.fsdecode(translate(os.fsencode(path)))
    raise ProtocolError(f"unknown socket specification: {spec}")


def dial(loop: asyncio.AbstractEventLoop, address: Address, done: Callable[[socket.socket | None], None]) -> None:
    """Connect without blocking; `done` gets the socket, or None when nothing listens there.

    Called before this returns whenever the answer is immediate, as it is on a loopback.
    """
    family, target = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        result = sock.connect_ex(target)
    except OSError:  # a path longer than the kernel takes
        result = errno.EINVAL
    if result == 0:
        done(sock)
        return
    if result != errno.EINPROGRESS:
        sock.close()
        done(None)
        return

    def finished(*, timed_out: bool = False) -> None:
        loop.remove_writer(sock)
        timer.cancel()
        if timed_out or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            sock.close()
            done(None)
        else:
            done(sock)

    timer = loop.call_later(_CONNECT_TIMEOUT_S, lambda: finished(timed_out=True))
    loop.add_writer(sock, finished)


class SocketService:
    """Copies bytes between a stream and a connected socket. An end on either side ends both."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stream: Stream, sock: socket.socket) -> None:
        self._loop = loop
        self._stream = stream
        self._socket = sock
        self._unsent: memoryview | None = None
        self._reading = False
        self._closed = False
        self._read_bytes = _FIRST_READ_BYTES
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """The stream is accepted: read from the socket."""
        self.drained()

    def received(self, payload: Buffer) -> None:
        """Pass bytes of the host on; the next ones are asked for when the socket took these."""
        self._unsent = memoryview(payload)
        self._push_out()

    def drained(self) -> None:
        """The host took the socket's bytes: read on."""
        if not self._reading and not self._closed:
            self._reading = True
            self._loop.add_reader(self._socket, self._on_readable)

    def closed(self) -> None:
        """The host is gone. Its last bytes still reach the socket."""
        self._stop_reading()
        if self._unsent is None:
            self._close_socket()

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(self._read_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._stop_reading()  # until `drained`: what waits, waits in the socket
        self._stream.write(data)
        if len(data) == self._read_bytes:
            self._read_bytes = min(_MAX_READ_BYTES, 4 * self._read_bytes, self._stream.max_payload)

    def _push_out(self) -> None:
        unsent = self._unsent
        if unsent is None:
            return
        try:
            sent = self._socket.send(unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end()
            return
        if sent < len(unsent):
            self._unsent = unsent[sent:]
            self._loop.add_writer(self._socket, self._push_out)
            return
        self._unsent = None
        self._loop.remove_writer(self._socket)
        if self._stream.is_open:
            self._stream.acknowledge()
        else:
            self._close_socket()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket)

    def _end(self) -> None:
        self._stop_reading()
        self._unsent = None
        self._close_socket()
        self._stream.finish()

    def _close_socket(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_writer(self._socket)
            self._socket.close()


def listen(address: Address) -> socket.socket:
    """A listening socket for a reverse forward."""
    family, target = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(128)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def describe(error: OSError) -> str:
    """An errno in words."""
    return os.strerror(error.errno) if error.errno else str(error)


@dataclass(frozen=True, slots=True)
class _Listener:
    local: str
    destination: str
    socket: socket.socket


class ReverseTable:
    """The reverse forwards of one session."""

    def __init__(self, loop: asyncio.AbstractEventLoop, machine: Machine, transport_name: str) -> None:
        self._loop = loop
        self._machine = machine
        self._transport_name = transport_name  # the first column of `adb reverse --list`; not the serial
        self._listeners: dict[str, _Listener] = {}
        self.session: AdbSession | None = None

    def run(self, command: str) -> bytes:
        """Perform the command after `reverse:` and return the bytes of the whole answer."""
        try:
            return self._perform(command)
        except ProtocolError as error:
            return _fail(error.message)

    def close(self) -> None:
        """The link is gone, and all listeners with it."""
        for listener in self._listeners.values():
            self._stop(listener)
        self._listeners.clear()

    def _perform(self, command: str) -> bytes:
        if command == "list-forward":
            rows = (f"{self._transport_name} {item.local} {item.destination}\n" for item in self._listeners.values())
            text = "".join(rows).encode()
            return f"{len(text):04x}".encode() + text
        if command == "killforward-all":
            self.close()
            return b"OKAY"
        verb, colon, rest = command.partition(":")
        if verb == "killforward" and colon:
            listener = self._listeners.pop(rest, None)
            if listener is None:
                raise ProtocolError(f"listener '{rest}' not found")
            self._stop(listener)
            return b"OKAY"
        if verb == "forward" and colon:
            return self._forward(rest)
        raise ProtocolError(f"unknown reverse command {command!r}")

    def _forward(self, rest: str) -> bytes:
        keep_existing = rest.startswith("norebind:")
        local, semicolon, destination = rest.removeprefix("norebind:").partition(";")
        if not semicolon or not local or not destination:
            raise ProtocolError(f"bad forward: {rest}")
        existing = self._listeners.get(local)
        if existing is not None:
            if keep_existing:
                raise ProtocolError("cannot rebind existing socket")
            self._listeners[local] = _Listener(local, destination, existing.socket)
            return b"OKAY"
        try:
            sock = listen(parse_address(local, self._machine.translate))
        except OSError as error:
            raise ProtocolError(f"cannot bind listener: {describe(error)}") from error
        answer = b"OKAY"
        if local == "tcp:0":
            port = str(sock.getsockname()[1])
            local = f"tcp:{port}"
            answer += f"{len(port):04x}{port}".encode()
        self._listeners[local] = _Listener(local, destination, sock)
        self._loop.add_reader(sock, self._on_connection, local)
        return answer

    def _on_connection(self, local: str) -> None:
        listener = self._listeners.get(local)
        if listener is None or self.session is None:
            return
        try:
            sock, _ = listener.socket.accept()
        except OSError:
            return  # it went away again, or descriptors ran out: the backlog keeps it
        sock.setblocking(False)
        stream = self.session.open(listener.destination)
        stream.service = SocketService(self._loop, stream, sock)

    def _stop(self, listener: _Listener) -> None:
        self._loop.remove_reader(listener.socket)
        listener.socket.close()


def _fail(message: str) -> bytes:
    text = message.encode()
    return b"FAIL" + f"{len(text):04x}".encode() + text
