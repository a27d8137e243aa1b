"""One question to the daemon and what may come back: sans I/O, shared by every client.

Imported by `farm status`, so the standard library must do.
"""

from __future__ import annotations

from collections.abc import Sequence

from farm.control.address import Where, stuck_hint
from farm.control.messages import Reply, decode_reply
from farm.core.errors import DaemonUnreachableError

FIRST_SIGN_S = 2.0  # the daemon says "still at work" after 0.5 s; four times that means it does not answer
REMOTE_SIGN_S = 8.0  # from elsewhere: with connecting, the handshake, and a slow line
SILENCE_S = 15.0  # it says so again every 2 s; a busy two-core host may be late


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

    def silent(self, where: Where) -> DaemonUnreachableError:
        """The error for a `deadline_s` that passed."""
        return DaemonUnreachableError(
            f"the farm daemon did not answer for {self._silence_s:.0f} s",
            hint=stuck_hint(where),
        )
