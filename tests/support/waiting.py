"""Waiting for what no event tells."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import psutil

HANG_S = 60.0  # no test measures: a limit only ends what hangs, also on a loaded host
LOOK_S = 0.002


async def until(condition: Callable[[], object], patience_s: float = HANG_S) -> None:
    """Let the loop run until `condition` holds."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 (tests observe; they add no events to what they test)
            await asyncio.sleep(LOOK_S)


def still_alive(processes: Iterable[psutil.Process], patience_s: float = HANG_S) -> list[psutil.Process]:
    """Those of the processes that do not end."""
    left = list(processes)
    while True:
        left = [each for each in left if each.is_running()]
        with contextlib.suppress(FileNotFoundError):  # by now the pid is a thread's: psutil 7.2 does not expect that
            return list(psutil.wait_procs(left, patience_s)[1])
