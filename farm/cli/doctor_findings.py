"""What `farm doctor` says: one checked thing, how it ended, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing."""

    check: str
    verdict: Verdict
    detail: str
    fix: str = ""
