"""Files on a phone that are certainly what they should be: hash-verified, nothing sent twice, nothing half-installed.

How: one shell round trip asks the phone for the hashes, modes and free space; only what differs is sent, each file to a
temporary name beside its place; a second round trip hashes those; a third renames them all (`mv` within one folder is
atomic). Whatever goes wrong before that leaves every destination as it was.

Verification, best first, by what the phone has: `sha256sum` (toybox), `md5sum` or toolbox' `md5`; without
any, the file is read back and hashed on the host: exact too, but every byte crosses the link twice.

adb's own words are not trusted: a failed push may be followed by "1 file pushed" (tests/data/adb/errors).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from farm.adb import push_script as script
from farm.adb.client import AdbClient
from farm.adb.errors import AdbError, PhoneStorageFull, PushMismatch
from farm.adb.failures import failure
from farm.adb.push_script import FileFacts, HashTool
from farm.adb.sync import SyncSession
from farm.core.errors import UserError

RESERVE_BYTES = 16 << 20  # stays free on the phone beyond the push; Android misbehaves on a full /data
SCRIPT_TIMEOUT_S = 60.0  # for one batch of hashes
HASH_BYTES_PER_S = 20 << 20  # assumed of the slowest phones; the timeout grows with the bytes to hash
CLEANUP_TIMEOUT_S = 5.0


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
    """What a push did."""

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
        PushMismatch: the phone's copy is not what was sent; nothing was installed.
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
            f"Phone {serial} has {facts.free_bytes >> 20} MiB free; {(total + RESERVE_BYTES) >> 20} MiB are needed.",
            hint="Free space on it; farm bundle remove and farm device forget --clean take old bundles away.",
            evidence=facts.evidence,
        )
    if differing:
        try:
            await _install(client, serial, tool, differing, total, progress)
        except PhoneStorageFull as full:  # what it said is free was not for us
            said = "" if facts.free_bytes is None else f", it had said {facts.free_bytes >> 20} MiB are free"
            raise PhoneStorageFull(
                f"Phone {serial} became full during the push: {total >> 20} MiB are needed{said}.",
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
        return  # the error that brought us here is the one to tell


async def _ask(client: AdbClient, serial: str, paths: Sequence[str], size: int) -> script.TreeFacts:
    """Hashes, modes and free space, in as few round trips as the phone's longest request allows (one, for a bundle)."""
    facts: script.TreeFacts | None = None
    for part in script.split_paths(paths, await _limit(client, serial)):
        result = await client.shell(serial, script.inspect(part), timeout_s=SCRIPT_TIMEOUT_S + size / HASH_BYTES_PER_S)
        more = script.read_inspection(part, result.text)
        if result.exit_code != 0 or more is None:
            raise failure(result.said, serial=serial)
        facts = more if facts is None else facts.joined(more)
    return facts or script.TreeFacts({}, HashTool.SHA256, None, "")


async def _run(client: AdbClient, serial: str, lines: Sequence[str]) -> None:
    for command in script.batches(lines, await _limit(client, serial)):
        result = await client.shell(serial, command, timeout_s=SCRIPT_TIMEOUT_S)
        if result.exit_code != 0:
            raise failure(result.said, serial=serial)


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
        return found.digest == await asyncio.to_thread(_hash_file, file.local, "md5")
    async with await SyncSession.open(client, serial) as session:
        stat = await session.stat(found.path)
        if stat.size != _size(file) & 0xFFFFFFFF:
            return False
        return await session.sha256(found.path) == file.sha256


async def _mismatch(serial: str, file: PushFile, found: FileFacts) -> Exception:
    """Which side is wrong: the local file changed since its hash was taken, or the phone's copy is damaged."""
    local = await asyncio.to_thread(_hash_file, file.local, "sha256")
    if local != file.sha256:
        return UserError(
            f"{file.local} is not the file it was: its content changed.",
            hint="Add the bundle again (farm bundle add).",
            evidence=f"expected sha256 {file.sha256}, found {local}",
        )
    return PushMismatch(
        f"{file.remote} arrived damaged on phone {serial}; nothing was installed.",
        hint="Try again; if it repeats, the cable, the hub or the phone's flash is bad.",
        evidence=f"expected sha256 {file.sha256}, the phone says {found.digest or 'no such file'}",
    )


def _hash_file(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


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
