"""Which commit to time next, to find the first slower one, and what is known in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.results.ci import CiAnswer

ERROR = 0.01  # of one comparison's interval


@dataclass(frozen=True, slots=True)
class BisectResult:
    """Where a model became slower."""

    suspects: tuple[str, ...]  # one of them is the first slower commit; more than one where some gave no answer
    confidence: float  # that it is among them, if each commit since is slower, too


def next_commit(commits: Sequence[str], answers: Mapping[str, CiAnswer]) -> str | None:
    """The commit in the middle of those that may be the first slower one; None: none that could say more is left.

    Args:
        commits: from the good to the bad one.
        answers: of those that were timed against the good one; commits that do not build are `failed`.
    """
    low, high = _bounds(commits, answers)
    untimed = [at for at in range(low + 1, high) if commits[at] not in answers]
    return commits[min(untimed, key=lambda at: abs(2 * at - low - high))] if untimed else None


def bisected(commits: Sequence[str], answers: Mapping[str, CiAnswer]) -> BisectResult:
    """What the answers say, once there is no next commit.

    Each comparison may err, so all of them together err no more often than the sum (Bonferroni).
    """
    low, high = _bounds(commits, answers)
    timed = sum(answer in (CiAnswer.WITHIN, CiAnswer.SLOWER) for answer in answers.values())
    return BisectResult(tuple(commits[low + 1 : high + 1]), max(0.0, 1 - ERROR * timed))


def _bounds(commits: Sequence[str], answers: Mapping[str, CiAnswer]) -> tuple[int, int]:
    """Places of the last commit that is known not to be slower, and of the first one behind it that is."""
    slower = [at for at, commit in enumerate(commits) if answers.get(commit) is CiAnswer.SLOWER]
    high = min(slower, default=len(commits) - 1)
    within = [at for at, commit in enumerate(commits[:high]) if answers.get(commit) is CiAnswer.WITHIN]
    return max(within, default=0), high
