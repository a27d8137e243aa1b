"""Files to and from the daemon's artifacts: streamed a chunk at a time, checked by hash, resumed after a break."""

from __future__ import annotations

import asyncio
import io
import secrets
from pathlib import Path

from farm.client.connection import DaemonConnection
from farm.common.errors import UserError
from farm.control.client import Download, OnBytes, Upload, opened


async def upload(connection: DaemonConnection, source: Path | bytes, on_bytes: OnBytes | None = None) -> str:
    """Upload a file or bytes; returns its SHA-256. The daemon gets no content twice.

    Raises:
        UserError: the file cannot be read.
        FarmError: the daemon does not take it.
    """
    on_transfer = connection.transfers(source.name if isinstance(source, Path) else "upload")

    def report(done: int, total: int) -> None:
        for each in (on_bytes, on_transfer):
            if each is not None:
                each(done, total)

    with opened(source) as file:
        upload = await asyncio.to_thread(Upload, file, report)
        while not upload.complete:
            upload.answered(await connection.ask("artifact.put", *await asyncio.to_thread(upload.question)))
    return upload.sha256


async def download(connection: DaemonConnection, sha256: str, target: Path, on_bytes: OnBytes | None = None) -> int:
    """Download an artifact into a file, which appears only when it is whole; returns its size in bytes.

    Raises:
        UserError: there is no such artifact, or the file cannot be written.
        ProtocolError: the bytes are not what was asked for.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with partial.open("xb") as file:
            try:
                size = await _receive(connection, sha256, file, on_bytes or connection.transfers(target.name))
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


async def fetch(connection: DaemonConnection, sha256: str) -> bytes:
    """An artifact that fits into memory.

    Raises:
        UserError: there is no such artifact.
        ProtocolError: the bytes are not what was asked for.
    """
    received = io.BytesIO()
    await _receive(connection, sha256, received, None)
    return received.getvalue()


async def _receive(connection: DaemonConnection, sha256: str, file: io.BufferedIOBase, on_bytes: OnBytes | None) -> int:
    download = Download(sha256, file)
    while not download.complete:
        await asyncio.to_thread(download.answered, await connection.ask("artifact.get", download.question()))
        if on_bytes is not None:
            on_bytes(download.size_bytes, download.total_bytes)
    return download.size_bytes
