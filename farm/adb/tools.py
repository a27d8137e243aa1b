"""Rare calls of people to one phone: install, pull, screenshot, facts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from farm.adb.client import AdbClient
from farm.adb.connection import deadline
from farm.adb.errors import AdbError, AdbFailed, AdbTimeout, failure
from farm.adb.push import CLEANUP_TIMEOUT_S, SyncSession
from farm.common.errors import Code, HostError, UserError

INSTALL_TIMEOUT_S = 300.0
PULL_TIMEOUT_S = 600.0
SCREENSHOT_TIMEOUT_S = 30.0
FACTS_TIMEOUT_S = 15.0
LEFT_FREE_BYTES = 256 << 20  # of the host's disk, by a pull: the database and all uploads are on it too
_NO_FILES = frozenset({stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK})
_REMOTE_PACKAGE = "/data/local/tmp/farm-install-{}.apk"
_PROPERTIES = ("ro.serialno", "ro.product.name", "ro.product.model", "ro.product.device")
_PNG_HEAD = struct.Struct(">8s8xII")  # signature; the IHDR chunk's length and name; width, height
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class PhoneFacts:
    """Facts that adb and the phone report of themselves, for support requests."""

    serial: str
    hardware_serial: str
    state: str
    devpath: str
    features: tuple[str, ...]
    product: str
    model: str
    device: str


async def install(client: AdbClient, serial: str, package: Path) -> None:
    """Install or replace an .apk.

    Raises:
        AdbError: the phone's package manager refused; its words are the evidence.
    """
    remote = _REMOTE_PACKAGE.format(secrets.token_hex(8))
    async with deadline(INSTALL_TIMEOUT_S, lambda: _late(serial, f"installing {package.name}", INSTALL_TIMEOUT_S)):
        try:
            async with await SyncSession.open(client, serial) as session:
                await session.send(package, remote, 0o644, mtime=int(time.time()))
            result = await client.shell(serial, f"pm install -r -t {remote}", timeout_s=INSTALL_TIMEOUT_S)
            if "Success" not in result.output:
                raise failure(result.output, serial=serial)
        finally:
            with contextlib.suppress(AdbError):
                await client.shell(serial, f"rm -f {remote}", timeout_s=CLEANUP_TIMEOUT_S)


async def pull(
    client: AdbClient,
    serial: str,
    remote: str,
    local: Path,
    *,
    max_bytes: int,
    room: Callable[[int], None],
    timeout_s: float = PULL_TIMEOUT_S,
) -> int:
    """Copy a file from the phone; nothing of it stays when it fails. Returns its size in bytes.

    A phone's files may have no end (a link to /dev/zero): their size is what comes. `room` is called in a thread before
    so many more bytes are written; what it raises ends the pull.

    Raises:
        UserError: it is a device, a pipe or a socket, or more than `max_bytes` came.
        HostError: the host's disk is, or would be, full.
        AdbError: the phone refused, or its link ended.
    """
    size = 0
    try:
        async with (
            deadline(timeout_s, lambda: _late(serial, f"pulling {remote}", timeout_s)),
            await SyncSession.open(client, serial) as session,
        ):
            if stat.S_IFMT((await session.stat(remote)).mode) in _NO_FILES:
                raise UserError(
                    f"{remote} is a device, a pipe or a socket", Code.NOT_A_FILE, hint="farm device pull brings files"
                )
            with local.open("wb") as file:
                async for chunk in session.receive(remote):
                    size += len(chunk)
                    if size > max_bytes:
                        raise UserError(
                            f"{remote} is larger than {max_bytes} bytes",
                            Code.TOO_LARGE,
                            hint="pull it in parts (split on the phone)",
                        )
                    writing = asyncio.create_task(asyncio.to_thread(_write, file, local.parent, chunk, room))
                    try:
                        await asyncio.shield(writing)
                    finally:
                        await asyncio.wait({writing})  # a thread that writes outlives no cancelled pull
    except BaseException as error:
        local.unlink(missing_ok=True)  # noqa: ASYNC240 (no more than the directory changes)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HostError(
                "the farm's disk is full", Code.NO_ROOM, hint="free disk space", evidence=str(error)
            ) from error
        raise
    return size


async def screenshot(client: AdbClient, serial: str, local: Path) -> tuple[int, int]:
    """Save the screen as PNG; returns its width and height in pixels.

    Raises:
        AdbError: the phone gives no picture, or does not answer.
    """
    picture = (await client.shell(serial, "screencap -p", timeout_s=SCREENSHOT_TIMEOUT_S)).stdout
    if len(picture) < _PNG_HEAD.size or not picture.startswith(_PNG_SIGNATURE):
        raise AdbFailed(
            f"Phone {serial} gives no picture of its screen.",
            hint="A virtual phone has none; any other reports why: farm shell --on NAME -- screencap -p /dev/null",
        )
    await asyncio.to_thread(local.write_bytes, picture)
    _, width, height = _PNG_HEAD.unpack_from(picture)
    return width, height


async def facts(client: AdbClient, serial: str) -> PhoneFacts:
    """Ask adb and the phone for facts.

    Raises:
        AdbError: the phone is not there, or does not answer.
    """
    listed = next((device for device in await client.list_devices() if device.serial == serial), None)
    if listed is None:
        raise failure(f"device '{serial}' not found", serial=serial)
    command = "; ".join(f"getprop {name}" for name in _PROPERTIES)
    lines = (await client.shell(serial, command, timeout_s=FACTS_TIMEOUT_S)).text.splitlines()
    hardware_serial, product, model, device = (*lines, *[""] * len(_PROPERTIES))[: len(_PROPERTIES)]
    return PhoneFacts(
        serial=serial,
        hardware_serial=hardware_serial,
        state=listed.state.value,
        devpath=f"usb:{listed.devpath}" if listed.devpath else "unknown",
        features=tuple(sorted(await client.features(serial))),
        product=product,
        model=model,
        device=device,
    )


def _write(file: BinaryIO, folder: Path, chunk: bytes, room: Callable[[int], None]) -> None:
    """Write to the host's disk, which may be slow and must not become full. Blocks."""
    if shutil.disk_usage(folder).free < LEFT_FREE_BYTES:
        raise HostError(
            f"the farm's disk is nearly full: a pull leaves {LEFT_FREE_BYTES >> 20} MB of it free",
            Code.NO_ROOM,
            hint="free disk space",
            evidence=str(folder),
        )
    room(len(chunk))
    file.write(chunk)


def _late(serial: str, action: str, timeout_s: float) -> AdbTimeout:
    return AdbTimeout(f"Phone {serial} did not finish {action} in {timeout_s:g} s.")
