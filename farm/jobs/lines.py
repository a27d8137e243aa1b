"""A stream of bytes as lines of text, with limits: what workers write and what phones' shells print."""

from __future__ import annotations

from collections.abc import Callable

MAX_HEARD_BYTES = 4 << 20  # of one stream: as much as an attempt's log keeps; the rest is counted and dropped
MAX_LINE_BYTES = 64 << 10  # a longer line is told in pieces


class Lines:
    """Tells lines as they are complete, and keeps the stream's end."""

    def __init__(self, say: Callable[[str], None], *, tail_bytes: int) -> None:
        """`say` hears complete lines, several at once with newlines between them."""
        self._say = say
        self._tail_bytes = tail_bytes
        self._tail = bytearray()
        self._rest = bytearray()
        self.total_bytes = 0

    @property
    def deaf(self) -> bool:
        """Whether more has come than is told. Whoever feeds may then take their time."""
        return self.total_bytes > MAX_HEARD_BYTES

    @property
    def tail(self) -> str:
        """The end of the stream; undecodable bytes are replaced."""
        return self._tail.decode(errors="replace")

    @property
    def tail_is_all(self) -> bool:
        """Whether the tail is the whole stream."""
        return self.total_bytes <= self._tail_bytes

    def feed(self, data: bytes) -> None:
        """Take what came next."""
        self._tail += data
        del self._tail[: -self._tail_bytes]
        was_deaf = self.deaf
        self.total_bytes += len(data)
        if was_deaf:
            return
        self._rest += data
        end = self._rest.rfind(b"\n")
        if end >= 0:
            self._tell(self._rest[:end])
            del self._rest[: end + 1]
        while len(self._rest) > MAX_LINE_BYTES:
            self._tell(self._rest[:MAX_LINE_BYTES])
            del self._rest[:MAX_LINE_BYTES]
        if self.deaf:
            self._rest.clear()
            self._say(f"(more than {MAX_HEARD_BYTES >> 20} MiB: the rest is not kept)")

    def finish(self) -> None:
        """Tell a last line that has no end."""
        if self._rest:
            self._tell(self._rest)
            self._rest = bytearray()

    def _tell(self, lines: bytearray) -> None:
        self._say(lines.decode(errors="replace").replace("\r\n", "\n").removesuffix("\r"))
