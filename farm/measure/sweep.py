"""Several settings of one build, timed in rounds of drawn order: the fastest, and those that may be as fast. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farm.measure.interval import MedianEstimate, median_interval


@dataclass(frozen=True, slots=True)
class SettingEstimate:
    """One setting's times over all rounds."""

    estimate: MedianEstimate  # seconds
    ratio: MedianEstimate  # to the fastest setting, round by round: what slows a whole round down is not in it

    @property
    def slower(self) -> bool:
        """Whether it is slower than the fastest for sure."""
        return self.ratio.low_s > 1


def estimates(rounds_s: Sequence[Sequence[float]]) -> list[SettingEstimate]:
    """The estimates of settings by their times in seconds, of each one as many, in the order of the rounds.

    Raises:
        ValueError: there is no setting, or no round.
    """
    log_s = np.log(np.asarray(rounds_s, dtype=np.float64))
    if log_s.ndim != 2 or not log_s.size:
        raise ValueError("there is no round to estimate from")
    fastest = log_s[np.argmin(np.median(log_s, axis=1))]
    return [SettingEstimate(median_interval(each), median_interval(each - fastest)) for each in log_s]


def recommended(found: Sequence[SettingEstimate], costs: Sequence[int]) -> int:
    """The place of the cheapest setting that is not slower than the fastest for sure; of equal ones the fastest."""
    return min(
        (place for place, each in enumerate(found) if not each.slower),
        key=lambda place: (costs[place], found[place].estimate.median_s),
    )
