"""Where devices spend their time: one word for a device's state, one for its cause, and seconds by both. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from farm.core.device import DeviceView, Heat, Life, Service
from farm.core.lifecycle_state import LINK_DOWN
from farm.core.requests import LeaseClass

Word = tuple[str, str]  # state, cause
# Lives between READY and READY in which something is being mended, if anything is.
_MENDED_IN = frozenset(
    {Life.RECOVERING, Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.QUARANTINED}
)


def word_of(view: DeviceView, *, leased: bool, ailment: str = "", lost_with: str = "") -> Word:
    """What an adopted device is doing, and why.

    Args:
        view: the device.
        leased: whether somebody has it.
        ailment: what is being mended, or why it is in quarantine.
        lost_with: "hub" or "host" while it is lost together with others.
    """
    if leased and view.life is Life.READY:
        return "leased", ""
    if view.service is Service.MAINTENANCE:
        return "maintenance", ""
    if view.life in LINK_DOWN:
        return view.life.value, lost_with or "link"
    if view.life is not Life.READY:
        return view.life.value, ailment if view.life in _MENDED_IN else ""
    if view.service is Service.DRAINING:
        return "draining", ""
    if view.heat is Heat.COOLING:
        return "cooling", "heat"
    if len(view.closed) == len(LeaseClass):
        hot = any(closed.heat for closed in view.closed.values())
        return ("cooling", "heat") if hot else ("closed", "hub")
    return "idle", ""


class DeviceTime:
    """Seconds by device, state and cause. Times are monotonic seconds, passed in."""

    def __init__(self) -> None:
        self._now: dict[str, tuple[str, Word, float]] = {}  # by serial: its name, what it does and since when
        self._seconds: dict[str, defaultdict[Word, float]] = {}

    def is_now(self, serial: str, name: str, word: Word, now_s: float) -> None:
        """The device is in this state from now on (or still); whatever it is called, its time is its own."""
        # Both begin at 0: Prometheus does not see the first of a series that was not there before.
        spent = self._seconds.setdefault(serial, defaultdict(float, {("idle", ""): 0.0, ("leased", ""): 0.0}))
        if (before := self._now.get(serial)) is not None:
            _, was, since_s = before
            spent[was] += max(0.0, now_s - since_s)
        self._now[serial] = (name, word, now_s)

    def forget(self, serial: str) -> None:
        """It is no part of the farm any more."""
        self._now.pop(serial, None)
        self._seconds.pop(serial, None)

    def keep_only(self, serials: Collection[str]) -> None:
        """Forget all others."""
        for serial in self._now.keys() - set(serials):
            self.forget(serial)

    def read(self, now_s: float) -> Mapping[tuple[str, str, str], float]:
        """Seconds until now, by name, state and cause."""
        for serial, (name, word, _) in tuple(self._now.items()):
            self.is_now(serial, name, word, now_s)
        return {
            (name, *word): seconds
            for serial, (name, _, _) in self._now.items()
            for word, seconds in self._seconds[serial].items()
        }
