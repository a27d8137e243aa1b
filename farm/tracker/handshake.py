"""TVM's session handshake, both sides, as bytes in, values out. No I/O (source: FACTS-tvm §2; tvm/rpc/server.py).

The rules are those of framing.py. A handshake is one event; what follows it belongs to the session: `trailing_data`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from farm.tracker.framing import INT32, Parser

SESSION_MAGIC = 0xFF271
MAX_HELLO_BYTES = 4096  # of `client:<match key> -timeout=<n>`; stock ones are below 200
MAX_TIMEOUT_S = 30 * 24 * 3600.0  # of a session; a month. Larger ones would overflow timers
# What Python and C++ print for a number. float() alone would also take 1_0, other scripts' digits, nan and infinity.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class SessionCode(IntEnum):
    """First word of a server's answer to `client:<match key>`."""

    SUCCESS = SESSION_MAGIC
    DUPLICATE = SESSION_MAGIC + 1
    MISMATCH = SESSION_MAGIC + 2


@dataclass(frozen=True, slots=True)
class ClientHello:
    """A client opens a session. `timeout_s` is its session_timeout (0: none); the phone never sees it."""

    match_key: str
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerHello:
    """A server's answer; `server_key` is empty unless `code` is SUCCESS."""

    code: SessionCode
    server_key: str = ""


class ClientHelloParser(Parser):
    """The server's side of a session handshake."""

    __slots__ = ("_done", "_magic_seen")

    def __init__(self) -> None:
        super().__init__()
        self._magic_seen = False
        self._done = False

    def next_event(self) -> ClientHello | None:
        """The client's hello, once; None when more bytes are needed.

        Raises:
            ProtocolError: wrong magic, impossible length, not `client:<match key>`, or a bad timeout.
        """
        self.check_alive()
        if self._done:
            return None
        if not self._magic_seen:
            magic = self.take_int32()
            if magic is None:
                return None
            if magic != SESSION_MAGIC:
                self.fail(f"not an RPC client: it began with {magic & 0xFFFFFFFF:#x}")
            self._magic_seen = True
        body = self.take_body(MAX_HELLO_BYTES, "a session hello")
        if body is None:
            return None
        hello = self._read(body)
        self._done = True
        return hello

    def _read(self, body: bytes) -> ClientHello:
        try:
            words = body.decode().split()
        except UnicodeDecodeError:
            self.fail("a session hello that is not UTF-8")
        if not words or not words[0].startswith("client:"):
            self.fail("a session hello that does not begin with `client:`")
        timeout_s = 0.0
        for option in words[1:]:
            # Unknown options are ignored, as every stock server does.
            if option.startswith("-timeout="):
                timeout_s = self._timeout(option.removeprefix("-timeout="))
        return ClientHello(words[0].removeprefix("client:"), timeout_s)

    def _timeout(self, text: str) -> float:
        if _NUMBER.fullmatch(text) is None:
            self.fail(f"session timeout {text[:32]!r} is not a number")
        timeout_s = float(text)
        if not 0 <= timeout_s <= MAX_TIMEOUT_S:
            self.fail(f"session timeout {text[:32]!r} is not between 0 and {MAX_TIMEOUT_S:.0f} s")
        return timeout_s


class ServerHelloParser(Parser):
    """The client's side of a session handshake."""

    __slots__ = ("_code", "_done")

    def __init__(self) -> None:
        super().__init__()
        self._code: SessionCode | None = None
        self._done = False

    def next_event(self) -> ServerHello | None:
        """The server's answer, once; None when more bytes are needed.

        Raises:
            ProtocolError: an unknown code, an impossible length, or a key that is not UTF-8.
        """
        self.check_alive()
        if self._done:
            return None
        if self._code is None:
            word = self.take_int32()
            if word is None:
                return None
            try:
                self._code = SessionCode(word)
            except ValueError:
                self.fail(f"not an RPC server: it answered {word & 0xFFFFFFFF:#x}")
            if self._code is not SessionCode.SUCCESS:
                self._done = True
                return ServerHello(self._code)
        body = self.take_body(MAX_HELLO_BYTES, "a server key")
        if body is None:
            return None
        try:
            server_key = body.decode()
        except UnicodeDecodeError:
            self.fail("a server key that is not UTF-8")
        self._done = True
        return ServerHello(self._code, server_key)


def encode_client_hello(match_key: str) -> bytes:
    """What a client sends first, in one piece and without options."""
    body = f"client:{match_key}".encode()
    return INT32.pack(SESSION_MAGIC) + INT32.pack(len(body)) + body


def encode_server_hello(hello: ServerHello) -> bytes:
    """What a server answers, in one piece."""
    word = INT32.pack(hello.code)
    if hello.code is not SessionCode.SUCCESS:
        return word
    body = hello.server_key.encode()
    return word + INT32.pack(len(body)) + body
