"""An event loop whose time passes at once: a test of an hour's retries takes milliseconds, to the second.

Only for tests in which no thread, process or socket is waited for: the loop would not wait for them. `time.monotonic`
goes by the loop's clock where a loop runs.
"""

import asyncio
import functools
import selectors
import time
from unittest import mock


class VirtualLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, its clock (`time`, from 1000 s on) goes to the next thing that is due."""

    def __init__(self):
        self._now_s = 1000.0
        super().__init__(_Selector(self))

    def time(self):
        return self._now_s

    def pass_time(self, seconds):
        self._now_s += seconds


class _Selector(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("nothing will ever happen in this test")
        ready = super().select(0)
        if not ready:
            self._loop.pass_time(timeout)
        return ready


def virtual_time(test):
    """Run an async test in a `VirtualLoop`; its fixtures are not async."""
    real = time.monotonic

    def monotonic():
        loop = asyncio._get_running_loop()
        return loop.time() if loop else real()

    @functools.wraps(test)
    def run(*arguments, **fields):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner, mock.patch("time.monotonic", monotonic):
            return runner.run(test(*arguments, **fields))

    return run
