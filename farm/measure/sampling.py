"""How many more samples a run needs, and whether it is worth another run. Pure: the caller takes the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from farm.measure.assess import FEWEST_EFFECTIVE, FEWEST_TRUSTED, Assessment
from farm.measure.conditions import Verdict

FIRST_SAMPLES = FEWEST_TRUSTED + 10  # what warm-up takes is not missing then
LEAST_GROWTH = 0.25  # each look at the data is a chance to stop too early: few looks, far apart
MOST_GROWTH = 1.0
MARGIN = 1.1  # aim a little further: the width itself is only estimated
UNSETTLED = frozenset({"warming_up", "trend"})  # what more samples may leave behind
HOPELESS = frozenset({"throttled", "battery"})  # what another run at once would meet again


def more_samples(found: Assessment, half_width: float, *, most: int = 5000) -> int:
    """How many more to take before looking again; 0: enough, or `most` are taken.

    The width of an interval falls with the square root of the samples. Never fewer than a quarter more, never more than
    as many again. Samples that resemble their neighbours need so many that they say as much as 12 independent ones,
    counted cautiously: a likeness found too small would both narrow the interval and end the run.
    """
    used = max(found.used, 1)
    needed = float(FEWEST_TRUSTED)
    if found.estimate.half_width > half_width:
        needed = max(needed, MARGIN * used * (found.estimate.half_width / half_width) ** 2)
    if found.estimate.cautious_count < FEWEST_EFFECTIVE:
        needed = max(needed, MARGIN * used * FEWEST_EFFECTIVE / found.estimate.cautious_count)
    if any(reason.code in UNSETTLED for reason in found.reasons):
        needed = max(needed, 1.5 * used)
    if needed <= used:
        return 0
    more = min(max(needed - used, LEAST_GROWTH * found.count), MOST_GROWTH * found.count)
    return max(0, min(math.ceil(more), most - found.count))


def measure_again(runs: Sequence[Assessment], remeasure: int) -> bool:
    """Whether to take another run: none is trusted yet, and of `remeasure` more some are left.

    What the last run met and the next would meet at once (a throttled phone, a low battery) is no reason to try again.
    """
    if len(runs) > remeasure or any(run.verdict is Verdict.TRUSTED for run in runs):
        return False
    return not runs or not any(reason.code in HOPELESS for reason in runs[-1].reasons)


def best(runs: Sequence[Assessment]) -> Assessment:
    """The run to report: the best verdict, of equal ones the last; never chosen by how fast it says the model is.

    Raises:
        ValueError: there is no run.
    """
    if not runs:
        raise ValueError("there is no run")
    order = (Verdict.TRUSTED, Verdict.SUSPECT, Verdict.REJECTED)
    return min(reversed(runs), key=lambda run: order.index(run.verdict))
