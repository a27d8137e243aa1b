"""Why a job waits, said when it is news: not again because a clock in it runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

SAY_AGAIN_S = 60.0  # the same reason, its numbers brought up to date

_NUMBER = re.compile(r"(?<!\S)\d[\d.]*")  # a word of its own: "53 s more", not the phone "galaxy-s9"


class Reasons:
    """What was said of each job, and when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._said: dict[str, tuple[str, float]] = {}  # job -> reason without numbers, when

    def forget(self) -> None:
        """Something else was said meanwhile: every reason is news again."""
        self._said.clear()

    def is_news(self, job: str, reason: str) -> bool:
        """Whether to say it; it counts as said then."""
        now, plain = self._clock(), _NUMBER.sub("", reason)
        said, at = self._said.get(job, ("", now))
        if not reason or (said == plain and now - at < SAY_AGAIN_S):
            return False
        self._said[job] = plain, now
        return True
