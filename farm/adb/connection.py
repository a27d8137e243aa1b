"""One connection to an adb server: the address, the socket, one request and its answer.

Raw non-blocking sockets through `loop.sock_*`: faster than asyncio streams for these short exchanges (docs/facts.md),
and reading exactly what a reply needs leaves every byte of a `tcp:` stream in the socket.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from farm.adb.errors import AdbError, AdbLinkLost, AdbServerUnreachable, failure
from farm.adb.host_protocol import BlockReader, Fail, StatusReader, encode_request
from farm.common.errors import UserError

DEFAULT_PORT = 5037  # every `adb` looks here, and starts a server if none listens
CONNECT_RETRY_S = 0.002  # adb listens with a backlog of 4: a full unix-socket queue returns EAGAIN at once
RECEIVE_BYTES = 256 << 10  # one recv; larger than the largest packet burst seen from a phone's shell
_QUOTED_CHARS = 120
_ASSIGNED = re.compile(r"""(\w=)(?:'[^']*'?|"[^"]*"?|\\.|\S)+""")
_UNIX_PATH_BYTES = 107  # sun_path is 108 bytes with its NUL
_LOOPBACK = ("", "localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where an adb server listens, from adb's own socket spec."""

    host: str = ""  # tcp
    port: int = 0  # tcp
    path: str = ""  # unix socket: a file, or a NUL and a name (abstract)

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Reads `tcp:PORT`, `tcp:HOST:PORT`, `localfilesystem:PATH` or `localabstract:NAME`.

        Raises:
            UserError: anything else.
        """
        kind, _, rest = spec.partition(":")
        if kind == "tcp":
            host, _, port = rest.rpartition(":")
            if port.isascii() and port.isdigit() and 0 < int(port) <= 0xFFFF:
                return cls(host="127.0.0.1" if host in _LOOPBACK else host, port=int(port))
        elif kind == "localfilesystem" and rest.startswith("/"):
            if len(rest.encode()) > _UNIX_PATH_BYTES:
                raise UserError(
                    f"the adb socket's path is longer than {_UNIX_PATH_BYTES} bytes: {rest}",
                    hint="Choose a shorter state folder, or set [adb] socket to tcp:localhost:PORT.",
                )
            return cls(path=rest)
        elif kind == "localabstract" and rest:
            return cls(path="\0" + rest)
        raise UserError(
            f"{spec!r} is not an adb server socket",
            hint="Write tcp:localhost:PORT, localfilesystem:/PATH or localabstract:NAME.",
        )

    @property
    def spec(self) -> str:
        """The socket spec for adb's `-L`. A server refuses to listen on `tcp:127.0.0.1:N`; `localhost` it takes."""
        if not self.path:
            return f"tcp:{'localhost' if self.host in _LOOPBACK else self.host}:{self.port}"
        return f"localabstract:{self.path[1:]}" if self.path[0] == "\0" else f"localfilesystem:{self.path}"

    def command(self, serial: str) -> str:
        """How a person begins a call of adb for this phone, ready for a shell: `adb -P 5038 -s SERIAL`."""
        words = ["adb", "-s", serial]
        if self.path:
            words[1:1] = ["-L", self.spec]
        elif self != ServerAddress("127.0.0.1", DEFAULT_PORT):
            words[1:1] = [*(() if self.host in _LOOPBACK else ("-H", self.host)), "-P", str(self.port)]
        return shlex.join(words)


@asynccontextmanager
async def deadline(seconds: float | None, error: Callable[[], AdbError]) -> AsyncIterator[None]:
    """Raises `error()` when the body takes longer. No limit if None."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as timeout:
        if limit.expired():
            raise error() from timeout
        raise


class AdbConnection:
    """A connected socket to the adb server. Its opener closes it."""

    __slots__ = ("_address", "_loop", "_socket")

    def __init__(self, address: ServerAddress, connected: socket.socket) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._socket = connected

    @classmethod
    async def open(cls, address: ServerAddress) -> Self:
        """Connects; the caller limits the time.

        Raises:
            AdbServerUnreachable: no program listens there, or this process may open no more files.
        """
        family = socket.AF_UNIX if address.path else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise AdbServerUnreachable(
                f"farm opens no connection to the adb server: {error.strerror}.",
                hint="farm doctor",
                evidence=str(error),
            ) from error
        try:
            if address.path:
                await _connect_unix(sock, address.path)
            else:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await asyncio.get_running_loop().sock_connect(sock, (address.host, address.port))
        except OSError as error:
            sock.close()
            raise AdbServerUnreachable(
                f"No adb server answers on {address.spec}: {error.strerror or error}.",
                hint="farm serve starts its own; farm doctor shows what holds the socket.",
                evidence=str(error),
                no_listener=True,
            ) from error
        except BaseException:
            sock.close()
            raise
        return cls(address, sock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def raw(self) -> socket.socket:
        """The socket, for bulk data. No byte after the last reply has been read from it."""
        return self._socket

    def close(self) -> None:
        """Closes the socket. The server then ends the stream to the phone."""
        self._socket.close()

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all of it.

        Raises:
            AdbLinkLost: the other side has closed the stream.
        """
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise AdbLinkLost("The adb server closed the stream.", evidence=str(error)) from error

    async def receive(self, limit: int = RECEIVE_BYTES) -> bytes:
        """At most `limit` bytes, none at the end of the stream, however it ended."""
        try:
            return await self._loop.sock_recv(self._socket, limit)
        except ConnectionError:
            return b""

    async def request(self, service: str, *, serial: str = "") -> None:
        """Sends a request and reads its status.

        Raises:
            AdbError: the leaf that the refusal's words mean; AdbServerUnreachable when the server broke off.
        """
        try:
            await self.send(encode_request(service))
        except AdbLinkLost as error:
            raise self._broke_off(service) from error
        await self.status(serial=serial, service=service)

    async def status(self, *, serial: str = "", service: str = "") -> None:
        """Reads one OKAY or FAIL, and raises the error of a FAIL."""
        reader = StatusReader()
        while (answer := reader.next()) is None:
            reader.feed(await self._more(reader.wants, service))
        if isinstance(answer, Fail):
            raise failure(answer.message, serial=serial)

    async def block(self) -> bytes:
        """Reads one hex4-length block.

        Raises:
            AdbServerUnreachable: the server broke off.
        """
        reader = BlockReader()
        while (answer := reader.next()) is None:
            reader.feed(await self._more(reader.wants, "an answer"))
        return answer

    async def exactly(self, count: int) -> bytes:
        """Reads `count` bytes.

        Raises:
            AdbServerUnreachable: the server broke off.
        """
        data = b""
        while len(data) < count:
            data += await self._more(count - len(data), "an answer")
        return data

    async def _more(self, wanted: int, what: str) -> bytes:
        data = await self.receive(wanted)
        if not data:
            raise self._broke_off(what)
        return data

    def _broke_off(self, what: str) -> AdbServerUnreachable:
        return AdbServerUnreachable(
            f"The adb server on {self._address.spec} closed the connection in the middle of {abridged(what)}.",
            hint="It was killed or crashed; farm's own server is started again by itself.",
        )


def abridged(request: str) -> str:
    """A request or command as errors quote it: its beginning, without the values of variables, which may be secrets."""
    return _ASSIGNED.sub(r"\1...", request)[:_QUOTED_CHARS]


async def _connect_unix(sock: socket.socket, path: str) -> None:
    """Connects without blocking. asyncio's sock_connect takes EAGAIN (queue full) for "under way", which it is not."""
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            await asyncio.sleep(CONNECT_RETRY_S)
        else:
            return
