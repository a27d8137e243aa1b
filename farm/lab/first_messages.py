"""The begin of a connection between hosts: it is made, then a preface is sent or read (`farm.lab.wire`)."""

from __future__ import annotations

import asyncio
import socket

from farm.common.errors import ProtocolError
from farm.lab.wire import MAX_BYTES, AnswerReader, Preface, PrefaceAnswer, PrefaceReader
from farm.tvm_server.connection import set_options


async def connected(address: str) -> socket.socket:
    """A connection to HOST:PORT."""
    loop = asyncio.get_running_loop()
    name, _, port = address.rpartition(":")
    try:
        places = await loop.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = places[0]
        sock = socket.socket(family, kind, protocol)
        try:
            set_options(sock)
            await loop.sock_connect(sock, place)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError) as error:  # the latter: no name of a host
        raise OSError(f"{address}: {getattr(error, 'strerror', '') or error}") from error
    return sock


async def asked(
    sock: socket.socket, preface: bytes, early: bytes = b"", *, over: asyncio.Future[str] | None = None
) -> tuple[PrefaceAnswer, bytes]:
    """The answer to a preface, and the bytes behind it.

    Args:
        sock: of the connection.
        preface: to be sent.
        early: bytes that were read already.
        over: why the connection has ended; None: the reason is not known.
    """
    loop, reader = asyncio.get_running_loop(), AnswerReader()
    try:
        await loop.sock_sendall(sock, preface)
        answer = reader.feed(early)
        while answer is None:
            if not (data := await loop.sock_recv(sock, MAX_BYTES)):
                raise ConnectionResetError
            answer = reader.feed(data)
    except ConnectionError as error:  # the thread of the connection has the reason
        reason = "" if over is None else await asyncio.shield(over)
        raise ProtocolError(reason or "it closed the connection") from error
    return answer, reader.trailing_data()


async def read_preface(sock: socket.socket, early: bytes = b"") -> tuple[Preface, bytes]:
    """The preface, and the bytes behind it; `early` was read already."""
    loop, reader = asyncio.get_running_loop(), PrefaceReader()
    preface = reader.feed(early)
    while preface is None:
        if not (data := await loop.sock_recv(sock, MAX_BYTES)):
            raise ProtocolError("it closed the connection before its preface")
        preface = reader.feed(data)
    return preface, reader.trailing_data()
