"""When a series of results that had a rhythm has stopped: a nightly bench, a CI run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

WEEK_S = 7 * 86400.0
MAX_GAPS = 40  # the newest; older gaps say little of the rhythm
MIN_GAPS = 7
TOGETHER = 0.1  # of a long gap: results nearer than this are of one submission
NEAR = 0.5  # of the period: a gap is regular if it is so near to the period
MIN_REGULAR, MIN_KNOWN = 0.6, 0.8  # the shares of regular gaps, and with those that return each week, that are a rhythm
LATE = 0.9  # of a period after the next result was due
LATE_SIGMAS = 5.0  # the same, where results come less regularly
MAX_SKIPPED = 4.0  # periods: a gap up to this may come again; a longer one was an outage
MAX_SILENCE = 30.0  # periods: a series that was silent for longer has ended
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Rhythm:
    """When results of a series come."""

    period_s: float  # the median gap
    late_at_s: float  # the next result is late from then on
    over_at_s: float  # the series counts as ended from then on


def rhythm(at_s: Sequence[float]) -> Rhythm | None:
    """The rhythm of results, by their times in seconds since 1970, oldest first; None: they have none.

    The next result is due a median gap after the last; later, if a longer gap began at this time of an earlier week
    (weekends), or if a longer gap came without such a reason. It is late 0.9 median gaps after that.
    """
    gaps = [later - earlier for earlier, later in pairwise(at_s)]
    if len(gaps) < MIN_GAPS:
        return None
    together_s = TOGETHER * quantiles(gaps, n=4)[2]
    begins = [at_s[0], *(later for later, gap in zip(at_s[1:], gaps, strict=True) if gap > together_s)][-MAX_GAPS - 1 :]
    gaps = [later - earlier for earlier, later in pairwise(begins)]
    if len(gaps) < MIN_GAPS:
        return None
    period_s = median(gaps)

    def same_time_of_week(one_s: float, other_s: float) -> bool:
        apart_s = (one_s - other_s) % WEEK_S
        return one_s != other_s and min(apart_s, WEEK_S - apart_s) <= NEAR * min(period_s, WEEK_S / 7)

    def regular(gap_s: float) -> bool:
        return abs(gap_s - period_s) <= NEAR * period_s

    odd = {begin: gap for begin, gap in zip(begins, gaps, strict=False) if not regular(gap)}
    weekly = {begin for begin in odd if any(same_time_of_week(begin, other) for other in odd)}
    known = len(gaps) - len(odd)
    if known < MIN_REGULAR * len(gaps) or known + len(weekly) < MIN_KNOWN * len(gaps):
        return None
    last_s = begins[-1]
    skipped = [gap for begin, gap in odd.items() if begin not in weekly and gap <= MAX_SKIPPED * period_s]
    this_time = [gap for begin, gap in odd.items() if same_time_of_week(begin, last_s)]
    due_s = last_s + max(period_s, *skipped, *this_time, 0.0)
    sigma_s = MAD_TO_SIGMA * median(abs(gap - period_s) for gap in gaps)
    late_at_s = due_s + max(LATE * period_s, LATE_SIGMAS * sigma_s)
    return Rhythm(period_s, late_at_s, due_s + MAX_SILENCE * period_s)
