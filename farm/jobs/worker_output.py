"""What a worker writes to its stdout and stderr: read from a pipe for as long as it lives.

A pipe and not a file: the disk is safe from a worker that writes without end, and nobody has to look for news.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from farm.jobs.lines import Lines

CHUNK_BYTES = 8 << 10  # at worst 8,000 lines for the log: some 20 ms
TAIL_BYTES = 2000  # kept as evidence
PAUSE_S = 0.002  # between two chunks of what is dropped: reading 4 MB/s costs the daemon little
END_LIMIT_S = 1.0  # every writer is dead by then; one in uninterruptible sleep is not waited for


# TVM says so of each operator of a kind for which a target has no rule of its own; the general ones are used.
HARMLESS = 'Unknown schedule rule "meta_schedule.'


def without_harmless(text: str) -> str:
    """Lines without those that are known to say nothing."""
    if HARMLESS not in text:
        return text
    return "\n".join(line for line in text.split("\n") if HARMLESS not in line)


class WorkerOutput:
    """The read end of one worker's output. `close` it in the end; `writer` is the zygote's to hand on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` hears complete lines, several at once with newlines between them."""

        def heard(text: str) -> None:
            if told := without_harmless(text):
                say(told)

        self._lines = Lines(heard, tail_bytes=TAIL_BYTES)
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
        """The zygote has the writer: only the worker and what it started hold it now."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    async def end(self) -> None:
        """Hear the rest, once every writer is dead."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), END_LIMIT_S)

    def close(self) -> None:
        """Hear no more."""
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
        if self._lines.deaf:  # it is read on, slowly, so that a chatty worker still comes to its end
            self._loop.remove_reader(self._reader)
            self._timer = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._reader, self._readable)
