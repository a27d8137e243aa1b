"""Which artifacts go when the folder is full or they are old. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

RECENT_S = 3600.0  # uploaded for a job that is about to be submitted, or by a worker whose result is on its way
DAY_S = 24 * 3600.0
GB = 10**9


@dataclass(frozen=True, slots=True)
class ArtifactRules:
    """How much may lie there, and for how long without use."""

    budget_bytes: int = 50 * GB
    keep_s: float = 30 * DAY_S


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A complete artifact."""

    sha256: str
    unused_s: float  # since it was last read or sent
    size_bytes: int


def looks_tidy(files: Iterable[ArtifactFile], rules: ArtifactRules, room_bytes: int = 0) -> bool:
    """Whether nothing would go, whoever needs what."""
    files = tuple(files)
    fits = sum(file.size_bytes for file in files) + room_bytes <= rules.budget_bytes
    return fits and all(file.unused_s <= rules.keep_s for file in files)


def to_drop(
    files: Iterable[ArtifactFile],
    rules: ArtifactRules,
    *,
    live: Collection[str] = frozenset(),
    results: Collection[str] = frozenset(),
    room_bytes: int = 0,
) -> tuple[str, ...]:
    """The artifacts to delete: old ones, and while all together are too large the unused longest.

    Args:
        files: what is there.
        rules: what may be.
        live: named by jobs that have not ended; these always stay.
        results: named by results of jobs that are remembered: age is no reason to delete them, and of two others go
            first when there is no room.
        room_bytes: how much is about to come.
    """
    files = tuple(files)
    kept_bytes = sum(file.size_bytes for file in files) + room_bytes
    going = []
    for file in sorted(files, key=lambda each: (each.sha256 in results, -each.unused_s, each.sha256)):
        if file.sha256 in live or file.unused_s <= RECENT_S:
            continue
        old = file.unused_s > rules.keep_s and file.sha256 not in results
        if old or kept_bytes > rules.budget_bytes:
            going.append(file.sha256)
            kept_bytes -= file.size_bytes
    return tuple(going)
