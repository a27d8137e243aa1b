"""A tracker client, a session client and a phone's server from the wire modules, for what stock programs never do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import NamedTuple

from farm.tvm_server import wire
from farm.tvm_server.connection import quick_ack
from farm.tvm_server.wire import (
    ClientHelloParser,
    Parser,
    ServerHello,
    ServerHelloParser,
    SessionCode,
    encode_client_hello,
    encode_server_hello,
)
from tests.support.waiting import HANG_S

MAX_REPLY_BYTES = 64 << 20  # the protocol has no limit


class Reply(NamedTuple):
    """The tracker's answer to one message."""

    value: object


class ReplyParser(Parser):
    """The client's side of one tracker connection."""

    def __init__(self):
        super().__init__()
        self._greeted = False

    def next_event(self):
        """The echoed magic, then one reply per message; None when more bytes are needed."""
        if not self._greeted:
            magic = self.take_int32()
            assert magic in (None, wire.TRACKER_MAGIC)
            self._greeted = magic is not None
            return wire.TrackerHello() if self._greeted else None
        body = self.take_body(MAX_REPLY_BYTES, "a tracker reply")
        return None if body is None else Reply(json.loads(body))


def encode_message(message):
    """What a client or server sends."""
    match message:
        case wire.Put(key, port, match_key, custom_address):
            fields = [wire.TrackerCode.PUT, key, [port, match_key], custom_address]
        case wire.TrackerRequest(key, user, priority):
            fields = [wire.TrackerCode.REQUEST, key, user, priority]
        case wire.UpdateInfo(key, address, port):
            fields = [wire.TrackerCode.UPDATE_INFO, {"key": f"server:{key}", "addr": [address, port]}]
        case wire.TrackerCode.STOP:
            fields = [message, "a stop key"]
        case wire.TrackerCode():
            fields = [message]
    return wire.encode_json(fields)


class RawTracker:
    """One tracker connection."""

    def __init__(self, sock):
        self.sock = sock
        self.parser = ReplyParser()
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port, *, greet=True):
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        client = cls(sock)
        try:
            if greet:
                await client.send(wire.encode_magic())
                assert await client.event() == wire.TrackerHello()
        except BaseException:
            sock.close()
            raise
        return client

    async def send(self, data):
        await self._loop.sock_sendall(self.sock, data)

    async def event(self):
        """The next event; EOFError when the tracker closed the connection."""
        async with asyncio.timeout(HANG_S):
            while (event := self.parser.next_event()) is None:
                try:
                    data = await self._loop.sock_recv(self.sock, 65536)
                except ConnectionError as error:
                    raise EOFError from error
                if not data:
                    raise EOFError
                quick_ack(self.sock)
                self.parser.receive_data(data)
        return event

    async def answer(self):
        event = await self.event()
        assert isinstance(event, Reply)
        return event.value

    async def ask(self, message):
        await self.send(encode_message(message))
        return await self.answer()

    async def summary(self):
        code, summary = await self.ask(wire.TrackerCode.SUMMARY)
        assert code == 0
        return summary

    def close(self):
        self.sock.close()

    def reset(self):
        """Close with a RST, as a crashed host's packets do."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()


async def open_session(port, match_key, options=""):
    """Dial the gate: the socket, its answer, and what followed. EOFError when it closed the connection."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    try:
        await loop.sock_sendall(sock, encode_client_hello(match_key + options))
        parser = ServerHelloParser()
        async with asyncio.timeout(HANG_S):
            while (hello := parser.next_event()) is None:
                data = await loop.sock_recv(sock, 65536)
                if not data:
                    raise EOFError
                parser.receive_data(data)
    except BaseException:
        sock.close()
        raise
    return sock, hello, parser.trailing_data()


class RawPhone:
    """A phone's RPC server that makes the handshake and hands the socket to `session`."""

    def __init__(self, secret, session=None):
        self.secret = secret
        self.session = session or self._echo
        self.hellos = []
        self.open = 0
        self.hang = False  # accept and say nothing
        self.answer = SessionCode.SUCCESS

    async def __aenter__(self):
        self._loop = asyncio.get_running_loop()
        self._listener = socket.socket()
        self._listener.setblocking(False)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        self._tasks = {self._loop.create_task(self._accept())}
        return self

    async def __aexit__(self, *_):
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    async def _accept(self):
        while True:
            sock, _ = await self._loop.sock_accept(self._listener)
            sock.setblocking(False)
            self._tasks.add(self._loop.create_task(self._serve(sock)))

    async def _serve(self, sock):
        self.open += 1
        try:
            with contextlib.closing(sock), contextlib.suppress(ConnectionError):
                parser = ClientHelloParser()
                while (hello := parser.next_event()) is None:
                    data = await self._loop.sock_recv(sock, 4096)
                    if not data:
                        return
                    parser.receive_data(data)
                self.hellos.append(hello.match_key if not hello.timeout_s else f"{hello.match_key} {hello.timeout_s}")
                if self.hang:
                    await self._loop.sock_recv(sock, 1)
                    return
                code = self.answer if hello.match_key == self.secret else SessionCode.MISMATCH
                await self._loop.sock_sendall(sock, encode_server_hello(ServerHello(code, "server:phone")))
                if code is SessionCode.SUCCESS:
                    await self.session(sock)
        finally:
            self.open -= 1

    async def _echo(self, sock):
        while data := await self._loop.sock_recv(sock, 1 << 16):
            await self._loop.sock_sendall(sock, data)


@contextlib.asynccontextmanager
async def closing(*clients):
    """Close what a test opened."""
    try:
        yield
    finally:
        for client in clients:
            client.close()
