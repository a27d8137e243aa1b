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
        self._now: dict[str, tuple[Word, float]] = {}
        self._seconds: defaultdict[tuple[str, str, str], float] = defaultdict(float)

    def is_now(self, device: str, word: Word, now_s: float) -> None:
        """The device is in this state from now on (or still)."""
        self._settle(device, now_s)
        self._now[device] = (word, now_s)

    def forget(self, device: str) -> None:
        """It is no part of the farm any more."""
        self._now.pop(device, None)
        for key in [key for key in self._seconds if key[0] == device]:
            del self._seconds[key]

    def keep_only(self, devices: Collection[str]) -> None:
        """Forget all others."""
        for device in self._now.keys() - set(devices):
            self.forget(device)

    def read(self, now_s: float) -> Mapping[tuple[str, str, str], float]:
        """Seconds until now."""
        for device, (word, _) in tuple(self._now.items()):
            self.is_now(device, word, now_s)
        return self._seconds

    def _settle(self, device: str, now_s: float) -> None:
        if (before := self._now.get(device)) is not None:
            word, since_s = before
            self._seconds[device, *word] += max(0.0, now_s - since_s)
