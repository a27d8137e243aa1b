"""Findings of `farm doctor`: one checked thing, how it ended, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from farm.common.errors import FarmError

ROOM_BYTES = 10**9  # a bundle and a day of artifacts are a few 100 MB
_OPEN_USB = "apt-get install android-sdk-platform-tools-common && udevadm control --reload && udevadm trigger"


class DoctorVerdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


OK, WARN, FAIL = DoctorVerdict


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One checked thing."""

    check: str
    verdict: DoctorVerdict
    detail: str
    fix: str = ""  # of all that is not OK


def of_error(check: str, verdict: DoctorVerdict, error: FarmError) -> Diagnosis:
    """The finding that a check could not be done, and why."""
    return Diagnosis(check, verdict, error.message, error.hint or "its log says more: journalctl -u farm")


def judge_usb(phones: int, closed: Sequence[str], problem: str) -> Iterator[Diagnosis]:
    """Whether phones on USB may be opened.

    Args:
        phones: how many there are.
        closed: those that may not be opened.
        problem: the words ahead of their names.
    """
    if closed:
        yield Diagnosis("usb permission", WARN, f"{problem} {', '.join(closed)}", _OPEN_USB)
    elif phones:
        yield Diagnosis("usb permission", OK, f"{phones} phones with adb on USB may be opened")


def judge_folder(check: str, path: Path, free_bytes: int, *, exists: bool = True) -> Diagnosis:
    """Whether a folder's disk has room."""
    detail = f"{path}{'' if exists else ' (farm serve makes it)'}, {free_bytes / 10**9:.0f} GB free"
    if free_bytes > ROOM_BYTES:
        return Diagnosis(check, OK, detail)
    return Diagnosis(
        check, WARN, detail, f"free some space: farm store prune --dry-run; du -xh {path} | sort -h | tail"
    )
