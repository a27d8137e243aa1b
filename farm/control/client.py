"""The job door's client: synchronous, and cheap to import: `farm status` pays for it.

Only pyzmq, the standard library, and farm modules that need no more.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import zmq

from farm.control.address import Remote, Where, connect, probe, refused
from farm.control.exchange import FIRST_SIGN_S, REMOTE_SIGN_S, Exchange
from farm.control.messages import MAX_FRAME_BYTES, Reply, Request, encode_request
from farm.core.errors import DaemonUnreachableError, FarmError, ProtocolError, UserError

START_POLL_S = 0.05  # how often a starting daemon is asked

FAILED_HANDSHAKE = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
ENDS = zmq.EVENT_DISCONNECTED | FAILED_HANDSHAKE | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

OnProgress = Callable[[dict[str, Any]], None]


class ControlClient:
    """One connection to the daemon. Not for several threads at once: give each its own."""

    def __init__(
        self, where: Where, *, token: str = "", attempt: str = "", fence: int = 0, first_sign_s: float = FIRST_SIGN_S
    ) -> None:
        """`where`: the daemon's socket, or one elsewhere.

        `token`, `attempt` and `fence` are a worker's credentials; people have none.

        `first_sign_s`: how long the daemon may say nothing at all before it counts as unreachable.
        """
        self.where = where
        self._first_sign_s = first_sign_s
        self._credentials = {"token": token, "attempt": attempt, "fence": fence}
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None  # of a remote daemon's handshake

    @property
    def path(self) -> Path:
        """The daemon's socket, when it is on this host.

        Raises:
            UserError: it is elsewhere.
        """
        if isinstance(self.where, Remote):
            raise UserError(f"the farm daemon is elsewhere, at {self.where}", hint="do that on its own host")
        return self.where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave; the daemon ends what this client still waited for."""
        if self._socket is not None:
            if self._monitor is not None:
                self._socket.disable_monitor()
                self._monitor.close(linger=0)
                self._monitor = None
            self._socket.close(linger=0)
            self._socket = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def call(
        self, kind: str, /, *, on_progress: OnProgress | None = None, frames: tuple[bytes, ...] = (), **fields: Any
    ) -> dict[str, Any]:
        """Ask and wait for the answer, however long the daemon is at work on it.

        Raises:
            DaemonUnreachableError: nobody answers (within `first_sign_s`).
            FarmError: what the daemon reported, of the same fault, code and exit code.
        """
        return dict(self._ask(kind, fields, frames, on_progress).fields)

    def stream(self, kind: str, limit_s: float = math.inf, /, **fields: Any) -> Iterator[dict[str, Any]]:
        """Ask, and yield what comes ahead of the answer, then the answer itself.

        Raises:
            TimeoutError: the answer is not there after `limit_s`, although the daemon lives.
            DaemonUnreachableError, FarmError: as `call`.
        """
        for reply in self._replies(kind, fields, (), limit_s):
            yield dict(reply.fields)

    def wait_until_up(self, timeout_s: float, *, alive: Callable[[], bool] = lambda: True) -> None:
        """Return when a daemon answers; give up early when it is no longer `alive`.

        Raises:
            DaemonUnreachableError: nobody answers within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.call("ping")
            except DaemonUnreachableError:
                if not alive() or time.monotonic() > deadline:
                    raise
                time.sleep(START_POLL_S)
            else:
                return

    def put_artifact(self, source: Path | bytes, *, on_progress: Callable[[int, int], None] | None = None) -> str:
        """Upload a file or bytes; returns the SHA-256 it is known by. Goes on where an interrupted upload ended.

        Raises:
            UserError: the file cannot be read.
        """
        with io.BytesIO(source) if isinstance(source, bytes) else _opened(source) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            total = file.seek(0, os.SEEK_END)
            offset, complete = 0, False
            while not complete:
                file.seek(offset)
                chunk = file.read(MAX_FRAME_BYTES)
                answer = self.call("artifact.put", frames=(chunk,), sha256=sha256, offset=offset, total_bytes=total)
                before, offset, complete = offset, int(answer["size_bytes"]), bool(answer["complete"])
                if not complete and offset == before:
                    raise ProtocolError(f"the daemon takes no more of artifact {sha256[:12]} at byte {offset}")
                if on_progress is not None:
                    on_progress(total if complete else offset, total)
        return sha256

    def get_artifact(self, sha256: str) -> bytes:
        """Download an artifact; its hash is checked.

        Raises:
            ProtocolError: the bytes are not what was asked for.
        """
        received = bytearray()
        while True:
            reply = self._ask("artifact.get", {"sha256": sha256, "offset": len(received)}, (), None)
            chunk = reply.frames[0] if reply.frames else b""
            received += chunk
            if len(received) >= int(reply.fields["total_bytes"]) or not chunk:
                break
        if hashlib.sha256(received).hexdigest() != sha256:
            raise ProtocolError(f"the bytes received are not artifact {sha256[:12]}")
        return bytes(received)

    def _ask(
        self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...], on_progress: OnProgress | None
    ) -> Reply:
        for reply in self._replies(kind, fields, frames):
            if not reply.more:
                return reply
            if on_progress is not None:
                on_progress(dict(reply.fields))
        raise ProtocolError("the daemon's answer ended early")

    def _replies(
        self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...], limit_s: float = math.inf
    ) -> Iterator[Reply]:
        request = Request(secrets.token_hex(8), kind, fields, frames, **self._credentials)  # type: ignore[arg-type]
        message = encode_request(request)
        connection = self._connected()
        connection.send_multipart(message)
        first_sign_s = self._first_sign_s if isinstance(self.where, Path) else max(self._first_sign_s, REMOTE_SIGN_S)
        exchange = Exchange(request.id, time.monotonic(), first_sign_s)
        latest = time.monotonic() + limit_s
        while not exchange.ended:
            # Replies that are here already count, however late; a poll of 0 ms still takes them.
            wait_ms = max(0, int((min(exchange.deadline_s, latest) - time.monotonic()) * 1000))
            if not self._comes(connection, wait_ms):
                self.close()
                if latest < exchange.deadline_s:
                    raise TimeoutError(f"{kind!r} had no answer within {limit_s:g} s")
                raise exchange.silent(self.where)
            reply = exchange.received(connection.recv_multipart(), time.monotonic())
            if reply is not None:
                yield reply

    def _connected(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            probe(self.where)
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.setsockopt(zmq.LINGER, 0)
            if isinstance(self.where, Remote):
                self._monitor = self._socket.get_monitor_socket(ENDS)
            connect(self._socket, self.where)
        return self._socket

    def _comes(self, connection: zmq.Socket[bytes], wait_ms: int) -> bool:
        """Whether a reply comes in that time.

        Raises:
            NotAllowedError: a remote daemon does not take the key.
            DaemonUnreachableError: the connection to one has ended.
        """
        if self._monitor is None:
            return bool(connection.poll(wait_ms))
        poller = zmq.Poller()
        poller.register(connection, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        ready = dict(poller.poll(wait_ms))
        if connection in ready or not ready:  # what came before the connection's end counts
            return bool(ready)
        (event,) = struct.unpack_from("=H", self._monitor.recv_multipart()[0])  # zmq.utils.monitor imports asyncio
        self.close()
        raise ended(self.where, event)


def ended(where: Where, event: int) -> FarmError:
    """The error for a connection that ended: `event` says how (zmq_socket_monitor(3))."""
    if event & FAILED_HANDSHAKE:
        return refused(where)
    return DaemonUnreachableError(
        "the farm daemon went away", hint="farm status tells when it is back; if it never answers: is the key its own?"
    )


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", hint="give the path of a file you may read") from error
