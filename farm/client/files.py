"""Files to and from the daemon's artifacts: streamed a chunk at a time, checked by hash, resumed after a break."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from errno import EACCES, EISDIR
from pathlib import Path
from typing import BinaryIO

from farm.client.door import Door
from farm.control.messages import MAX_FRAME_BYTES
from farm.core.errors import ProtocolError, UserError

OnBytes = Callable[[int, int], None]  # bytes done, bytes in all


def checked_file(path: Path | str) -> Path:
    """`path` when it is a file that can be read.

    Raises:
        UserError: it is not.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder", hint="give the path of a file")
    if not path.exists():
        raise UserError(f"{path} does not exist", hint="give the path of a file")
    if not os.access(path, os.R_OK):
        raise UserError(f"cannot read {path}: permission denied", hint="give the path of a file you may read")
    return path


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written at the end of the work, before it begins; leaves nothing behind.

    Raises:
        UserError: it could not.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        if not path.exists():
            path.open("xb").close()
            path.unlink()
        elif not os.access(path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES))
    except OSError as error:
        hint = "make it first" if not path.parent.is_dir() else "name a file in a folder that is there and yours"
        why = f"there is no folder {path.parent}" if not path.parent.is_dir() else error.strerror
        raise UserError(f"cannot write {path}: {why}", hint=hint) from error


async def upload(door: Door, source: Path | bytes, on_bytes: OnBytes | None = None) -> str:
    """Upload a file or bytes; returns its SHA-256. What the daemon has already is not sent again.

    Raises:
        UserError: the file cannot be read.
        FarmError: the daemon does not take it.
    """
    with ExitStack() as stack:
        file = stack.enter_context(io.BytesIO(source) if isinstance(source, bytes) else _opened(source))
        sha256 = await asyncio.to_thread(_hash, file)
        total = file.seek(0, os.SEEK_END)
        # An empty chunk asks how much is there; an empty file is complete with it.
        offset, chunk = 0, b""
        name = source.name if isinstance(source, Path) else "upload"
        while True:
            answer = await door.call("artifact.put", frames=(chunk,), sha256=sha256, offset=offset, total_bytes=total)
            there, complete = int(answer["size_bytes"]), bool(answer["complete"])
            for told in (on_bytes, door.transfers(name)):
                if told is not None:
                    told(total if complete else there, total)
            if complete:
                return sha256
            if chunk and there == offset:
                raise ProtocolError(f"the daemon takes no more of artifact {sha256[:12]} at byte {offset}")
            offset = there
            chunk = await asyncio.to_thread(_chunk, file, offset)
            if not chunk:
                raise UserError(f"{source!s:.200} changed while it was uploaded", hint="try again")


async def download(door: Door, sha256: str, target: Path, on_bytes: OnBytes | None = None) -> int:
    """Download an artifact into a file, which appears only when it is whole; returns its size in bytes.

    Raises:
        UserError: there is no such artifact, or the file cannot be written.
        ProtocolError: the bytes are not what was asked for.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            try:
                size = await _receive(door, sha256, file, on_bytes or door.transfers(target.name))
                file.flush()
                partial.replace(target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UserError(
            f"cannot write {target}: {error.strerror}", hint="name a file in a folder that is there and yours"
        ) from error
    return size


async def fetch(door: Door, sha256: str) -> bytes:
    """An artifact that fits into memory.

    Raises:
        UserError: there is no such artifact.
        ProtocolError: the bytes are not what was asked for.
    """
    received = io.BytesIO()
    await _receive(door, sha256, received, None)
    return received.getvalue()


async def _receive(door: Door, sha256: str, file: BinaryIO, on_bytes: OnBytes | None) -> int:
    seen, offset = hashlib.sha256(), 0
    while True:
        reply = await door.ask("artifact.get", {"sha256": sha256, "offset": offset})
        total, chunk = int(reply.fields["total_bytes"]), reply.frames[0] if reply.frames else b""
        await asyncio.to_thread(file.write, chunk)
        seen.update(chunk)
        offset += len(chunk)
        if on_bytes is not None:
            on_bytes(offset, total)
        if offset >= total or not chunk:
            break
    if seen.hexdigest() != sha256:
        raise ProtocolError(f"the bytes received are not artifact {sha256[:12]}")
    return offset


def _hash(file: io.BufferedIOBase) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def _chunk(file: io.BufferedIOBase, offset: int) -> bytes:
    file.seek(offset)
    return file.read(MAX_FRAME_BYTES)


def _opened(path: Path) -> io.BufferedReader:
    try:
        return checked_file(path).open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", hint="give the path of a file you may read") from error
