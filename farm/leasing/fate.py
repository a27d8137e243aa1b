"""What becomes of a lease when its phone changes: one table, decided apart from sessions and timers."""

from __future__ import annotations

from enum import StrEnum

from farm.core.device import Life
from farm.leasing.status import MENDING


class Fate(StrEnum):
    """What a change of its phone makes of a lease."""

    FIT = "fit"  # the phone can be used
    AWAITED = "awaited"  # not seen again since the farm's restart: patience goes on as it is
    MENDS = "mends"  # its session is over, but its holder keeps the phone for a while: it may soon be fit again
    LOST = "lost"  # it is taken from its holder


def fate(life: Life, *, awaited: bool, ends_with_session: bool) -> Fate:
    """What a lease is worth.

    Args:
        life: of its phone, now.
        awaited: the lease was restored and its phone has not been ready since; adb finds phones one by one.
        ends_with_session: a stock client's, which has nothing but its session.
    """
    if life is Life.READY:
        return Fate.FIT
    if awaited and life is not Life.QUARANTINED:
        return Fate.AWAITED
    if life in MENDING and not ends_with_session:
        return Fate.MENDS
    return Fate.LOST
