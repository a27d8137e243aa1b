"""Ctrl-C, `kill` and a closed terminal, as commands that wait for work take them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_SIGNAL_S = 2.0  # `timeout` signals its child and then the group; people press Ctrl-C twice


@contextmanager
def interruptible() -> Iterator[None]:
    """`kill` and a closed terminal are Ctrl-C to what is inside; a signal that is ignored (nohup) stays so.

    Signals that come together are one: the second must not break what the first has begun.
    """
    came_s: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal came_s
        now_s = time.monotonic()
        if came_s is None or now_s - came_s >= SAME_SIGNAL_S:
            came_s = now_s
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
