"""Files on a phone that are certainly right: verified by hash, nothing sent twice, nothing half-installed.

How: one shell round trip asks the phone for the hashes, modes and free space; only different files are sent, each to a
temporary name beside its place; a second round trip hashes those; a third renames them all (`mv` within one folder is
atomic). A failure before that leaves every destination unchanged.

Verification, best first, by what the phone has: `sha256sum` (toybox), `md5sum` or toolbox' `md5`; without
any, the file is read back and hashed on the host: exact too, but every byte crosses the link twice.

adb's own words are not trusted: a failed push may be followed by "1 file pushed" (tests/data/adb/errors).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from farm.adb import push_script as script
from farm.adb.client import AdbClient
from farm.adb.connection import AdbConnection, deadline
from farm.adb.errors import AdbError, AdbFailed, AdbLinkLost, AdbTimeout, PhoneStorageFull, failure
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
from farm.adb.push_script import FileFacts, HashTool
from farm.common.errors import Code, ProtocolError, UserError
from farm.common.files import hash_file

RESERVE_BYTES = 16 << 20  # stays free on the phone beyond the push; Android misbehaves on a full /data
SCRIPT_TIMEOUT_S = 60.0  # for one batch of hashes
HASH_BYTES_PER_S = 20 << 20  # assumed of the slowest phones; the timeout grows with the bytes to hash
CLEANUP_TIMEOUT_S = 5.0
CHUNKS_PER_WRITE = 16  # 1 MiB: twice the rate of one chunk; 4 MiB gains little for its memory (docs/facts.md)
STALL_TIMEOUT_S = 20.0  # no byte taken or given for so long: the phone or its link hangs; generous, for slow flash
_SLOT_BYTES = SYNC_HEADER.size + SYNC_DATA_BYTES


@dataclass(frozen=True, slots=True)
class PushFile:
    """One file and where it belongs."""

    local: Path
    remote: str  # absolute path on the phone
    mode: int  # permission bits, 0o755
    sha256: str  # of the content, lower-case hex


@dataclass(frozen=True, slots=True)
class PushProgress:
    """How far a push is."""

    remote: str  # the file under way
    sent_bytes: int  # of all files
    total_bytes: int  # of all files that are being sent


@dataclass(frozen=True, slots=True)
class PushReport:
    """The result of a push."""

    pushed_files: int
    pushed_bytes: int
    skipped: int  # files that were there already, byte for byte
    verified_by: str  # the phone's program, or "read back"


async def push_tree(
    client: AdbClient,
    serial: str,
    files: Sequence[PushFile],
    progress: Callable[[PushProgress], None] | None = None,
) -> PushReport:
    """Makes every file of `files` present on the phone with exactly its content and mode.

    Raises:
        UserError: an impossible path, two files for one place, a local file that is missing or has changed.
        PhoneStorageFull: not enough room; nothing was sent.
        AdbFailed: the phone's copy is not what was sent; nothing was installed.
        AdbError: the link or the phone failed; nothing was installed (a repeat sends only what is missing).
    """
    _check(files)
    facts = await _ask(client, serial, [file.remote for file in files], sum(_size(file) for file in files))
    tool = facts.tool
    differing = [file for file in files if not await _same(client, serial, tool, facts.files[file.remote], file)]
    sizes = {file.remote: _size(file) for file in differing}
    total = sum(sizes.values())
    if facts.free_bytes is not None and total and facts.free_bytes < total + RESERVE_BYTES:
        raise PhoneStorageFull(
            f"/data has {facts.free_bytes >> 20} MiB free, {(total + RESERVE_BYTES) >> 20} MiB are needed",
            hint="Free space on it; farm bundle remove and farm device forget --clean take old bundles away.",
            evidence=facts.evidence,
        )
    if differing:
        try:
            await _install(client, serial, tool, differing, total, progress)
        except PhoneStorageFull as full:  # part of the free space was not for us
            reported = "" if facts.free_bytes is None else f", it had {facts.free_bytes >> 20} MiB free"
            raise PhoneStorageFull(
                f"/data became full: {total >> 20} MiB are needed{reported}",
                hint=full.hint,
                evidence=full.evidence,
            ) from full
    pending = {file.remote for file in differing}
    wrong_mode = [f for f in files if f.remote not in pending and facts.files[f.remote].mode not in (None, f.mode)]
    if wrong_mode:
        await _run(client, serial, script.change_modes([(file.remote, file.mode) for file in wrong_mode]))
    return PushReport(len(differing), total, len(files) - len(differing), tool.value)


async def _install(
    client: AdbClient,
    serial: str,
    tool: HashTool,
    files: Sequence[PushFile],
    total: int,
    progress: Callable[[PushProgress], None] | None,
) -> None:
    """Sends to temporary names, verifies them all, then renames them all."""
    temporary = {file.remote: script.temporary_name(file.remote) for file in files}
    sent = 0

    def advance(remote: str, size: int) -> None:
        nonlocal sent
        sent += size
        if progress is not None:
            progress(PushProgress(remote, sent, total))

    try:
        async with await SyncSession.open(client, serial) as session:
            for file in files:
                remote = file.remote
                await session.send(
                    file.local,
                    temporary[remote],
                    file.mode,
                    mtime=int(time.time()),
                    progress=lambda size, remote=remote: advance(remote, size),  # type: ignore[misc]
                )
        facts = await _ask(client, serial, list(temporary.values()), total)
        for file in files:
            found = facts.files[temporary[file.remote]]
            if not await _same(client, serial, tool, found, file):
                raise await _mismatch(serial, file, found)
        moves = [(temporary[file.remote], file.remote, file.mode) for file in files]
        await _run(client, serial, script.install(moves))
    except BaseException:
        await _remove_quietly(client, serial, list(temporary.values()))
        raise


async def _remove_quietly(client: AdbClient, serial: str, paths: Sequence[str]) -> None:
    """Removes temporary files after a failure. If the phone is gone too, the next push overwrites them."""
    try:
        for command in script.batches([script.remove(path) for path in paths]):
            await client.shell(serial, command, timeout_s=CLEANUP_TIMEOUT_S)
    except AdbError:
        return  # the caller raises the first error


async def _ask(client: AdbClient, serial: str, paths: Sequence[str], size: int) -> script.TreeFacts:
    """Hashes, modes and free space, in as few round trips as the phone's longest request allows (one, for a bundle)."""
    facts: script.TreeFacts | None = None
    for part in script.split_paths(paths, await _limit(client, serial)):
        result = await client.shell(serial, script.inspect(part), timeout_s=SCRIPT_TIMEOUT_S + size / HASH_BYTES_PER_S)
        more = script.read_inspection(part, result.text)
        if result.exit_code != 0 or more is None:
            raise failure(result.output, serial=serial)
        facts = more if facts is None else facts.joined(more)
    return facts or script.TreeFacts({}, HashTool.SHA256, None, "")


async def _run(client: AdbClient, serial: str, lines: Sequence[str]) -> None:
    for command in script.batches(lines, await _limit(client, serial)):
        result = await client.shell(serial, command, timeout_s=SCRIPT_TIMEOUT_S)
        if result.exit_code != 0:
            raise failure(result.output, serial=serial)


async def _limit(client: AdbClient, serial: str) -> int:
    """Bytes of the phone's longest request."""
    v2 = "shell_v2" in await client.features(serial)
    return script.LONG_REQUEST_BYTES if v2 else script.SHORT_REQUEST_BYTES


async def _same(client: AdbClient, serial: str, tool: HashTool, found: FileFacts, file: PushFile) -> bool:
    if not found.present:
        return False
    if tool is HashTool.SHA256:
        return found.digest == file.sha256
    if tool is HashTool.MD5:
        return found.digest == await asyncio.to_thread(hash_file, file.local, "md5")
    async with await SyncSession.open(client, serial) as session:
        stat = await session.stat(found.path)
        if stat.size != _size(file) & 0xFFFFFFFF:
            return False
        return await session.sha256(found.path) == file.sha256


async def _mismatch(serial: str, file: PushFile, found: FileFacts) -> Exception:
    """Which side is wrong: the local file changed since its hash was taken, or the phone's copy is damaged."""
    local = await asyncio.to_thread(hash_file, file.local)
    if local != file.sha256:
        return UserError(
            f"{file.local} is not the file it was: its content changed.",
            hint="Add the bundle again (farm bundle add).",
            evidence=f"expected sha256 {file.sha256}, found {local}",
        )
    return AdbFailed(
        f"{file.remote} arrived damaged on phone {serial}; nothing was installed.",
        Code.PUSH_MISMATCH,
        hint="Try again; if it repeats, the cable, the hub or the phone's flash is bad.",
        evidence=f"expected sha256 {file.sha256}, the phone has {found.digest or 'no such file'}",
    )


def _size(file: PushFile) -> int:
    return file.local.stat().st_size


def _check(files: Sequence[PushFile]) -> None:
    places: set[str] = set()
    for file in files:
        path = PurePosixPath(file.remote)
        if not path.is_absolute() or ".." in path.parts or any(ord(c) < 0x20 or c == "\\" for c in file.remote):
            raise UserError(f"{file.remote!r} is not an absolute path on a phone")
        if file.remote in places:
            raise UserError(f"two files would go to {file.remote}")
        places.add(file.remote)
        if not file.local.is_file():
            raise UserError(f"{file.local} does not exist or is not a regular file")


class SyncSession:
    """One `sync:` stream. Files go through it one after the other. Use as `async with await SyncSession.open(...)`."""

    def __init__(self, connection: AdbConnection, serial: str, *, send_v2: bool) -> None:
        self._connection = connection
        self._serial = serial
        self._send_v2 = send_v2
        self._replies = SyncReader()

    @classmethod
    async def open(cls, client: AdbClient, serial: str) -> Self:
        """Opens the service. SND2 is used where the phone offers it (a path may then hold a comma)."""
        features = await client.features(serial)
        connection = await client.open_service(serial, "sync:")
        return cls(connection, serial, send_v2="sendrecv_v2" in features)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()

    async def stat(self, path: str) -> SyncStat:
        """Mode, size modulo 4 GiB and mtime. All zero = no such path."""
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
        digest = hashlib.sha256()
        async for data in self.receive(path):
            digest.update(data)
        return digest.hexdigest()

    async def receive(self, path: str) -> AsyncIterator[bytes]:
        """Read a file of the phone, in pieces of at most 64 KiB.

        Raises:
            AdbError: the phone's refusal (no such file, not readable).
        """
        await self._send(encode_sync(SyncWord.RECV, path))
        while not isinstance(reply := await self._reply(), SyncDone):
            if not isinstance(reply, SyncData):
                raise self._unexpected(reply)
            yield reply.data

    async def receive_some(self, path: str, most_bytes: int) -> bytes | None:
        """Read a small file of the phone; None: there is none.

        Of a file with more than `most_bytes` it gives more than that and not all; the session is of no use then.

        Raises:
            AdbError: as `receive`.
        """
        if (await self.stat(path)).mode == 0:
            return None
        data = bytearray()
        async for piece in self.receive(path):
            data += piece
            if len(data) > most_bytes:
                break
        return bytes(data)

    async def _send(self, data: bytes | memoryview) -> None:
        try:
            async with deadline(STALL_TIMEOUT_S, self._stalled):
                await self._connection.send(data)
        except AdbLinkLost as error:
            await self._explain(error)

    async def _explain(self, lost: AdbLinkLost) -> None:
        """A stream that broke while we sent may hold the phone's reason: raise that, else the error of the stream."""
        async with deadline(STALL_TIMEOUT_S, self._stalled):
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
            return  # no reply yet; a broken link shows at the next send, with its reason
        self._replies.feed(data)
        reply = self._replies.next()
        if reply is not None:
            raise self._unexpected(reply)

    async def _reply(self) -> SyncReply:
        while (reply := self._replies.next()) is None:
            async with deadline(STALL_TIMEOUT_S, self._stalled):
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
    """Fills a buffer with DATA chunks read from a file. Returns (bytes of the file, bytes of the buffer)."""
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
