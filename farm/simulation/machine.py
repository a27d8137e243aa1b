"""The machine adbd runs on, as its services see it: how to start a shell, where a path is, what faults are armed."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Of arm64 phones (farm.simulation.arm64): what starts their programs, and where that reads which folder is /data.
ARM64_PRELOAD = "arm64_exec.so"
ARM64_DATA = "FARM_ARM64_DATA"


def _same_path(path: bytes) -> bytes:
    return path


def _plain_shell(command: str) -> Sequence[str]:
    return ["/system/bin/sh", "-c", command] if command else ["/system/bin/sh", "-"]


class OutputFilter(Protocol):
    """Changes what one descriptor of a program says, before the host reads it."""

    @property
    def pending(self) -> bool:
        """Whether bytes are kept back."""

    def feed(self, data: bytes, /) -> bytes:
        """The next bytes; returns what is certain by now."""

    def flush(self) -> bytes:
        """What was kept: nothing more comes, or not soon."""


def _no_filter() -> OutputFilter | None:
    return None


@dataclass(frozen=True, slots=True)
class Machine:
    """What differs between a phone in namespaces (the defaults) and one without.

    `shell_argv(command)` is the program that runs a command line; empty means interactive. `translate(path)` turns a
    path the host names into one that can be opened here. `environment` is what the shell gets. `new_filter()` is asked
    once for each descriptor that a shell writes to.
    """

    environment: Mapping[str, str]
    shell_argv: Callable[[str], Sequence[str]] = _plain_shell
    translate: Callable[[bytes], bytes] = _same_path
    new_filter: Callable[[], OutputFilter | None] = _no_filter


@dataclass(slots=True)
class DiskQuota:
    """How many bytes pushes may still write: a full disk where /data is no file system of its own. None: no limit."""

    left_bytes: int | None = None

    def take(self, count: int) -> None:
        """Account for a write.

        Raises:
            OSError: ENOSPC, when the disk would be full.
        """
        if self.left_bytes is None:
            return
        if count > self.left_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left_bytes -= count


@dataclass(slots=True)
class PushFuse:
    """Cuts the link in the middle of a push, after `left_bytes` of file contents. None: not armed."""

    left_bytes: int | None = None
    blown: Callable[[], None] = field(default=lambda: None)

    def burn(self, count: int) -> bool:
        """Account for received file contents; True (once) when the link was cut by them."""
        if self.left_bytes is None:
            return False
        self.left_bytes -= count
        if self.left_bytes > 0:
            return False
        self.left_bytes = None
        self.blown()
        return True
