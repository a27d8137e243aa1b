"""Reservations: devices that only some users get during a window of time."""

from __future__ import annotations

from dataclasses import dataclass

from farm.core.selector import Selector


@dataclass(frozen=True, slots=True)
class Reservation:
    """From `starts_s` to `ends_s` (monotonic) only `users` get the devices that `selector` and `device` mean."""

    id: str
    selector: Selector  # `Selector()` means every device
    users: frozenset[str]
    starts_s: float
    ends_s: float
    device: str = ""  # only this one
    note: str = ""
