"""Under what conditions something was measured, as far as they are known, and what of them speaks against a result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether a number may be relied on."""

    TRUSTED = "trusted"  # nothing speaks against it
    SUSPECT = "suspect"  # the number is shown with its reasons; it is not compared silently
    REJECTED = "rejected"  # the samples do not tell one number


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against a result. `code` is for programs, `sentence` for people."""

    code: str
    verdict: Verdict  # the best verdict that this leaves possible: SUSPECT or REJECTED
    sentence: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A phone's condition at one time. None: unknown, which is never a reason to trust."""

    temperature_c: float | None = None  # the battery's or the skin's, always the same one of a phone
    throttle_status: int | None = None  # Android's PowerManager.THERMAL_STATUS_*: 0 none ... 6 shutdown
    battery_percent: float | None = None
    charging: bool | None = None
    clock_hz: float | None = None  # of the fastest core that the work may run on
    neighbours: int | None = None  # other phones that work on the same hub


@dataclass(frozen=True, slots=True)
class Conditions:
    """Before, during (as often as it was looked) and after."""

    before: Moment = Moment()
    during: tuple[Moment, ...] = ()
    after: Moment = Moment()
