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
import re
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

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
from farm.common.errors import Code, ProtocolError, UserError
from farm.common.files import hash_file

RESERVE_BYTES = 16 << 20  # stays free on the phone beyond the push; Android misbehaves on a full /data
SCRIPT_TIMEOUT_S = 60.0  # for one batch of hashes
HASH_BYTES_PER_S = 20 << 20  # assumed of the slowest phones; the timeout grows with the bytes to hash
CLEANUP_TIMEOUT_S = 5.0
CHUNKS_PER_WRITE = 16  # 1 MiB: twice the rate of one chunk; 4 MiB gains little for its memory (docs/facts.md)
STALL_TIMEOUT_S = 20.0  # no byte taken or given for so long: the phone or its link hangs; generous, for slow flash
_SLOT_BYTES = SYNC_HEADER.size + SYNC_DATA_BYTES
LONG_REQUEST_BYTES = 24 << 10  # phones with shell,v2 take more; the server's request ends at 64 KiB
SHORT_REQUEST_BYTES = 3 << 10  # older ones: 4096 with everything
_PART_SUFFIX = ".farm-part"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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
        await _run(client, serial, change_modes([(file.remote, file.mode) for file in wrong_mode]))
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
    temporary = {file.remote: temporary_name(file.remote) for file in files}
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
        await _run(client, serial, install(moves))
    except BaseException:
        await _remove_quietly(client, serial, list(temporary.values()))
        raise


async def _remove_quietly(client: AdbClient, serial: str, paths: Sequence[str]) -> None:
    """Removes temporary files after a failure. If the phone is gone too, the next push overwrites them."""
    try:
        for command in batches([remove(path) for path in paths]):
            await client.shell(serial, command, timeout_s=CLEANUP_TIMEOUT_S)
    except AdbError:
        return  # the caller raises the first error


async def _ask(client: AdbClient, serial: str, paths: Sequence[str], size: int) -> TreeFacts:
    """Hashes, modes and free space, in as few round trips as the phone's longest request allows (one, for a bundle)."""
    facts: TreeFacts | None = None
    for part in split_paths(paths, await _limit(client, serial)):
        result = await client.shell(serial, inspect(part), timeout_s=SCRIPT_TIMEOUT_S + size / HASH_BYTES_PER_S)
        more = read_inspection(part, result.text)
        if result.exit_code != 0 or more is None:
            raise failure(result.output, serial=serial)
        facts = more if facts is None else facts.joined(more)
    return facts or TreeFacts({}, HashTool.SHA256, None, "")


async def _run(client: AdbClient, serial: str, lines: Sequence[str]) -> None:
    for command in batches(lines, await _limit(client, serial)):
        result = await client.shell(serial, command, timeout_s=SCRIPT_TIMEOUT_S)
        if result.exit_code != 0:
            raise failure(result.output, serial=serial)


async def _limit(client: AdbClient, serial: str) -> int:
    """Bytes of the phone's longest request."""
    v2 = "shell_v2" in await client.features(serial)
    return LONG_REQUEST_BYTES if v2 else SHORT_REQUEST_BYTES


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


class HashTool(StrEnum):
    """How a phone's files are verified. People see the value."""

    SHA256 = "sha256sum"
    MD5 = "md5"
    NONE = "read back"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One path as the phone reports it."""

    path: str
    present: bool = False
    digest: str = ""  # lower-case hex; empty when absent, unreadable or no tool
    mode: int | None = None  # permission bits; None when absent or the phone has no `stat`


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """The answer to `inspect`."""

    files: Mapping[str, FileFacts]
    tool: HashTool
    free_bytes: int | None  # on the file system of the first path; None = not reported
    evidence: str  # its output about free space

    def joined(self, more: TreeFacts) -> TreeFacts:
        """These and the next batch's facts."""
        return TreeFacts({**self.files, **more.files}, self.tool, self.free_bytes, self.evidence)


def temporary_name(remote: str) -> str:
    """Where a file is sent first: hidden, in the folder where it belongs, the same for every attempt."""
    path = PurePosixPath(remote)
    return str(path.with_name(f".{path.name}{_PART_SUFFIX}"))


def split_paths(paths: Sequence[str], limit_bytes: int) -> Iterator[Sequence[str]]:
    """Groups of paths whose `inspect` fits a request; each path is quoted once, and half the room is the script's."""
    return _groups(paths, limit_bytes // 2, shlex.quote)


def inspect(paths: Sequence[str]) -> str:
    """A script that prints which paths are files, their modes and hashes, and the free space where the first belongs.

    Few processes, since each costs a phone milliseconds: one `stat` and one hash program for all paths together.
    """
    quoted = " ".join(shlex.quote(path) for path in paths)
    return (
        f"set -- {quoted}\n"
        "h=; for t in sha256sum md5sum md5; do "
        'if "$t" /dev/null >/dev/null 2>&1; then h=$t; break; fi; done\n'
        'echo "tool $h"\n'
        'd=${1%/*}; while [ -n "$d" ] && [ ! -d "$d" ]; do d=${d%/*}; done\n'
        'stat -f -c \'space %a %S\' "${d:-/}" 2>/dev/null || { echo df; df "${d:-/}"; }\n'
        'echo files; for f; do if [ -f "$f" ]; then echo "$f"; fi; done\n'
        "echo modes; stat -c '%a %n' \"$@\" 2>/dev/null\n"
        'echo hashes; if [ -n "$h" ]; then $h "$@" 2>/dev/null; fi\n'
        "echo end"
    )


_SPACE = re.compile(r"space (\d+) (\d+)")

_HASH = re.compile(r"([0-9a-f]{64}|[0-9a-f]{32})\s+\*?(.+)")

_MODE = re.compile(r"([0-7]{1,4}) (.+)")

_TOOLS = {"sha256sum": HashTool.SHA256, "md5sum": HashTool.MD5, "md5": HashTool.MD5, "": HashTool.NONE}


def read_inspection(paths: Sequence[str], text: str) -> TreeFacts | None:
    """Reads the output of `inspect`; None when it is not whole (the phone's shell failed: its output is `text`)."""
    lines = text.replace("\r", "").split("\n")
    if "end" not in lines or not all(word in lines for word in ("files", "modes", "hashes")):
        return None
    head, rest = lines[: (at := lines.index("files"))], lines[at + 1 :]
    present = set(rest[: rest.index("modes")])
    modes = rest[rest.index("modes") + 1 : (at := rest.index("hashes"))]
    mode_of = {match[2]: int(match[1], 8) & 0o777 for line in modes if (match := _MODE.fullmatch(line))}
    digest_of = {match[2]: match[1] for line in rest[at + 1 :] if (match := _HASH.fullmatch(line))}
    tool = next((_TOOLS.get(line.removeprefix("tool").strip()) for line in head if line.startswith("tool")), None)
    if tool is None:
        return None
    files = {path: FileFacts(path, path in present, digest_of.get(path, ""), mode_of.get(path)) for path in paths}
    words = "\n".join(line for line in head if not line.startswith("tool"))
    return TreeFacts(files, tool, free_bytes(words), words.strip())


# coreutils, busybox, toybox: Available Use% Mount; toolbox: Mount Size Used Free Blksize.
_DF_PERCENT = re.compile(r"\s([\d.]+)([KMGT]?)\s+(\d+)%\s+/\S*\s*\Z")

_DF_TOOLBOX = re.compile(r"/\S*\s+[\d.]+[KMGT]?\s+[\d.]+[KMGT]?\s+([\d.]+)([KMGT]?)\s+\d+\s*\Z")


def free_bytes(text: str) -> int | None:
    """Free bytes from `stat -f` or from any generation's `df` of one folder; None for any other text."""
    if match := _SPACE.search(text):
        return int(match[1]) * int(match[2])
    if match := _DF_PERCENT.search(text):
        unit = _UNITS[match[2]] if match[2] else 1 << 10  # a bare number counts 1K-blocks
        return int(float(match[1]) * unit)
    if match := _DF_TOOLBOX.search(text):
        return int(float(match[1]) * _UNITS[match[2]])
    return None


def install(moves: Sequence[tuple[str, str, int]]) -> list[str]:
    """One line per (temporary, final, mode): permission bits as asked (adbd widens them), then the atomic rename."""
    lines = []
    for temporary, final, mode in moves:
        source, target = shlex.quote(temporary), shlex.quote(final)
        # `mv` onto a folder would move into it. toolbox' mv knows no -f; stdin is closed so that none can ask.
        lines.append(
            f"if [ -d {target} ]; then echo {target}: open failed: Is a directory; exit 1; fi; "
            f"chmod {mode & 0o777:o} {source} || exit 1; "
            f"mv -f {source} {target} 2>/dev/null || mv {source} {target} </dev/null || exit 1"
        )
    return lines


def change_modes(modes: Sequence[tuple[str, int]]) -> list[str]:
    """One line per (path, permission bits)."""
    return [f"chmod {mode & 0o777:o} {shlex.quote(path)} || exit 1" for path, mode in modes]


def remove(path: str) -> str:
    """A line that removes a file which may not be there."""
    return f"rm -f {shlex.quote(path)}"


def batches(lines: Sequence[str], limit_bytes: int = SHORT_REQUEST_BYTES) -> Iterator[str]:
    """The lines joined into as few commands as fit a request."""
    return map("\n".join, _groups(lines, limit_bytes))


def _groups(texts: Iterable[str], limit_bytes: int, sent: Callable[[str], str] = str) -> Iterator[list[str]]:
    """The texts in order, in groups that together take no more, unless one does alone; `sent`: as they are sent."""
    group: list[str] = []
    size = 0
    for text in texts:
        cost = len(sent(text).encode()) + 1
        if group and size + cost > limit_bytes:
            yield group
            group, size = [], 0
        group.append(text)
        size += cost
    if group:
        yield group
