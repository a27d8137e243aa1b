"""Artifacts: models, inputs and libraries in a folder, named by their hash.

Uploads come in chunks, in order, and can be taken up again after a break: `put` says how many bytes are there. A file
gets its final name only when its hash is right, so a reader never sees half of one. No file is ever in memory whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farm.common.errors import Code, FarmError, HostError, UserError
from farm.common.files import hash_file, is_sha256, publish, short_hash
from farm.control.artifact_rules import GB, ArtifactFile, ArtifactRules, looks_tidy, to_drop
from farm.control.messages import MAX_FRAME_BYTES
from farm.store.artifacts import ArtifactReferences

MAX_ARTIFACT_BYTES = 4 << 30  # the largest phone models have some 3 GB; what a phone takes is limited by its RAM
TOKEN_CHARS = 16  # of a sender's name as a hash, in the name of their upload
PARTIAL = "partial"  # folder of what is not complete
LOCKS = 16  # uploads of one artifact follow one another; two artifacts rarely share a lock
ABANDONED_S = 24 * 3600.0  # an upload without a new chunk for a day is not coming back
TIDY_EVERY_S = 24 * 3600.0
TIDY_AGAIN_S = 10.0  # a full folder that could not be tidied is not looked through for every chunk
SPARE = 0.02  # of the budget: room made beyond what is asked for, so that not every small upload looks through all

logger = logging.getLogger(__name__)


artifact_error = partial(UserError, code=Code.BAD_ARTIFACT)


artifact_storage_error = partial(HostError, code=Code.ARTIFACT_NOT_STORED)


def no_such_artifact_error(sha256: str) -> UserError:
    """The error for an artifact that is not here."""
    message = f"there is no artifact {short_hash(sha256)}"
    return UserError(message, Code.NO_SUCH_ARTIFACT, hint="upload it first (artifact.put)")


@dataclass(frozen=True, slots=True)
class Stored:
    """How much of an artifact is there; `complete` when its hash was right."""

    sha256: str
    size_bytes: int
    complete: bool


class Scratch:
    """A file that is written elsewhere and counts in the folder as it grows."""

    def __init__(self, path: Path, make_room: Callable[[int], None], counted: Callable[[int], None]) -> None:
        self.path = path
        self.size_bytes = 0  # as announced by `grow`
        self._make_room = make_room
        self._counted = counted
        self._growing = threading.Lock()
        self._closed = False

    def grow(self, size_bytes: int) -> None:
        """Make room for so many more bytes before they are written. Blocking.

        Raises:
            HostError: there is no room for it, or the caller left.
        """
        self._make_room(size_bytes)
        with self._growing:
            if self._closed:
                raise artifact_storage_error("the caller of this file left")
            self.size_bytes += size_bytes
            self._counted(size_bytes)

    def become(self, final: Path) -> None:
        """It is an artifact from now on."""
        with self._growing:
            publish(self.path, final)
            self.size_bytes = 0

    def close(self) -> None:
        """Remove it, unless it became an artifact."""
        with self._growing:
            self._closed = True
            self.path.unlink(missing_ok=True)
            self._counted(-self.size_bytes)


class ArtifactFolder:
    """A content-addressed folder. Its file work happens in threads; one chunk per artifact at a time."""

    def __init__(self, folder: Path, rules: ArtifactRules | None = None, use: ArtifactReferences | None = None) -> None:
        self._folder = folder
        self._rules = rules or ArtifactRules()
        self._use = use
        self._partial = folder / PARTIAL
        self._make_folder()
        self._locks = tuple(asyncio.Lock() for _ in range(LOCKS))
        self._count = threading.Lock()
        self._used_bytes = self._measured()  # complete and partial
        self._tidying = threading.Lock()
        self._senders: dict[str, str] = {}  # who sent what, since the start
        self._in_vain_s = -TIDY_AGAIN_S  # monotonic: when tidying last made too little room
        # In a lab of several hosts. Called in any thread when an artifact came, with its size in bytes, or went (None).
        self.on_change: Callable[[str, int | None], None] = lambda *_: None
        self.pull: Callable[[str], Awaitable[None]] | None = None  # gets one from another host, or raises

    @property
    def used_bytes(self) -> int:
        """How much lies there, uploads under way included."""
        return self._used_bytes

    @property
    def rules(self) -> ArtifactRules:
        """How much may lie there."""
        return self._rules

    def allow(self, rules: ArtifactRules) -> None:
        """The size limit from now on; the excess goes when the folder is next tidied."""
        self._rules = rules

    def path(self, sha256: str) -> Path:
        """Where a complete artifact is.

        Raises:
            UserError: `sha256` is no SHA-256, or it is not here.
        """
        found = self._folder / checked_sha256(sha256)
        if not _touch(found):
            raise no_such_artifact_error(sha256)
        return found

    async def ensure(self, sha256: str) -> Path:
        """Where a complete artifact is; one that this host lacks is pulled from another host of the lab.

        Raises:
            UserError: as `path`.
            HostError: none of the hosts that have it answers, or there is no room for it here.
        """
        if self.pull is not None and not self.has(checked_sha256(sha256)):
            await self.pull(sha256)
        return self.path(sha256)

    def has(self, sha256: str) -> bool:
        """Whether a complete artifact is here."""
        return (self._folder / sha256).exists()

    def sizes(self) -> dict[str, int]:
        """Every complete artifact with its size in bytes. Blocking."""
        return {path.name: size_bytes for path, _, size_bytes in _files(self._folder) if is_sha256(path.name)}

    def add(self, data: bytes) -> str:
        """Keep `data` (of the daemon itself); returns its SHA-256. Blocking.

        Raises:
            HostError: the budget is spent.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        final = self._folder / sha256
        if not _is_kept(final, len(data)):
            with self.scratch() as scratch:
                scratch.grow(len(data))
                scratch.path.write_bytes(data)
                self._become(scratch.become, final)
        return sha256

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Scratch]:
        """A file on the folder's disk, to `take`; leftovers go as abandoned uploads do."""
        self._make_folder()
        scratch = Scratch(self._partial / f"scratch-{secrets.token_hex(8)}", self._make_room, self._counted)
        try:
            yield scratch
        finally:
            scratch.close()

    def take(self, scratch: Scratch, sender: str = "") -> str:
        """Keep a `scratch` file as an upload of `sender`; returns its SHA-256. Blocking.

        Raises:
            HostError: the budget is spent.
        """
        sha256, size_bytes = hash_file(scratch.path), scratch.path.stat().st_size
        final = self._folder / sha256
        if not _is_kept(final, size_bytes):
            scratch.grow(size_bytes - scratch.size_bytes)
            self._become(scratch.become, final)
            self._senders[sha256] = _token(sender)
        return sha256

    async def put(self, sha256: str, offset: int, data: bytes, total_bytes: int, sender: str = "") -> Stored:
        """Take the chunk that starts at `offset`; an empty chunk only asks how much is there.

        Until it is complete each `sender` has an upload of its own: no sender spoils another's.

        A chunk at an offset other than the bytes already there is not taken: the answer says where to continue.

        Raises:
            UserError: an argument is wrong, or the finished bytes do not have that hash (they are dropped).
            HostError: the disk refuses, or the budget is spent on what jobs need.
        """
        checked_sha256(sha256)
        if not 0 <= offset <= total_bytes <= MAX_ARTIFACT_BYTES:
            raise artifact_error(
                f"offset {offset} of {total_bytes} bytes is impossible", hint=f"artifacts: at most {MAX_ARTIFACT_BYTES}"
            )
        if len(data) > MAX_FRAME_BYTES or offset + len(data) > total_bytes:
            raise artifact_error(f"a chunk of {len(data)} bytes at {offset} does not fit into {total_bytes} bytes")
        try:
            async with self._locks[int(sha256[:8], 16) % LOCKS]:
                return await asyncio.to_thread(self._put, sha256, offset, data, total_bytes, sender)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise artifact_storage_error(
                "the farm's disk is full" if full else "the farm cannot store the artifact",
                hint="free space in the daemon's state folder" if full else "look at the daemon's state folder",
                evidence=str(error),
            ) from error

    def drop_partial(self, sha256: str, sender: str) -> None:
        """Forget the sender's part of an artifact that is not complete."""
        partial = self._partial_of(sha256, sender)
        size_bytes = _size(partial)
        partial.unlink(missing_ok=True)
        self._counted(-size_bytes)

    async def get(self, sha256: str, offset: int) -> tuple[bytes, int]:
        """Up to one frame of a complete artifact from `offset`, and the artifact's size in bytes.

        Raises:
            UserError: the offset is outside the artifact, or there is none.
            HostError: as `ensure`.
        """
        path = await self.ensure(sha256)
        size_bytes = path.stat().st_size
        if not 0 <= offset <= size_bytes:
            raise artifact_error(f"offset {offset} is outside artifact {short_hash(sha256)} of {size_bytes} bytes")
        return await asyncio.to_thread(read_frame, path, offset), size_bytes

    async def keep_tidy(self) -> None:
        """Drop unneeded artifacts, now and once a day, until cancelled."""
        while True:
            try:
                dropped = await asyncio.to_thread(self.drop_unneeded)
            except (OSError, FarmError) as error:
                logger.warning("the artifact folder is not tidied now: %s", error)
            else:
                logger.info("artifacts: %d dropped", dropped)
            await asyncio.sleep(TIDY_EVERY_S)

    def drop_unneeded(self, now_s: float | None = None, *, room_bytes: int = 0, spare: str = "") -> int:
        """Delete abandoned uploads and unneeded artifacts (artifact_rules decides which); returns how many.

        Blocking.

        Args:
            now_s: wall clock; None asks it.
            room_bytes: how much is about to come.
            spare: the upload that it is to come to.
        """
        now_s = time.time() if now_s is None else now_s
        partial = [
            ArtifactFile(f"{PARTIAL}/{path.name}", now_s - used_s, size, path.name.partition(".")[2], complete=False)
            for path, used_s, size in _files(self._partial)
        ]
        complete = [
            ArtifactFile(path.name, now_s - used_s, size, self._senders.get(path.name, ""))
            for path, used_s, size in _files(self._folder)
        ]
        self._senders = {file.name: file.sender for file in complete if file.sender}
        going = [file.name for file in partial if file.unused_s > ABANDONED_S]
        files = [*complete, *(file for file in partial if file.unused_s <= ABANDONED_S)]
        if not looks_tidy(files, self._rules, room_bytes):
            live, results = ({*self._use.live(), spare}, self._use.results()) if self._use else ({spare}, set[str]())
            going += to_drop(files, self._rules, live=live, results=results, room_bytes=room_bytes)
        for name in going:
            (self._folder / name).unlink(missing_ok=True)
            if is_sha256(name):
                self.on_change(name, None)
        with self._count:
            self._used_bytes = self._measured()
        return len(going)

    def _make_folder(self) -> None:
        """Make it, again where a person removed it."""
        self._partial.mkdir(parents=True, exist_ok=True, mode=0o750)

    def _become(self, become: Callable[[Path], None], final: Path) -> None:
        left_bytes = _size(final)  # of one that was damaged
        become(final)
        self._counted(-left_bytes)
        self.on_change(final.name, _size(final))

    def _make_room(self, size_bytes: int, spare: str = "") -> None:
        """See to it that so much more fits the budget; the upload `spare` is not in the way.

        Raises:
            HostError: it does not, whatever may go.
        """
        with self._tidying:
            if not self._fits(size_bytes) and time.monotonic() - self._in_vain_s > TIDY_AGAIN_S:
                spare_bytes = int(self._rules.budget_bytes * SPARE)
                dropped = self.drop_unneeded(room_bytes=size_bytes + spare_bytes, spare=spare)
                logger.info("artifacts: %d dropped for room", dropped)
                if not self._fits(size_bytes):
                    self._in_vain_s = time.monotonic()
        if not self._fits(size_bytes):
            used_gb, budget_gb = self._used_bytes / GB, self._rules.budget_bytes / GB
            raise artifact_storage_error(
                f"no room for {size_bytes / GB:.3g} GB: {used_gb:.3g} of {budget_gb:.3g} GB of artifacts are in use",
                hint="wait until jobs that need them have ended, or raise [artifacts] budget_gb",
            )

    def _fits(self, size_bytes: int) -> bool:
        return self._used_bytes + size_bytes <= self._rules.budget_bytes

    def _counted(self, size_bytes: int) -> None:
        with self._count:
            self._used_bytes += size_bytes

    def _measured(self) -> int:
        return sum(size_bytes for folder in (self._folder, self._partial) for _, _, size_bytes in _files(folder))

    def _put(self, sha256: str, offset: int, data: bytes, total_bytes: int, sender: str) -> Stored:
        final = self._folder / sha256
        if _is_kept(final, total_bytes):
            return Stored(sha256, total_bytes, complete=True)
        partial = self._partial_of(sha256, sender)
        there = partial.stat().st_size if partial.exists() else 0
        if offset != there or (not data and there < total_bytes):  # it only asks how much is here
            return Stored(sha256, there, complete=False)
        self._make_folder()
        self._make_room(total_bytes - there, f"{PARTIAL}/{partial.name}")
        with partial.open("ab") as file:
            file.write(data)
        self._counted(len(data))
        there += len(data)
        if there < total_bytes:
            return Stored(sha256, there, complete=False)
        if hash_file(partial) != sha256:
            partial.unlink()
            self._counted(-there)
            raise artifact_error(
                f"the uploaded bytes are not artifact {short_hash(sha256)}", hint="upload it again from the start"
            )
        self._become(lambda final: publish(partial, final), final)
        self._senders[sha256] = _token(sender)
        return Stored(sha256, there, complete=True)

    def _partial_of(self, sha256: str, sender: str) -> Path:
        return self._partial / (f"{sha256}.{_token(sender)}" if sender else sha256)


def checked_sha256(text: str) -> str:
    """`text` when it is a SHA-256 in hex; it becomes a file name, so nothing else may pass.

    Raises:
        UserError: it is not.
    """
    if not is_sha256(text):
        raise artifact_error(f"{text[:80]!r} is not a SHA-256 in lower-case hex")
    return text


def _token(sender: str) -> str:
    return hashlib.sha256(sender.encode()).hexdigest()[:TOKEN_CHARS] if sender else ""


def _touch(path: Path) -> bool:
    """Note that a file is used now; whether it is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _size(path: Path) -> int:
    """In bytes; 0: it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_kept(path: Path, size_bytes: int) -> bool:
    """Whether an artifact of that size is there, and note that it is used. A power cut may have cut it short."""
    return path.exists() and _size(path) == size_bytes and _touch(path)


def _files(folder: Path) -> list[tuple[Path, float, int]]:
    """The files in a folder: where, last used (wall clock seconds), size in bytes."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # an upload was completed or refused meanwhile
            facts = path.lstat()  # farm makes no links
            if stat.S_ISREG(facts.st_mode):
                found.append((path, facts.st_mtime, facts.st_size))
    return found


def read_frame(path: Path, offset: int) -> bytes:
    """The bytes of a file from an offset on, at most a frame of them."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(MAX_FRAME_BYTES)
