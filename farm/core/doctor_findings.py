"""What `farm doctor` says: one checked thing, how it ended, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

OPEN_USB = "apt-get install android-sdk-platform-tools-common && udevadm control --reload && udevadm trigger"


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


OK, WARN, FAIL = Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing."""

    check: str
    verdict: Verdict
    detail: str
    fix: str = ""
