"""The machine adbd runs on, as its services see it: how to start a shell, where a path is, which faults are armed.

`LabLine` connects it to the lab: whole messages, each with at most one socket (SCM_RIGHTS).
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Of arm64 phones (farm.simulation.arm64): what starts their programs, and where that reads which folder is /data.
ARM64_PRELOAD = "arm64_exec.so"
ARM64_DATA = "FARM_ARM64_DATA"
# Of phones with an OpenCL driver (farm.simulation.opencl), below /vendor: the driver; what only it sees of the host:
# /usr, and the folder of the host's driver, which a file names where that is not below /usr.
VENDOR_OPENCL = "lib64/libOpenCL.so"
VENDOR_HOST = "host"
VENDOR_DRIVER = "driver"
DRIVER_FOLDER = "driver.txt"
OPENCL_CACHE = "vendor/opencl"  # below /data: compiled kernels
MESSAGE_LIMIT_BYTES = 64 * 1024
CONNECTION_MESSAGE = b"adb"  # goes with every connection

Received = tuple[bytes, socket.socket | None]


def _same_path(path: bytes) -> bytes:
    return path


def _plain_shell(command: str) -> Sequence[str]:
    return ["/system/bin/sh", "-c", command] if command else ["/system/bin/sh", "-"]


class OutputFilter(Protocol):
    """Changes the output on one descriptor of a program, before the host reads it."""

    @property
    def pending(self) -> bool:
        """Whether bytes are kept back."""

    def feed(self, data: bytes, /) -> bytes:
        """The next bytes; returns those that are final by now."""

    def flush(self) -> bytes:
        """The kept bytes: nothing more comes, or not soon."""


def _no_filter() -> OutputFilter | None:
    return None


@dataclass(frozen=True, slots=True)
class Machine:
    """The differences between a phone in namespaces (the defaults) and one without.

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
        """Account for a write."""
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


class LabLine:
    """One end of the line. It never blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    def fileno(self) -> int:
        """For an event loop: readable when `receive` has something."""
        return self._end.fileno()

    def receive(self) -> Received | None:
        """The next message and the socket that came along, if any; None when the other end is gone."""
        data, descriptors, _, _ = socket.recv_fds(self._end, MESSAGE_LIMIT_BYTES, 1)
        connection = socket.socket(fileno=descriptors[0]) if descriptors else None
        if not data and connection is None:
            return None
        return data, connection

    def send(self, message: bytes, connection: socket.socket | None = None) -> None:
        """Send a message of 1 byte to 64 KiB; the caller's copy of the socket may be closed afterwards."""
        if not 0 < len(message) <= MESSAGE_LIMIT_BYTES:
            raise ValueError(f"a message of {len(message)} bytes; 1 to {MESSAGE_LIMIT_BYTES} go through")
        if connection is None:
            self._end.send(message)
        else:
            socket.send_fds(self._end, [message], [connection.fileno()])

    def close(self) -> None:
        """Hang up."""
        self._end.close()


class ConnectionSource(LabLine):
    """The phone's end, given to its adbd; `machine` tells how to run commands there."""

    def __init__(self, end: socket.socket, machine: Machine) -> None:
        super().__init__(end)
        self.machine = machine


def line_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends, to be wrapped where they are used."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
