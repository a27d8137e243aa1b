"""What was measured: timed samples in the order they were taken, with the reference kernel that ran beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHORTEST_S, LONGEST_S = 1e-12, 1e9  # what is beyond is a unit mixed up, and breaks logarithms
MOST_BESIDE = 8  # samples for one reading of the reference kernel; with more it says too little about each

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Samples in the order they were taken; all three arrays have one value for each."""

    seconds: FloatArray  # what was timed, above 0
    start_s: FloatArray  # when each sample began, on any clock that only goes forward
    reference_s: FloatArray  # the reference kernel, timed right before the sample; NaN where it was not

    @property
    def count(self) -> int:
        """How many samples."""
        return int(self.seconds.size)

    @property
    def has_reference(self) -> bool:
        """Whether the reference kernel was timed at least once for every eight samples."""
        return self.readings.size * MOST_BESIDE >= self.count

    @property
    def readings(self) -> npt.NDArray[np.intp]:
        """At which samples the reference kernel was timed."""
        return np.flatnonzero(np.isfinite(self.reference_s))

    def after(self, first: int) -> Series:
        """Without the first so many samples."""
        return Series(self.seconds[first:], self.start_s[first:], self.reference_s[first:])


def series(
    seconds: Sequence[float] | FloatArray,
    start_s: Sequence[float] | FloatArray | None = None,
    reference_s: Sequence[float] | FloatArray | None = None,
) -> Series:
    """Check samples and put them together.

    Without `start_s` the samples are taken as one after the other, each as long as it says.

    Raises:
        ValueError: there is no sample; a time is beyond 1e-12 to 1e9 s; the lengths differ; time goes backwards.
    """
    values = np.asarray(seconds, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError("there is no sample")
    if not _are_times(values):
        raise ValueError(f"a sample is not a time between {SHORTEST_S:g} and {LONGEST_S:g} s")
    starts = np.cumsum(np.append(0.0, values[:-1])) if start_s is None else np.asarray(start_s, dtype=np.float64)
    reference = np.full(values.size, np.nan) if reference_s is None else np.asarray(reference_s, dtype=np.float64)
    if starts.shape != values.shape or reference.shape != values.shape:
        raise ValueError(f"{values.size} samples, {starts.size} start times and {reference.size} reference times")
    if not np.all(np.isfinite(starts)) or np.any(np.diff(starts) < 0):
        raise ValueError("the start times do not go forward")
    if not _are_times(reference[~np.isnan(reference)]):
        raise ValueError(f"a time of the reference kernel is not between {SHORTEST_S:g} and {LONGEST_S:g} s")
    return Series(values, starts, reference)


def _are_times(values: FloatArray) -> bool:
    return bool(np.all((values >= SHORTEST_S) & (values <= LONGEST_S)))
