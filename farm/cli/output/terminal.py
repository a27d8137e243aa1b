"""The abilities of a terminal (characters beyond ASCII, colour, size, progress bars), and the signals that it sends."""

from __future__ import annotations

import atexit
import locale
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from farm.cli.output import escaped, print_note

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

SAME_SIGNAL_S = 2.0  # `timeout` signals its child and then the group; people press Ctrl-C twice
NARROWEST = 20  # columns; a narrower terminal gets lines of this width
MIN_BYTES = 1 << 20  # a smaller file is there before a bar can be read


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters for plots, from low to high."""

    steps: str  # heights of a cell, the lowest first
    full: str
    rest: str  # of a bar that is not full
    line: str
    rise: str  # of a curve that falls in steps
    middle: str
    dot: str
    more: str  # where something was cut off


UNICODE = Glyphs(steps="▁▂▃▄▅▆▇█", full="█", rest="░", line="─", rise="│", middle="●", dot="●", more="…")
ASCII = Glyphs(steps="_.-=+*%#", full="#", rest=".", line="-", rise="|", middle="o", dot="*", more="~")


def glyphs_for(encoding: str) -> Glyphs:
    """The characters that the terminal's encoding has."""
    try:
        f"{UNICODE.steps}{UNICODE.rest}{UNICODE.line}{UNICODE.rise}{UNICODE.middle}{UNICODE.more}".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def glyphs(stream: TextIO | None = None) -> Glyphs:
    """The characters that `stream` (stdout by default) can show, by the locale: Python writes UTF-8 even under C."""
    to = stream or sys.stdout
    if locale_is_plain(os.environ):
        return ASCII
    return glyphs_for(getattr(to, "encoding", None) or locale.getpreferredencoding(do_setlocale=False))


def locale_is_plain(environ: Mapping[str, str]) -> bool:
    """Whether the locale promises ASCII only: C or POSIX by name, or another without a UTF-8 in it."""
    named = next((environ[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(name)), "")
    _, dot, charset = named.partition(".")
    if dot:
        return charset.lower().replace("-", "") != "utf8"
    return named in ("C", "POSIX")


def columns(stream: TextIO | None = None) -> int:
    """Width of the terminal, 80 where there is none; `$COLUMNS` goes first."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given):
        return max(NARROWEST, int(given))
    try:
        return max(NARROWEST, os.get_terminal_size((stream or sys.stdout).fileno()).columns)
    except (OSError, ValueError):
        return max(NARROWEST, shutil.get_terminal_size().columns)


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Whether lines that overwrite themselves would be garbage there."""
    return environ.get("TERM", "") in ("dumb", "unknown")


def is_lively(stream: TextIO) -> bool:
    """Whether things may move on it: it is a terminal that can."""
    return stream.isatty() and not is_dumb(os.environ)


def console(stream: TextIO) -> Console:
    """A rich console that writes there; it honours NO_COLOR, and draws no emoji or markup of other people's words."""
    from rich.console import Console

    class LocaleConsole(Console):
        """Draws with ASCII where the locale promises no more, as `glyphs` does."""

        @property
        def encoding(self) -> str:
            return "ascii" if locale_is_plain(os.environ) else super().encoding

    return LocaleConsole(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=False)


@contextmanager
def interruptible() -> Iterator[None]:
    """`kill` and a closed terminal are Ctrl-C to the block inside; a signal that is ignored (nohup) stays so.

    Signals that come together are one: the second must not break what the first has begun.
    """
    last_signal_s: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal last_signal_s
        now_s = time.monotonic()
        if last_signal_s is None or now_s - last_signal_s >= SAME_SIGNAL_S:
            last_signal_s = now_s
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class TransferBars:
    """A bar for each file that is on its way, at a terminal; elsewhere nothing is shown."""

    def __init__(self) -> None:
        self._shown = is_lively(sys.stderr)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def update(self, title: str, done: int, total: int) -> None:
        """`done` of `total` bytes of a file are there. From any thread."""
        if not self._shown or total < MIN_BYTES:
            return
        with self._lock:
            bars = self._bars = self._bars or _started()
            if title not in self._tasks:
                self._tasks[title] = bars.add_task(escaped(title), total=total)
            bars.update(self._tasks[title], completed=done)
            if done >= total:
                bars.remove_task(self._tasks.pop(title))
                if not self._tasks:
                    bars.stop()
                    self._bars = None


def _started() -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), DownloadColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    bars = Progress(*columns, console=console(sys.stderr), transient=True)
    bars.start()
    atexit.register(bars.stop)  # a command that ends early gives the cursor back
    return bars


@contextmanager
def elapsed(title: str) -> Iterator[None]:
    """Show for how long the work inside has run."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True, disable=not is_lively(sys.stderr)) as progress:
        progress.add_task(escaped(title), total=None)
        yield


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Takes the steps of some work, a line at a time, and shows for how long each has run."""
    with ExitStack() as stack:

        def report(step: str) -> None:
            stack.close()  # the step before
            if is_lively(sys.stderr):
                stack.enter_context(elapsed(step))
            else:
                print_note(step)

        yield report
