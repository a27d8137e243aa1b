"""What a power cut would take: files and names that were written and never synced."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def power_cuts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], list[Path]]]:
    """Watch `os.fsync`; the function that it gives lists what a power cut now would tear or lose below a folder.

    A file is safe when it was synced since it was written last, a folder when it was synced since a name in it changed.
    """
    synced: dict[tuple[int, int], int] = {}  # by device and inode: when it had changed last
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        synced[found.st_dev, found.st_ino] = found.st_mtime_ns

    def unsafe(path: Path) -> bool:
        found = path.stat()
        return synced.get((found.st_dev, found.st_ino)) != found.st_mtime_ns

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", watched)
        yield lambda folder: [path for path in (folder, *folder.rglob("*")) if path.name != "partial" and unsafe(path)]
