"""Which artifacts go when the folder is full or they are old. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

RECENT_S = 3600.0  # uploaded for a job that is about to be submitted, or by a worker whose result is on its way
SHARE = 4  # one sender's uploads are spared up to such a part of the budget
DAY_S = 24 * 3600.0
GB = 10**9


@dataclass(frozen=True, slots=True)
class ArtifactRules:
    """How much may lie there, and for how long without use."""

    budget_bytes: int = 50 * GB
    keep_s: float = 30 * DAY_S


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """An artifact, or as much of one as was sent."""

    name: str  # its SHA-256 when it is complete
    unused_s: float  # since it was last read or sent
    size_bytes: int
    sender: str = ""  # whose upload it is, as far as that is known
    complete: bool = True

    @property
    def for_now(self) -> bool:
        """Whether it stays because a job or upload may be about to need it."""
        return not self.complete or self.unused_s <= RECENT_S


def looks_tidy(files: Iterable[ArtifactFile], rules: ArtifactRules, room_bytes: int = 0) -> bool:
    """Whether nothing would go, even without any references."""
    files = tuple(files)
    fits = sum(file.size_bytes for file in files) + room_bytes <= rules.budget_bytes
    return fits and all(file.unused_s <= rules.keep_s for file in files if file.complete)


def to_drop(
    files: Iterable[ArtifactFile],
    rules: ArtifactRules,
    *,
    live: Collection[str] = frozenset(),
    results: Collection[str] = frozenset(),
    room_bytes: int = 0,
) -> tuple[str, ...]:
    """The artifacts to delete: old ones, and while all together are too large the unused longest.

    For room go first those that no result names, then what was sent just now or is being sent, of one sender what is
    beyond a share of the budget, and at last those that results name.

    Args:
        files: what is there.
        rules: what may be.
        live: named by jobs that have not ended; these always stay.
        results: named by results of jobs that are remembered: age is no reason to delete them.
        room_bytes: how much is about to come.
    """
    files = tuple(files)
    kept_bytes = sum(file.size_bytes for file in files) + room_bytes
    files = tuple(file for file in files if file.name not in live)
    going = []
    held: Counter[str] = Counter()
    for file in files:
        if file.for_now and file.sender:
            held[file.sender] += file.size_bytes

    def order(file: ArtifactFile) -> tuple[int, bool, float, str]:
        result = file.name in results
        return 1 if file.for_now else 2 if result else 0, result, -file.unused_s, file.name

    for file in sorted(files, key=order):
        lacking = kept_bytes > rules.budget_bytes
        if file.for_now:
            goes = lacking and held[file.sender] > rules.budget_bytes // SHARE
        else:
            goes = lacking or (file.unused_s > rules.keep_s and file.name not in results)
        if goes:
            going.append(file.name)
            kept_bytes -= file.size_bytes
            if file.for_now:
                held[file.sender] -= file.size_bytes
    return tuple(going)
