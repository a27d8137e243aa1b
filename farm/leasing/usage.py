"""Who used what: sums for people, and the use that counts for fair shares when the daemon starts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from farm.store.records import UsageRow

HALF_LIVES = 6  # what is older weighs less than 2 %
SLICES = 2  # reads per half-life; within one, use counts as if it were in its middle: at most 19 % off

UsageOf = Callable[[datetime, datetime], Iterable[UsageRow]]


class By(StrEnum):
    """What a sum of use is about."""

    USER = "user"
    DEVICE = "device"
    DOOR = "door"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What one user, device or door had within a window."""

    name: str
    held_s: float  # device-seconds
    leases: int
    jobs: int


def decayed_use(usage: UsageOf, now: datetime, half_life_s: float) -> dict[str, float]:
    """Device-seconds by user up to `now`, of which a half-life ago counts half: what the allocator starts with."""
    used: defaultdict[str, float] = defaultdict(float)
    slice_s = half_life_s / SLICES
    for number in range(HALF_LIVES * SLICES):
        until = now - timedelta(seconds=number * slice_s)
        weight = 0.5 ** ((number + 0.5) / SLICES)
        for row in usage(until - timedelta(seconds=slice_s), until):
            used[row.user] += weight * row.held_s
    return dict(used)


def summed(rows: Iterable[UsageRow], jobs: Mapping[str, int], by: By) -> tuple[UsageSum, ...]:
    """Rows summed by user, device or door, the most used first.

    `jobs` are those that each `by` began within the window; whoever only waited has no row of use but has jobs.
    """
    held: defaultdict[str, float] = defaultdict(float)
    leases: Counter[str] = Counter()
    for row in rows:
        name = {By.USER: row.user, By.DEVICE: row.device, By.DOOR: row.door.value}[by]
        held[name] += row.held_s
        leases[name] += row.leases
    names = sorted(held.keys() | jobs.keys(), key=lambda name: (-held[name], name))
    return tuple(UsageSum(name, held[name], leases[name], jobs.get(name, 0)) for name in names)
