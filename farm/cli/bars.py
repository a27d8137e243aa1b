"""Bars on stderr for what takes a while: uploads, pushes to phones, a compile. None without a terminal.

A bar is one line that overwrites itself, in no colour, and is gone when its work is over.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from farm.cli import plots, terminal
from farm.cli.context import say, shown
from farm.cli.terminal import Glyphs
from farm.core.durations import format_duration

SMALLEST_BYTES = 1 << 20  # what is smaller is there before anybody reads a bar
DRAW_S = 0.1  # between two pictures of a bar
FIRST_TICK_S = 1.0  # a compile that is over sooner needs no line
CELLS = 24
TOLD_PARTS = 10  # where lines stay, one for each tenth


def bar_line(title: str, done: int, total: int, spent_s: float, width: int, marks: Glyphs) -> str:
    """`title ####.... 42% 1.2 of 3.0 MB, 5s left`, cut to the terminal's width."""
    part = done / total if total else 1.0
    left = f", {format_duration(spent_s / part - spent_s)} left" if 0 < part < 1 and spent_s >= FIRST_TICK_S else ""
    line = f"{shown(title)} {plots.bar(part, CELLS, marks)} {part:4.0%} {done / 1e6:.1f} of {total / 1e6:.1f} MB{left}"
    return line[: width - 1]


class Bars:
    """One line of a terminal; elsewhere nothing is shown."""

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        lively: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stream`: stderr by default; `lively`: whether lines may overwrite themselves; `clock`: monotonic seconds."""
        self._stream = stream or sys.stderr
        self._lively = terminal.lively(self._stream) if lively is None else lively
        self._marks = terminal.glyphs(self._stream)
        self._clock = clock
        self._began_s: dict[str, float] = {}
        self._drawn_s = -DRAW_S
        self._open = False
        self._lock = threading.Lock()

    def transfer(self, title: str, done: int, total: int) -> None:
        """So many bytes of a file are there. From any thread."""
        now_s = self._clock()
        began_s = self._began_s.setdefault(title, now_s)
        if total < SMALLEST_BYTES:
            return
        if done >= total:
            self._began_s.pop(title)
            self.clear()
        elif now_s - self._drawn_s >= DRAW_S:
            self._drawn_s = now_s
            self.show(bar_line(title, done, total, now_s - began_s, terminal.columns(self._stream), self._marks))

    @property
    def shows(self) -> bool:
        """Whether anything is drawn at all."""
        return self._lively

    def show(self, line: str) -> None:
        """Put a line in place of the one that is there."""
        if not self._lively:
            return
        with self._lock:
            self._stream.write(f"\r\x1b[K{line[: terminal.columns(self._stream) - 1]}")
            self._stream.flush()
            self._open = True

    def clear(self) -> None:
        """Leave no line."""
        with self._lock:
            if self._open:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._open = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        say(text)

    @contextmanager
    def ticking(self, title: str) -> Iterator[None]:
        """How long it has taken so far, while what is inside runs."""
        over = threading.Event()

        def tick() -> None:
            began_s = self._clock()
            while not over.wait(FIRST_TICK_S):
                self.show(f"{shown(title)} ... {format_duration(self._clock() - began_s)}")

        thread = threading.Thread(target=tick, daemon=True)
        if self._lively:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.is_alive():
                thread.join()
            self.clear()


class Pushes:
    """Steps of a phone on its way to ready: pushing is a bar at a terminal, elsewhere a line for each tenth."""

    def __init__(self, bars: Bars, tell: Callable[[str], None] | None = None) -> None:
        """`tell`: takes lines that stay."""
        self._bars = bars
        self._tell = tell or bars.say
        self._told = -1

    def step(self, kind: str, line: str, sent: int = 0, total: int = 0) -> None:
        """A `device.*` event; `sent` and `total` bytes of one about pushing."""
        if kind != "device.pushing":
            self._told = -1
            self._tell(line)
            return
        self._bars.transfer("pushing", sent, total)
        tenth = sent * TOLD_PARTS // max(1, total)
        if not self._bars.shows and tenth != self._told:
            self._told = tenth
            self._tell(line)
