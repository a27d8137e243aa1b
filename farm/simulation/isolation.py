"""How far a virtual phone can be separated from its host, and finding out what this host allows."""

from __future__ import annotations

import os
import signal
import tempfile
from enum import StrEnum
from functools import cache
from pathlib import Path

from farm.simulation import namespaces
from farm.simulation.system_image import find_userland

_PHONE_NAMESPACES = (
    namespaces.CLONE_NEWPID | namespaces.CLONE_NEWNET | namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWIPC
)


class Isolation(StrEnum):
    """What a phone has of its own."""

    FULL = "full"  # root on the host: all namespaces; the shell is uid 2000
    USER = "user"  # no root: the same inside a user namespace; the shell's uid shows 0
    NONE = "none"  # no namespaces: a folder, the host's shell and network; paths in commands are rewritten


@cache
def detect_isolation() -> Isolation:
    """The best level this host allows; tries it in a child process once, which takes some milliseconds."""
    if find_userland() is None:
        return Isolation.NONE
    wished = Isolation.FULL if os.geteuid() == 0 else Isolation.USER
    for level in (wished, Isolation.USER):
        if _works(level):
            return level
    return Isolation.NONE


def enter_machine(isolation: Isolation) -> None:
    """Give this process mounts of its own that the host never sees, and the right to make more.

    Raises:
        OSError: the host does not allow it.
    """
    if isolation is Isolation.USER:
        namespaces.become_root_of_user_namespace(os.getuid(), os.getgid())
    namespaces.unshare(namespaces.CLONE_NEWNS)
    namespaces.mount("none", "/", flags=namespaces.Mount.RECURSIVE | namespaces.Mount.PRIVATE)


def enter_phone() -> None:
    """Let the *next* child be pid 1 of a phone: no processes, an empty network, its own names and uptime.

    Raises:
        OSError: the host does not allow it.
    """
    namespaces.unshare(_PHONE_NAMESPACES)
    namespaces.restart_boot_clock()


def _works(level: Isolation) -> bool:
    """Whether a child can do what a phone's boot does (containers often forbid the mount of /proc)."""
    with tempfile.TemporaryDirectory(prefix="farm-isolation-") as folder:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                enter_machine(level)
                enter_phone()
                init = os.fork()
                if init == 0:
                    _try_mounts(Path(folder))
                    os._exit(0)
                status = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
            except OSError:
                status = 1
            finally:
                os._exit(status if 0 <= status < 128 else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _try_mounts(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        namespaces.unshare(namespaces.CLONE_NEWNS)
        namespaces.mount("tmpfs", folder, "tmpfs", 0, "size=1m")
        (folder / "proc").mkdir()
        namespaces.mount("proc", folder / "proc", "proc")
        namespaces.raise_loopback()
    except OSError:
        os._exit(1)
