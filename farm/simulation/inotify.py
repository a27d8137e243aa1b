"""Tells when somebody wrote a file (inotify(7)); one descriptor for a whole lab, no cost while nothing happens."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from typing import TYPE_CHECKING

from farm.core.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CLOSE_WRITE = 0x8
_MOVED_TO = 0x80
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class Watcher:
    """Watches folders; needs a running event loop."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise HostError("the host has no inotify left", evidence=os.strerror(ctypes.get_errno()))
        self._watched: dict[int, Callable[[str], None]] = {}
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_event)

    def watch(self, folder: Path, written: Callable[[str], None], *, moved: bool = False) -> int:
        """Call `written(name)` when a file of the folder was written, or `moved` there; returns what `unwatch` takes.

        Raises:
            HostError: it cannot be watched.
        """
        mask = _CLOSE_WRITE | (_MOVED_TO if moved else 0)
        number: int = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
        if number < 0:
            raise HostError(f"cannot watch {folder}", evidence=os.strerror(ctypes.get_errno()))
        self._watched[number] = written
        return number

    def unwatch(self, number: int) -> None:
        """Stop watching a folder."""
        if self._watched.pop(number, None) is not None:
            self._libc.inotify_rm_watch(self._descriptor, number)

    def close(self) -> None:
        """Stop watching everything."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _on_event(self) -> None:
        data = os.read(self._descriptor, _READ_BYTES)
        offset = 0
        while offset < len(data):
            number, _, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = data[offset : offset + length].rstrip(b"\0")
            offset += length
            written = self._watched.get(number)
            if written is not None and name and not name.startswith(b"."):
                written(os.fsdecode(name))
