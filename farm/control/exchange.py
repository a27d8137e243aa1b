"""One question to the daemon and what may come back: sans I/O, shared by every client.

Imported by `farm status`, so the standard library must do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from farm.control.messages import Reply, decode_reply
from farm.core.errors import DaemonUnreachableError, NotAllowedError
from farm.core.folders import default_runtime_dir

FIRST_SIGN_S = 2.0  # the daemon says "still at work" after 0.5 s; four times that means it does not answer
SILENCE_S = 15.0  # it says so again every 2 s; a busy two-core host may be late
CONNECT_S = 1.0  # a unix socket's connect blocks only while the daemon's backlog is full


class Exchange:
    """Tells what a client got from signs of life, and when silence means that nobody answers."""

    def __init__(self, request_id: str, now_s: float, first_sign_s: float = FIRST_SIGN_S) -> None:
        """`now_s` is monotonic, as in `received`; `first_sign_s`: how long nothing at all may come."""
        self._id = request_id
        self._silence_s = first_sign_s
        self.deadline_s = now_s + first_sign_s  # something must have come by then
        self.ended = False  # the answer is there

    def received(self, frames: Sequence[bytes], now_s: float) -> Reply | None:
        """Something to hand on, or None: a sign of life, or the rest of an earlier question.

        Raises:
            FarmError: what the daemon reported.
            ProtocolError: the frames are no reply.
        """
        reply = decode_reply(frames)
        if reply.id != self._id:
            return None
        self._silence_s = SILENCE_S
        self.deadline_s = now_s + SILENCE_S
        if reply.error is not None:
            self.ended = True
            raise reply.error
        self.ended = not reply.more
        return reply if self.ended or reply.fields else None

    def silent(self, path: Path) -> DaemonUnreachableError:
        """The error for a `deadline_s` that passed."""
        return DaemonUnreachableError(
            f"the farm daemon did not answer for {self._silence_s:.0f} s",
            hint=f"it holds {path} but is stuck: systemctl status farm",
        )


def default_socket() -> Path:
    """The daemon's control socket: `$FARM_SOCKET`, or the one in the default runtime folder."""
    named = os.environ.get("FARM_SOCKET")
    if named:
        return Path(named)
    return default_runtime_dir() / "control.sock"


def probe(path: Path) -> None:
    """Whether somebody listens: ZeroMQ would retry silently for ever, the kernel says it at once.

    Raises:
        DaemonUnreachableError: nobody does.
        NotAllowedError: this user may not connect.
    """
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(CONNECT_S)
        try:
            trial.connect(os.fspath(path))
        except PermissionError as error:
            raise NotAllowedError(
                f"you may not open the farm's control socket {path}",
                hint="have an operator add you to the group farm: sudo usermod -aG farm USER, then log in again",
            ) from error
        except OSError as error:
            raise DaemonUnreachableError(
                f"no farm daemon listens on {path}",
                hint="start one with `farm serve` (or systemctl start farm); `farm demo` needs no phone",
                evidence=str(error),
            ) from error
