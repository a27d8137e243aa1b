"""The end of a tuning that has only so much time: what does not fit is left out, and the rest is a result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from farm.core.errors import FarmError
from farm.worker.tuning_run import COMPARE_S

MARGIN_S = 4.0  # before the attempt's own limit: the result must be told by then
BUILDS = 3.0  # times what the build without tuning took: the tuned one has more code, and both are started on a phone
LEAST_PART = 0.25  # of the time is for the search, however slow this host compiles

Part = Callable[[dict[str, Any], Callable[[str], None]], None]


def search_limit_s(search_s: float, left_s: float, build_s: float) -> float:
    """How long a search may take.

    Args:
        search_s: as planned without knowing this host.
        left_s: until the end must be told.
        build_s: that the build without tuning took here.
    """
    return min(search_s, max(LEAST_PART * left_s, left_s - BUILDS * build_s - COMPARE_S[0]))


def within(limit_s: float, part: Part) -> dict[str, Any]:
    """What `part` has put into its dict after `limit_s`, with `left_out`: the step it was at; "" when it is done.

    TVM cannot be interrupted, so it goes on in a thread that nobody hears of any more; the process ends soon.

    Raises:
        Exception: what `part` raised in time.
    """
    found: dict[str, Any] = {}
    steps = ["the end"]
    raised: list[Exception] = []

    def run() -> None:
        try:
            part(found, steps.append)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asked
            raised.append(error)

    thread = threading.Thread(target=run, name="tuning: end", daemon=True)
    thread.start()
    thread.join(max(0.0, limit_s))
    late = thread.is_alive()
    if raised:
        raise raised[0]
    return {**dict(found), "left_out": steps[-1] if late else ""}


class Ending:
    """A Tell that notes each step, and says nothing any more once the end was cut."""

    def __init__(self, tell: Any, note: Callable[[str], None], until_s: float) -> None:
        """`until_s`: monotonic."""
        self._tell, self._note, self._until_s = tell, note, until_s

    def progress(self, step: str, **facts: Any) -> None:
        """What comes next."""
        self._check()
        self._note(step)
        self._tell.progress(step, **facts)

    def log(self, text: str, level: str = "info") -> None:
        """Keep a line."""
        self._check()
        self._tell.log(text, level)

    def _check(self) -> None:
        if time.monotonic() >= self._until_s:
            raise FarmError("the end of the tuning came too late")
