"""Keep-alives to systemd, only while everything that must move does (DESIGN D13).

The event loop moves when this task runs; what else must move is named by a `Pulse`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farm.notify import Notifier

KEEP_ALIVES = 3  # per watchdog time: two may be late or lost
LOOK_AT_MOST_S = 5.0  # the status line is as old as this

log = logging.getLogger("farm")


@dataclass(frozen=True, slots=True)
class Pulse:
    """A part that must move: since how many seconds it owes a sign of life, and how many are too many."""

    part: str
    silent_s: Callable[[], float]
    limit_s: float


def stuck(pulses: Sequence[Pulse]) -> tuple[str, ...]:
    """What is wrong with the parts that do not move, one line each."""
    return tuple(
        f"{pulse.part} has not moved for {silent_s:.0f} s (at most {pulse.limit_s:g} s)"
        for pulse in pulses
        if (silent_s := pulse.silent_s()) > pulse.limit_s
    )


def rhythm_s(watchdog_s: float | None) -> float:
    """How often to look, for a manager that waits `watchdog_s`."""
    return LOOK_AT_MOST_S if watchdog_s is None else min(LOOK_AT_MOST_S, watchdog_s / KEEP_ALIVES)


class Watchdog:
    """Feeds the manager's watchdog and keeps its status line."""

    def __init__(self, notifier: Notifier, pulses: Sequence[Pulse], status: Callable[[], str]) -> None:
        self._notifier = notifier
        self._pulses = pulses
        self._status = status
        self._told: tuple[str, ...] = ()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(rhythm_s(self._notifier.watchdog_s))

    def look(self) -> bool:
        """Look once; whether everything moves and the manager was told so."""
        wrong = stuck(self._pulses)
        if wrong != self._told:
            self._told = wrong
            for line in wrong:
                log.error("%s: no keep-alive for systemd until it does", line)
        if wrong:
            self._notifier.status(f"stuck: {'; '.join(wrong)}")
            return False
        self._notifier.status(self._status())
        if self._notifier.watchdog_s is not None:
            self._notifier.keep_alive()
        return True
