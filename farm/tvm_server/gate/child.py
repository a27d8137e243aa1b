"""A gate that is the daemon's child: started by it, started again when it has gone, and ended with it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

STOP_S = 5.0  # a gate cuts its sessions and ends within milliseconds


class GateChild:
    """The process, and the TVM port, which stays the daemon's: clients that come while it is replaced wait."""

    def __init__(self, tvm: socket.socket) -> None:
        """`tvm` listens; it is ours from now on."""
        self._tvm = tvm
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None  # the link to a process that was started ahead

    def __str__(self) -> str:
        return "the daemon's own gate"

    def start(self) -> None:
        """Start the process ahead of `connect`: the rest of the daemon starts beside it.

        Raises:
            OSError: the host cannot start it.
        """
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours = ours
        passed = (self._tvm.fileno(), theirs.fileno())
        command = [sys.executable, "-P", "-m", "farm", "gate", "--child", *map(str, passed)]
        with theirs:  # a session of its own: for Ctrl-C in a terminal, and for the scheduler (sched(7), autogroups)
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed, start_new_session=True)

    def connect(self) -> socket.socket:
        """The link to a fresh process.

        Raises:
            OSError: the host cannot start it.
        """
        if self._ours is None:
            self.start()
        assert self._ours is not None
        ours, self._ours = self._ours, None
        ours.setblocking(False)
        return ours

    def stop(self) -> None:
        """Wait for the end of the process, whose link has ended, and close the port. Blocks for milliseconds."""
        if self._process is not None and self._ours is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self._end()
        self._tvm.close()

    def _end(self) -> None:
        if self._ours is not None:
            self._ours.close()
            self._ours = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def inherited_sockets(tvm: int, link: int) -> tuple[socket.socket, socket.socket]:
    """In the child: the sockets of these descriptors, which no process of its own inherits."""
    for descriptor in (tvm, link):
        os.set_inheritable(descriptor, False)
    return socket.socket(fileno=tvm), socket.socket(fileno=link)
