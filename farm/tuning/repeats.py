"""Repeats that are long enough, at little more than their own cost. Pure.

TVM's evaluator keeps `min_repeat_ms` by itself: it throws away a repeat that is too short and takes a longer one, until
one is long enough. Its first guess comes from `number` cold runs and often falls just short, and then the next repeat
is 1.6 times as long: a kernel of microseconds runs for up to 260 ms where 100 are asked for. Here the number is found
in a few milliseconds, and what is missing at the end of a repeat is added to it instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

PROBE_MS = 10  # of runs, from which the number for a repeat is reckoned
MARGIN = 1.05  # more runs than reckoned: to add some later costs two round trips

Timed = Callable[[int, int, int], tuple[float, ...]]


def measured(number: int, repeat: int, min_repeat_ms: int, timed: Timed) -> tuple[float, ...]:
    """The mean seconds of one run, for each repeat: `number` runs at least, which last `min_repeat_ms` at least.

    A repeat is one stretch of runs, or two when the number was reckoned too small; the mean is over all of its runs.

    Args:
        number: of runs in a repeat, at least.
        repeat: how many repeats.
        min_repeat_ms: how long the runs of a repeat must last together.
        timed: TVM's evaluator: it takes these three, and answers as this function does.
    """
    if min_repeat_ms <= PROBE_MS:
        return timed(number, repeat, min_repeat_ms)
    probe = timed(number, 1, PROBE_MS)
    # A slow kernel's probe is a repeat as it was asked for.
    done = probe if number * probe[0] * 1e3 >= min_repeat_ms else ()
    wanted, least_s = repeat - len(done), min_repeat_ms / 1e3
    run_s, runs, spent_s = probe[0], 0, [0.0] * wanted
    while wanted and min(spent_s) < least_s:
        if run_s <= 0:  # the phone's clock is too coarse: TVM knows when to stop
            return timed(number, repeat, min_repeat_ms)
        more = max(number - runs, math.ceil(MARGIN * (least_s - min(spent_s)) / run_s))
        stretch = timed(more, wanted, 0)
        runs += more
        spent_s = [before + more * each for before, each in zip(spent_s, stretch, strict=True)]
        run_s = min(spent_s) / runs
    return (*done, *(each / runs for each in spent_s))
