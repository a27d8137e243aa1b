"""The output of workers and phones' shells: a stream of bytes as lines of text, with limits; and a worker's own pipe.

A pipe and not a file: the disk is safe from a worker that writes without end, and no poll is needed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from farm.common.tasks import at_most

CHUNK_BYTES = 8 << 10  # at worst 8,000 lines for the log: some 20 ms
TAIL_BYTES = 2000  # kept as evidence
PAUSE_S = 0.002  # between two chunks of what is dropped: reading 4 MB/s costs the daemon little
END_LIMIT_S = 1.0  # every writer is dead by then; one in uninterruptible sleep is not waited for


# TVM writes this for each operator of a kind for which a target has no rule of its own; the general ones are used.
HARMLESS = 'Unknown schedule rule "meta_schedule.'
MAX_KEPT_BYTES = 4 << 20  # of one stream: as much as an attempt's log keeps; the rest is counted and dropped
MAX_LINE_BYTES = 64 << 10  # a longer line is passed on in pieces


def without_harmless(text: str) -> str:
    """Lines without those that are known to be harmless."""
    if HARMLESS not in text:
        return text
    return "\n".join(line for line in text.split("\n") if HARMLESS not in line)


class WorkerOutput:
    """The read end of one worker's output. `close` it in the end; `writer` is the zygote's to hand on."""

    def __init__(self, write: Callable[[str], None]) -> None:
        """`write` gets complete lines, several at once with newlines between them."""

        def write_useful(text: str) -> None:
            if useful := without_harmless(text):
                write(useful)

        self._lines = LineSplitter(write_useful, tail_bytes=TAIL_BYTES)
        self._loop = asyncio.get_running_loop()
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._reader, self._readable)

    @property
    def tail(self) -> str:
        """The end of it."""
        return self._lines.tail.strip()

    def handed_on(self) -> None:
        """The zygote has the writer: only the worker and its children hold it now."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    async def end(self) -> None:
        """Read the rest, once every writer is dead."""
        async with at_most(END_LIMIT_S):
            await self._ended.wait()

    def close(self) -> None:
        """Read no more."""
        self.handed_on()
        if self._timer is not None:
            self._timer.cancel()
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1
            self._lines.finish()
        self._ended.set()

    def _readable(self) -> None:
        try:
            data = os.read(self._reader, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._lines.feed(data)
        if self._lines.full:  # it is read on, slowly, so that a chatty worker still comes to its end
            self._loop.remove_reader(self._reader)
            self._timer = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._reader, self._readable)


class LineSplitter:
    """Passes lines on as they are complete, and keeps the stream's end."""

    def __init__(self, write: Callable[[str], None], *, tail_bytes: int) -> None:
        """`write` gets complete lines, several at once with newlines between them."""
        self._write = write
        self._tail_bytes = tail_bytes
        self._tail = bytearray()
        self._rest = bytearray()
        self.total_bytes = 0

    @property
    def full(self) -> bool:
        """Whether more has come than is passed on; the rest may then be read slowly."""
        return self.total_bytes > MAX_KEPT_BYTES

    @property
    def tail(self) -> str:
        """The end of the stream; undecodable bytes are replaced."""
        return self._tail.decode(errors="replace")

    @property
    def tail_is_all(self) -> bool:
        """Whether the tail is the whole stream."""
        return self.total_bytes <= self._tail_bytes

    def feed(self, data: bytes) -> None:
        """Take the next output."""
        self._tail += data
        del self._tail[: -self._tail_bytes]
        was_full = self.full
        self.total_bytes += len(data)
        if was_full:
            return
        self._rest += data
        end = self._rest.rfind(b"\n")
        if end >= 0:
            self._pass_on(self._rest[:end])
            del self._rest[: end + 1]
        while len(self._rest) > MAX_LINE_BYTES:
            self._pass_on(self._rest[:MAX_LINE_BYTES])
            del self._rest[:MAX_LINE_BYTES]
        if self.full:
            self._rest.clear()
            self._write(f"(more than {MAX_KEPT_BYTES >> 20} MiB: the rest is not kept)")

    def finish(self) -> None:
        """Report a last line that has no newline."""
        if self._rest:
            self._pass_on(self._rest)
            self._rest = bytearray()

    def _pass_on(self, lines: bytearray) -> None:
        self._write(lines.decode(errors="replace").replace("\r\n", "\n").removesuffix("\r"))
