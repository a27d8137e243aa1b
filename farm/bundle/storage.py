"""File-system steps that either happen whole or not at all, also under `kill -9` and on a full disk."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from farm.bundle.model import MANIFEST
from farm.common.errors import Code, HostError, UserError
from farm.common.files import remove_leftover
from farm.common.os_errors import free_in, hint_for

log = logging.getLogger(__name__)
COPY_CHUNK_BYTES = 1 << 20
LOCK_TIMEOUT_S = 30.0  # holders keep it for milliseconds: renames and fsyncs only
LOCK_POLL_S = 0.02
DAMAGED_TAR = (tarfile.TarError, EOFError, ValueError, RecursionError)  # what reading one with `PlainMember` raises
MAX_MEMBER_BYTES, MAX_NAME_BYTES = 1 << 40, 4096
PARTS = ("files", "golden")  # folders of a bundle; the manifest stands beside them


@contextmanager
def host_errors(doing: str, place: Path) -> Iterator[None]:
    """Turn an OSError inside into a HostError that names the action and has a hint."""
    try:
        yield
    except OSError as error:
        hint = f"{place} ({free_in(place)}): {hint_for(error.errno)}; nothing was changed"
        raise HostError(f"{doing} failed: {error.strerror or error}", hint=hint, evidence=str(error)) from error


def copy_hashed(source: Path, target: Path, mode: int) -> tuple[str, int]:
    """Copy a file to disk for good; returns the SHA-256 and size of the copy."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(COPY_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            writer.write(chunk)
        os.fchmod(writer.fileno(), mode)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest(), size


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; the kernel releases it when its holder dies.

    Raises:
        HostError: another process keeps it for longer than LOCK_TIMEOUT_S.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise HostError(
                        f"another process has held {path} for {LOCK_TIMEOUT_S:g} s",
                        hint=f"`fuser {path}` names it; end it and try again",
                    ) from error
                time.sleep(LOCK_POLL_S)
        yield  # closing the file lets go


class Staging:
    """A folder for work in progress, known to be alive by a lock on itself.

    Make and sweep it under the library's lock: then no sweeper can meet a folder that is made but not yet locked.
    """

    def __init__(self, parent: Path) -> None:
        self.path = parent / uuid.uuid4().hex
        self.path.mkdir()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Remove its remaining files."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def sweep(parent: Path) -> None:
    """Remove the files that dead processes left in `parent`; a line for each that stays."""
    for path in parent.iterdir():
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # its owner has just closed it
        except OSError as error:
            log.warning("%s is not farm's and stays: %s; remove it by hand", path, error.strerror or error)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives
        else:
            remove_leftover(path)
        finally:
            os.close(descriptor)


def pack(place: Path, file: IO[bytes]) -> None:
    """Write the bundle whose folder is `place`: the same bundle, the same bytes. Blocking.

    Raises:
        OSError: it cannot be read, or the file not be written.
    """
    parts = {f"{part}/{path.name}": path for part in PARTS for path in sorted((place / part).iterdir())}
    _write(file, {MANIFEST: place / MANIFEST} | parts)


def pack_folder(folder: Path, file: IO[bytes]) -> None:
    """Write a folder to make a bundle of: `unpack` puts its files into `files`. Blocking.

    Raises:
        OSError: it cannot be read, or the file not be written.
    """
    _write(file, {f"files/{path.name}": path for path in sorted(folder.iterdir())})


def _write(file: IO[bytes], members: Mapping[str, Path]) -> None:
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for name, path in members.items():
            about = tarfile.TarInfo(name)
            about.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(about, content)


class PlainMember(tarfile.TarInfo):
    """A member of an archive of plain files.

    `tarfile` takes the contents of other headers into memory, whatever their size, and follows any number of them.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:  # the method that subclasses may override
        most = {tarfile.REGTYPE: MAX_MEMBER_BYTES, tarfile.GNUTYPE_LONGNAME: MAX_NAME_BYTES}.get(self.type, -1)
        if not 0 <= self.size <= most:
            raise tarfile.ReadError(f"{self.name[:80]!r} is no plain file, or has an impossible size")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found


def unpack(file: Path, place: Path) -> None:
    """Unpack an archive of `pack` into an empty folder; the manifest says whether it is right. Blocking.

    Raises:
        UserError: it is no packed bundle.
        OSError: it cannot be read, or there is no room.
    """
    for part in PARTS:
        (place / part).mkdir()
    try:
        with tarfile.open(file, mode="r:", tarinfo=PlainMember) as archive:
            for member, content in _members(archive):
                with (place / member).open("xb") as target:
                    shutil.copyfileobj(content, target)
    except (*DAMAGED_TAR, FileExistsError) as error:
        raise UserError(f"this is no packed bundle: {error}", Code.BAD_BUNDLE) from error


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for member in archive:
        folder, _, name = member.name.rpartition("/")
        known = member.name == MANIFEST or (folder in PARTS and name not in ("", ".", ".."))
        if not known or "\0" in name:
            raise tarfile.TarError(f"{member.name[:80]!r} does not belong into a bundle")
        content = archive.extractfile(member)
        assert content is not None  # of a regular file
        yield member.name, content
