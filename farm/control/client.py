"""The control channel's client: synchronous, and cheap to import: `farm status` pays for it.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import zmq

from farm.common.errors import DaemonUnreachableError, FarmError, ProtocolError, UserError
from farm.common.files import checked_file, short_hash
from farm.control.address import Remote, Where, connect, probe, refused, stuck_hint
from farm.control.messages import MAX_FRAME_BYTES, Reply, Request, decode_reply, encode_request

SILENT_AFTER_S = 2.0  # the daemon says "still at work" after 0.5 s; four times that means it does not answer
REMOTE_SILENT_AFTER_S = 8.0  # of a remote client: with connecting, the handshake, and a slow line
SILENCE_S = 15.0  # it says so again every 2 s; a busy two-core host may be late
MANY_ENDS = 5  # ends of a connection within SILENT_AFTER_S: a daemon cannot be restarted so often
START_POLL_S = 0.05  # how often a starting daemon is asked

FAILED_HANDSHAKE = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
ENDS = zmq.EVENT_DISCONNECTED | FAILED_HANDSHAKE | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

OnProgress = Callable[[dict[str, Any]], None]
OnBytes = Callable[[int, int], None]  # bytes done, bytes in all


class Exchange:
    """Separates replies from signs of life, and sets when silence means that the daemon does not answer."""

    def __init__(self, request: Request, now_s: float, where: Where, silent_after_s: float = 0.0) -> None:
        """`now_s` is monotonic, as in `received`; `silent_after_s`: as ControlClient's."""
        self._request, self._where = request, where
        self._silence_s = max(silent_after_s or SILENT_AFTER_S, REMOTE_SILENT_AFTER_S * isinstance(where, Remote))
        self.deadline_s = now_s + self._silence_s  # something must have come by then
        self.taken = False  # the daemon is at work on it
        self.ended = False  # the answer is there

    def received(self, frames: Sequence[bytes], now_s: float) -> Reply | None:
        """Something to hand on, or None: a sign of life, or the rest of an earlier question.

        Raises:
            FarmError: what the daemon reported.
            ProtocolError: the frames are no reply.
        """
        reply = decode_reply(frames, self._request.kind)
        if reply.id != self._request.id:
            return None
        self.taken = True
        self._silence_s = SILENCE_S
        self.deadline_s = now_s + SILENCE_S
        if reply.error is not None:
            self.ended = True
            raise reply.error
        self.ended = not reply.more
        return reply if self.ended or reply.fields else None

    def silent(self, ends: int = 0) -> DaemonUnreachableError:
        """The error for a `deadline_s` that passed. `ends`: how often the connection ended meanwhile."""
        if ends >= MANY_ENDS:
            return DaemonUnreachableError(
                f"the farm daemon ended this connection {ends} times in {self._silence_s:.0f} s",
                hint="your user has too many connections to it: end some of your farm programs and scripts",
            )
        return DaemonUnreachableError(
            f"the farm daemon did not answer for {self._silence_s:.0f} s",
            hint=stuck_hint(self._where),
        )


class Upload:
    """An upload as questions and answers of `artifact.put`; reads the file, sends nothing itself."""

    def __init__(self, file: io.BufferedIOBase, on_bytes: OnBytes | None = None) -> None:
        """Hashes the file. `on_bytes` is called with the bytes that are there, and all of them."""
        self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        self.complete = False
        self._file, self._on_bytes = file, on_bytes
        self._total = file.seek(0, os.SEEK_END)
        self._offset, self._chunk = 0, b""  # an empty chunk asks how much is there; an empty file is complete with it
        self._asked = False

    def question(self) -> tuple[Mapping[str, Any], tuple[bytes, ...]]:
        """The fields and frames of the next question.

        Raises:
            UserError: the file became shorter.
        """
        if self._asked:
            self._file.seek(self._offset)
            self._chunk = self._file.read(MAX_FRAME_BYTES)
            if not self._chunk:
                name = str(getattr(self._file, "name", "the file"))
                raise UserError(f"{name:.200} changed while it was uploaded", hint="try again")
        self._asked = True
        return {"sha256": self.sha256, "offset": self._offset, "total_bytes": self._total}, (self._chunk,)

    def answered(self, reply: Reply) -> None:
        """The daemon's answer to the latest question.

        Raises:
            ProtocolError: it took nothing of a chunk.
        """
        there, self.complete = int(reply.fields["size_bytes"]), bool(reply.fields["complete"])
        if self._on_bytes is not None:
            self._on_bytes(self._total if self.complete else there, self._total)
        if not self.complete and self._chunk and there == self._offset:
            raise ProtocolError(f"the daemon takes no more of artifact {short_hash(self.sha256)} at byte {there}")
        self._offset = there


class Download:
    """A download as questions and answers of `artifact.get`; writes the file, receives nothing itself."""

    def __init__(self, sha256: str, file: io.BufferedIOBase) -> None:
        """`file`: open for writing, empty."""
        self.complete = False
        self.size_bytes = self.total_bytes = 0  # that are there; in all, once there was an answer
        self._sha256, self._file, self._seen = sha256, file, hashlib.sha256()

    def question(self) -> Mapping[str, Any]:
        """The fields of the next question."""
        return {"sha256": self._sha256, "offset": self.size_bytes}

    def answered(self, reply: Reply) -> None:
        """The daemon's answer to the latest question.

        Raises:
            ProtocolError: the last byte is there, and the bytes are not what was asked for.
        """
        self.total_bytes, chunk = int(reply.fields["total_bytes"]), reply.frames[0] if reply.frames else b""
        self._file.write(chunk)
        self._seen.update(chunk)
        self.size_bytes += len(chunk)
        self.complete = self.size_bytes >= self.total_bytes or not chunk
        if self.complete and self._seen.hexdigest() != self._sha256:
            raise ProtocolError(f"the bytes received are not artifact {short_hash(self._sha256)}")


def opened(source: Path | bytes) -> io.BufferedIOBase:
    """A file or bytes to upload.

    Raises:
        UserError: the file cannot be read.
    """
    return io.BytesIO(source) if isinstance(source, bytes) else checked_file(source).open("rb")


class ControlClient:
    """One connection to the daemon. Not for several threads at once: give each its own."""

    def __init__(
        self,
        where: Where,
        *,
        token: str = "",
        attempt: str = "",
        fence: int = 0,
        silent_after_s: float = 0.0,
    ) -> None:
        """`where`: the daemon's socket, or a remote one.

        `token`, `attempt` and `fence` are a worker's credentials; people have none.

        `silent_after_s`: how long the daemon may say nothing at all before it counts as unreachable, a remote one at
        least REMOTE_SILENT_AFTER_S; 0: SILENT_AFTER_S.
        """
        self.where = where
        self._silent_after_s = silent_after_s
        self._credentials = {"token": token, "attempt": attempt, "fence": fence}
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None  # reports the connection's end
        self._ends = 0  # of connections since the latest question, before the daemon has taken it

    @property
    def path(self) -> Path:
        """The daemon's socket, when it is on this host.

        Raises:
            UserError: it is remote.
        """
        if isinstance(self.where, Remote):
            raise UserError(f"the farm daemon is remote, at {self.where}", hint="do that on its own host")
        return self.where

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave; the daemon ends this client's open calls."""
        if self._socket is not None:
            if self._monitor is not None:
                self._socket.disable_monitor()
                self._monitor.close(linger=0)
            self._socket.close(linger=0)
            self._socket = self._monitor = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def call(
        self, kind: str, /, *, on_progress: OnProgress | None = None, frames: tuple[bytes, ...] = (), **fields: Any
    ) -> dict[str, Any]:
        """Ask and wait for the answer, however long the daemon is at work on it.

        Raises:
            DaemonUnreachableError: no daemon answers (within `silent_after_s`).
            FarmError: what the daemon reported, of the same fault, code and exit code.
        """
        return self._ask(kind, fields, frames, on_progress).fields

    def stream(self, kind: str, limit_s: float = math.inf, /, **fields: Any) -> Iterator[dict[str, Any]]:
        """Ask, and yield the items that precede the answer, then the answer itself.

        Raises:
            TimeoutError: the answer is not there after `limit_s`, although the daemon lives.
            DaemonUnreachableError, FarmError: as `call`.
        """
        for reply in self._replies(kind, fields, (), limit_s):
            yield reply.fields

    def wait_until_up(self, timeout_s: float, *, alive: Callable[[], bool] = lambda: True) -> None:
        """Return when a daemon answers; give up early when it is no longer `alive`.

        Raises:
            DaemonUnreachableError: no daemon answers within `timeout_s`.
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

    def put_artifact(self, source: Path | bytes, *, on_progress: OnBytes | None = None) -> str:
        """Upload a file or bytes; returns the SHA-256 it is known by. Continues where an interrupted upload ended.

        Raises:
            UserError: the file cannot be read.
        """
        with opened(source) as file:
            upload = Upload(file, on_progress)
            while not upload.complete:
                upload.answered(self._ask("artifact.put", *upload.question(), None))
        return upload.sha256

    def get_artifact(self, sha256: str) -> bytes:
        """Download an artifact; its hash is checked.

        Raises:
            ProtocolError: the bytes are not what was asked for.
        """
        received = io.BytesIO()
        download = Download(sha256, received)
        while not download.complete:
            download.answered(self._ask("artifact.get", download.question(), (), None))
        return received.getvalue()

    def save_backup(self, file: io.BufferedIOBase) -> None:
        """Write a copy of the daemon's database, as it is at one moment, to a file that is open for writing.

        Raises:
            ProtocolError: the bytes received are not the daemon's.
        """
        seen = hashlib.sha256()
        for reply in self._replies("store.backup", {"send": True}, ()):
            for frame in reply.frames:
                file.write(frame)
                seen.update(frame)
            if not reply.more and seen.hexdigest() != reply.fields["sha256"]:
                raise ProtocolError("the copy received is not the daemon's", hint="try again")

    def _ask(
        self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...], on_progress: OnProgress | None
    ) -> Reply:
        for reply in self._replies(kind, fields, frames):
            if not reply.more:
                return reply
            if on_progress is not None:
                on_progress(reply.fields)
        raise ProtocolError("the daemon's answer ended early")

    def _replies(
        self, kind: str, fields: Mapping[str, Any], frames: tuple[bytes, ...], limit_s: float = math.inf
    ) -> Iterator[Reply]:
        request = Request(secrets.token_hex(8), kind, fields, frames, **self._credentials)  # type: ignore[arg-type]
        message = encode_request(request)
        connection = self._connected()
        connection.send_multipart(message)
        self._ends = 0
        exchange = Exchange(request, time.monotonic(), self.where, self._silent_after_s)
        latest = time.monotonic() + limit_s
        while not exchange.ended:
            # Replies that are here already count, however late; a poll of 0 ms still takes them.
            wait_ms = max(0, int((min(exchange.deadline_s, latest) - time.monotonic()) * 1000))
            if not self._comes(connection, wait_ms, taken=exchange.taken):
                self.close()
                if latest < exchange.deadline_s:
                    raise TimeoutError(f"{kind!r} had no answer within {limit_s:g} s")
                raise exchange.silent(self._ends)
            reply = exchange.received(connection.recv_multipart(), time.monotonic())
            if reply is not None:
                yield reply

    def _connected(self) -> zmq.Socket[bytes]:
        if self._monitor is not None and self._monitor.poll(0):
            self.close()  # the daemon that it led to is gone
        if self._socket is None:
            probe(self.where)
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._monitor = self._socket.get_monitor_socket(ENDS)
            connect(self._socket, self.where)
        return self._socket

    def _comes(self, connection: zmq.Socket[bytes], wait_ms: int, *, taken: bool) -> bool:
        """Whether a reply comes in that time.

        Before the daemon of this host has `taken` the question, ZeroMQ connects again by itself: it may be starting.

        Raises:
            NotAllowedError: a remote daemon does not take the key.
            DaemonUnreachableError: the connection has ended.
        """
        assert self._monitor is not None  # with the connection
        if not (taken or isinstance(self.where, Remote)):
            came = bool(connection.poll(wait_ms))
            while self._monitor.poll(0):  # of earlier connections
                self._ends += _event(self._monitor) == zmq.EVENT_DISCONNECTED
            return came
        poller = zmq.Poller()
        poller.register(connection, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        ready = dict(poller.poll(wait_ms))
        if connection in ready or not ready:  # what came before the connection's end counts
            return bool(ready)
        event = _event(self._monitor)
        self.close()
        raise ended(self.where, event)


def _event(monitor: zmq.Socket[bytes]) -> int:
    """The next event of a monitor, as zmq_socket_monitor(3) has it; zmq.utils.monitor would import asyncio."""
    (event,) = struct.unpack_from("=H", monitor.recv_multipart()[0])
    return int(event)


def ended(where: Where, event: int) -> FarmError:
    """The error for a connection that ended: `event` says how (zmq_socket_monitor(3))."""
    if event & FAILED_HANDSHAKE:
        return refused(where)
    return DaemonUnreachableError(
        "the farm daemon went away; what was asked may be done or not",
        hint="farm status shows when it is back"
        + ("; if it never answers, check that the key is from that daemon" if isinstance(where, Remote) else ""),
    )
