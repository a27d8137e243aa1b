"""How long runs take that nothing else on this host disturbs, however busy it is: of several builds in turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farm.worker.timing import Timer

UNDISTURBED = 0.05  # the fastest part of the runs, which only what belongs to a run itself makes longer
SEED = 20261127


def undisturbed_s(builds: Sequence[Timer], *, rounds: int, runs: int) -> list[float]:
    """Seconds of an undisturbed run of each; a round is a turn of each in drawn order, with so many single runs."""
    order = np.random.default_rng(SEED)
    taken: list[list[float]] = [[] for _ in builds]
    for _ in range(rounds):
        for at in order.permutation(len(builds)):
            taken[at] += builds[at](1, runs)
    return [float(np.quantile(each, UNDISTURBED)) for each in taken]
