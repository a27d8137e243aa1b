"""A costly look at something that many may ask for at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedLook(Generic[K, T]):
    """Looks once for all who ask while it lasts, and for those who ask within `keep_s` of its end."""

    def __init__(
        self,
        look: Callable[[K], Coroutine[Any, Any, T]],
        *,
        keep_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` is what is shared, by what is looked at; what it raises is told to those who wait, and not kept."""
        self._look = look
        self._keep_s = keep_s
        self._clock = clock
        self._looks: dict[K, asyncio.Task[T]] = {}
        self._kept_until: dict[K, float] = {}  # of looks that have ended

    def __call__(self, at: K) -> Awaitable[T]:
        """What is seen. Whoever is cancelled ends it for nobody else."""
        now_s = self._clock()
        for old in [each for each, until_s in self._kept_until.items() if until_s <= now_s]:
            del self._kept_until[old], self._looks[old]
        if at not in self._looks:
            self._looks[at] = asyncio.create_task(self._look(at))
            self._looks[at].add_done_callback(partial(self._ended, at))
        return asyncio.shield(self._looks[at])

    def _ended(self, at: K, task: asyncio.Task[T]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._looks[at]
        else:
            self._kept_until[at] = self._clock() + self._keep_s
