"""Files to and from a phone over adbd's `sync:` service: the bytes, not the decisions (those are in farm.adb.push)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from farm.adb.client import AdbClient
from farm.adb.connection import Connection, Deadline
from farm.adb.errors import AdbLinkLost, AdbTimeout
from farm.adb.failures import failure
from farm.adb.host_protocol import (
    SYNC_DATA_BYTES,
    SYNC_HEADER,
    Fail,
    Okay,
    SyncData,
    SyncDone,
    SyncReader,
    SyncReply,
    SyncStat,
    SyncWord,
    encode_done,
    encode_send,
    encode_send_v2,
    encode_sync,
)
from farm.core.errors import ProtocolError

CHUNKS_PER_WRITE = 16  # 1 MiB: twice the rate of one chunk; 4 MiB gains little for its memory (docs/facts.md)
STALL_TIMEOUT_S = 20.0  # no byte taken or given for so long: the phone or its link hangs; generous, for slow flash
_SLOT_BYTES = SYNC_HEADER.size + SYNC_DATA_BYTES


class SyncSession:
    """One `sync:` stream; files go through it one after the other. Use as `async with await SyncSession.open(...)`."""

    def __init__(self, connection: Connection, serial: str, *, send_v2: bool) -> None:
        self._connection = connection
        self._serial = serial
        self._send_v2 = send_v2
        self._replies = SyncReader()

    @classmethod
    async def open(cls, client: AdbClient, serial: str) -> Self:
        """Opens the service; SND2 is used where the phone offers it (a path may then hold a comma)."""
        features = await client.features(serial)
        connection = await client.open_service(serial, "sync:")
        return cls(connection, serial, send_v2="sendrecv_v2" in features)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    async def stat(self, path: str) -> SyncStat:
        """Mode, size modulo 4 GiB and mtime; all zero = no such path."""
        await self._send(encode_sync(SyncWord.STAT, path))
        reply = await self._reply()
        if not isinstance(reply, SyncStat):
            raise self._unexpected(reply)
        return reply

    async def send(
        self, local: Path, remote: str, mode: int, *, mtime: int, progress: Callable[[int], None] = lambda _: None
    ) -> int:
        """Sends one file; returns its size in bytes. After an error the session is unusable: close it.

        Args:
            local: a regular file.
            remote: absolute path on the phone; adbd makes missing folders and unlinks the file if the link is lost.
            mode: permission bits; adbd copies the user's to group and others.
            mtime: seconds since 1970.
            progress: called with the bytes of each write.

        Raises:
            AdbError: the phone's refusal, as soon as it comes; AdbTimeout after STALL_TIMEOUT_S without progress.
        """
        # One buffer is filled by a thread (the disk may be slow) while the other is on its way to the server.
        filling, sending = bytearray(CHUNKS_PER_WRITE * _SLOT_BYTES), bytearray(CHUNKS_PER_WRITE * _SLOT_BYTES)
        total = 0
        with local.open("rb", buffering=0) as file:
            size, used = await asyncio.to_thread(_fill, file, filling)
            await self._send(encode_send_v2(remote, mode) if self._send_v2 else encode_send(remote, mode))
            while size:
                filling, sending = sending, filling
                reading = asyncio.ensure_future(asyncio.to_thread(_fill, file, filling))
                try:
                    await self._send(memoryview(sending)[:used])
                    self._refused_early()
                finally:
                    next_size, used = await reading
                total += size
                progress(size)
                size = next_size
        await self._send(encode_done(mtime))
        reply = await self._reply()
        if not isinstance(reply, Okay):
            raise self._unexpected(reply)
        return total

    async def sha256(self, path: str) -> str:
        """Reads a file back and returns its SHA-256: exact, for phones without any hashing program.

        Raises:
            AdbError: the phone's refusal (no such file, not readable).
        """
        await self._send(encode_sync(SyncWord.RECV, path))
        digest = hashlib.sha256()
        while not isinstance(reply := await self._reply(), SyncDone):
            if not isinstance(reply, SyncData):
                raise self._unexpected(reply)
            digest.update(reply.data)
        return digest.hexdigest()

    async def _send(self, data: bytes | memoryview) -> None:
        try:
            async with Deadline(STALL_TIMEOUT_S, self._stalled):
                await self._connection.send(data)
        except AdbLinkLost as error:
            await self._explain(error)

    async def _explain(self, lost: AdbLinkLost) -> None:
        """A stream that broke while we sent may hold the phone's reason: raise that, else what broke."""
        async with Deadline(STALL_TIMEOUT_S, self._stalled):
            while (reply := self._replies.next()) is None:
                data = await self._connection.receive()
                if not data:
                    raise lost
                self._replies.feed(data)
        raise self._unexpected(reply) from lost

    def _refused_early(self) -> None:
        """Raises the phone's refusal if it is already here: no need to send the rest of a big file."""
        try:
            data = self._connection.raw.recv(SYNC_DATA_BYTES)
        except (BlockingIOError, ConnectionError):
            return  # nothing said; a broken link shows at the next send, with its reason
        self._replies.feed(data)
        reply = self._replies.next()
        if reply is not None:
            raise self._unexpected(reply)

    async def _reply(self) -> SyncReply:
        while (reply := self._replies.next()) is None:
            async with Deadline(STALL_TIMEOUT_S, self._stalled):
                data = await self._connection.receive()
            if not data:
                raise AdbLinkLost(f"The link to phone {self._serial} ended in the middle of a file.")
            self._replies.feed(data)
        return reply

    def _unexpected(self, reply: SyncReply) -> Exception:
        if isinstance(reply, Fail):
            return failure(f"remote {reply.message}", serial=self._serial)
        return ProtocolError(f"phone {self._serial} sent {type(reply).__name__} out of turn in a file transfer")

    def _stalled(self) -> AdbTimeout:
        return AdbTimeout(
            f"Phone {self._serial} took no byte of a file for {STALL_TIMEOUT_S:g} s.",
            hint="Its storage or its link hangs; replug it.",
        )


def _fill(file: BinaryIO, buffer: bytearray) -> tuple[int, int]:
    """Fills a buffer with DATA chunks read from a file; returns (bytes of the file, bytes of the buffer)."""
    view = memoryview(buffer)
    total = used = 0
    while used + _SLOT_BYTES <= len(buffer):
        size = file.readinto(view[used + SYNC_HEADER.size : used + _SLOT_BYTES])  # type: ignore[attr-defined]
        if not size:
            break
        SYNC_HEADER.pack_into(buffer, used, SyncWord.DATA, size)
        used += SYNC_HEADER.size + size
        total += size
    return total, used
