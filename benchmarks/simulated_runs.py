"""Simulated runs whose truth is known, for benchmarks of statistics: noise, drift, steps, clocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np

from farm.measure.series import FloatArray, SampleSeries
from farm.worker.timing import Timer

TRUE_S = 1e-3
NOMINAL_S = 1e-4
NOISE = 0.01
REFERENCE_NOISE = 0.003
QUIET_NOISE = 0.003  # of the samples of a phone in time
REFERENCE_S = 1e-3  # one reading of the reference kernel there
ROUND_TRIP_S = 2e-3
SPIKED_MEDIAN = 0.1246  # of `spikes`
BURN_IN = 60  # values of an AR(1) process, so that it is in its middle when a run begins

Random = np.random.Generator
# What a shape draws: noise of the samples (in units of NOISE), speed of model and reference, speed of the model alone.
Drawn = tuple[FloatArray, FloatArray, FloatArray]
Shape = Callable[[Random, int], Drawn]
Noise = Callable[[Random, int], FloatArray]


def ar(rho: float) -> Callable[[Random, int], FloatArray]:
    def drawn(random: Random, count: int) -> FloatArray:
        fresh = random.normal(size=count + BURN_IN) * math.sqrt(1 - rho**2)
        values = np.empty_like(fresh)
        last = 0.0
        for place, each in enumerate(fresh):
            last = rho * last + each
            values[place] = last
        return values[BURN_IN:]

    return drawn


STEP_S = 0.015  # from one sample to the next, of noise in time: 10 ms of it and the reference kernel's turn


def in_time(power: Callable[[FloatArray], FloatArray]) -> Noise:
    """Normal noise of unit variance with a spectrum, given at frequencies in Hz."""

    def drawn(random: Random, count: int) -> FloatArray:
        wide = power(np.asarray(np.fft.rfftfreq(4 * count, STEP_S), dtype=np.float64))
        waves = (random.normal(size=wide.size) + 1j * random.normal(size=wide.size)) * np.sqrt(wide)
        return np.asarray(np.fft.irfft(waves)[:count] * (2 * count) / math.sqrt(wide.sum()), dtype=np.float64)

    return drawn


def ornstein_uhlenbeck(memory_s: float) -> Noise:
    return in_time(lambda hz: 1 / (1 + (2 * math.pi * memory_s * hz) ** 2))


def flicker(longest_s: float) -> Noise:
    """1/f noise, level below the frequency of its longest period."""
    return in_time(lambda hz: 1 / np.maximum(hz, 1 / longest_s))


def with_noise(slow: Noise, share: float) -> Noise:
    """Independent noise, and slow noise with a share of the variance."""
    return lambda random, count: np.asarray(
        math.sqrt(1 - share) * random.normal(size=count) + math.sqrt(share) * slow(random, count), dtype=np.float64
    )


def wandering(step: float) -> Noise:
    """A random walk beside independent noise; its median over the whole run is 0."""

    def drawn(random: Random, count: int) -> FloatArray:
        values = random.normal(size=count) + np.cumsum(step * random.normal(size=count))
        return np.asarray(values - np.median(values), dtype=np.float64)

    return drawn


def periodic(period_s: float, height: float) -> Noise:
    """A sine from any phase on, beside independent noise."""
    return lambda random, count: np.asarray(
        random.normal(size=count)
        + height * np.sin(2 * math.pi * (STEP_S * np.arange(count) / period_s + random.random())),
        dtype=np.float64,
    )


def two_speeds(height: float, dwell_s: float, share: float = 0.5) -> Noise:
    """Two clocks, the slower one for a share of the time; `dwell_s` is the mean of both stays. The median is 0."""
    stays_s = 2 * dwell_s * np.array([1 - share, share])

    def drawn(random: Random, count: int) -> FloatArray:
        number = 2 * math.ceil(4 * count * STEP_S / dwell_s + 20)
        first = int(random.random() < share)
        ends = np.cumsum(random.exponential(stays_s[(first + np.arange(number)) % 2]))
        slow = (first + np.searchsorted(ends, STEP_S * np.arange(count))) % 2
        return np.asarray(random.normal(size=count) + height * slow - _mixed_median(height, share), dtype=np.float64)

    return drawn


def dense_bursts(height: float) -> Noise:
    """Beside independent noise, 4 bursts of 80 ms a second, at random; the median of the whole is 0."""

    def drawn(random: Random, count: int) -> FloatArray:
        begins = random.uniform(-0.08, count * STEP_S, size=random.poisson(4 * (count * STEP_S + 0.08)))
        at = STEP_S * np.arange(count)[:, None]
        slow = np.any((at >= begins) & (at < begins + 0.08), axis=1)
        middle = _mixed_median(height, 1 - math.exp(-4 * 0.08))
        return np.asarray(random.normal(size=count) + height * slow - middle, dtype=np.float64)

    return drawn


@cache
def _mixed_median(height: float, share: float) -> float:
    """The median of normal values, a share of them higher by `height`."""
    levels = np.linspace(0, max(height, 1.0), 4001)
    below = [(1 - share) * NormalDist().cdf(each) + share * NormalDist().cdf(each - height) for each in levels]
    return float(np.interp(0.5, below, levels))


def spikes(random: Random, count: int) -> FloatArray:
    """A tenth of the samples are slower, by 8 standard deviations in the mean; the median is 0."""
    values = random.normal(size=count) + (random.random(count) < 0.1) * random.exponential(8, size=count)
    return np.asarray(values - SPIKED_MEDIAN, dtype=np.float64)


def normal(random: Random, count: int) -> FloatArray:
    return random.normal(size=count)


def one_sided(random: Random, count: int) -> FloatArray:
    return random.exponential(size=count) - math.log(2)


def heavy(random: Random, count: int) -> FloatArray:
    return random.standard_t(3, size=count)


def very_skewed(random: Random, count: int) -> FloatArray:
    return np.exp(random.normal(size=count)) - 1


def bursts(random: Random, count: int) -> FloatArray:
    """Now and then one to three samples in a row take up to a third longer."""
    values = random.normal(size=count)
    for begin in np.flatnonzero(random.random(count) < 0.02):
        values[begin : begin + random.integers(1, 4)] += random.uniform(5, 30)
    return values


def outliers(random: Random, count: int) -> FloatArray:
    """A tenth of the results are slower, by 10 standard deviations in the mean."""
    return random.normal(size=count) + (random.random(count) < 0.1) * random.exponential(10, size=count)


def stops(random: Random, count: int) -> FloatArray:
    """A phone held down a quarter of the time: for every 15 samples of 10 ms it stops for 50 ms, within one of them."""
    return np.asarray(1 + 5 * (random.random(count) < 1 / 15), dtype=np.float64)


def flat(_random: Random, count: int) -> FloatArray:
    return np.ones(count)


def drift(random: Random, count: int) -> FloatArray:
    """Up to 10 % up or down over the run."""
    return 1 + random.uniform(-0.1, 0.1) * np.arange(count) / count


def throttled(random: Random, count: int) -> FloatArray:
    """5 to 40 % slower from some place in the middle 80 % on."""
    speed = np.ones(count)
    speed[int(count * random.uniform(0.1, 0.9)) :] += random.uniform(0.05, 0.4)
    return speed


def levels(number: int) -> Callable[[Random, int], FloatArray]:
    def drawn(random: Random, count: int) -> FloatArray:
        return np.asarray(1 + random.uniform(0.08, 0.3) * random.integers(0, number, size=count), dtype=np.float64)

    return drawn


def dwelling(random: Random, count: int) -> FloatArray:
    """Two clocks 8 to 30 % apart, about 5 samples each time."""
    dwells = np.cumsum(random.random(count) < 0.2) % 2
    return np.asarray(1 + random.uniform(0.08, 0.3) * dwells, dtype=np.float64)


def dip(random: Random, count: int) -> FloatArray:
    """6 samples in the run's later two thirds take 10 to 40 % longer."""
    speed = np.ones(count)
    begin = random.integers(count // 3, count - 6)
    speed[begin : begin + 6] += random.uniform(0.1, 0.4)
    return speed


def warming(part: float) -> Callable[[Random, int], FloatArray]:
    def drawn(_random: Random, count: int) -> FloatArray:
        return np.asarray(1 + 0.1 * np.exp(-np.arange(count) / (part * count)), dtype=np.float64)

    return drawn


def shape(noise: Noise, both: Noise = flat, own: Noise = flat) -> Shape:
    return lambda random, count: (noise(random, count), both(random, count), own(random, count))


def slower(random: Random, count: int) -> FloatArray:
    """A clock that is 1 to 8 % down for the whole run."""
    return np.full(count, 1 + random.uniform(0.01, 0.08))


def stepping(random: Random, count: int) -> FloatArray:
    """A clock that goes down by 2 to 4 % at one of the samples 10 to 200."""
    speed = np.ones(count)
    speed[random.integers(10, 200) :] += random.uniform(0.02, 0.04)
    return speed


def two_clocks(random: Random, count: int) -> FloatArray:
    """A clock that goes down by 2 to 4 %, about 40 samples each time, for a third of the time."""
    at = np.cumsum(random.random(count) < 1 / 40) % 3 == 0
    return np.asarray(1 + random.uniform(0.02, 0.04) * at, dtype=np.float64)


def following(share: float, clock: Noise) -> Shape:
    """A model that follows the clock, which the reference kernel shows, by a share: 0 not at all, 1 as the kernel."""

    def drawn(random: Random, count: int) -> Drawn:
        speed = clock(random, count)
        return normal(random, count), speed, np.asarray(speed ** (share - 1), dtype=np.float64)

    return drawn


class Phone:
    """A phone in time, which does something else for `stop_s` of every `period_s`: samples fall where they fall."""

    def __init__(self, random: Random, period_s: float, stop_s: float) -> None:
        self.now_s = 0.0
        self._random = random
        self._period_s, self._stop_s = period_s, stop_s
        self._phase_s = random.uniform(0, period_s)

    def clock(self) -> float:
        return self.now_s

    def model(self, run_s: float) -> Timer:
        def timed(number: int, repeat: int) -> list[float]:
            self._round_trip()
            self._work(run_s, QUIET_NOISE)
            return [self._work(run_s * number, QUIET_NOISE) / number for _ in range(repeat)]

        return timed

    def reference(self) -> float:
        self._round_trip()
        self._work(REFERENCE_S, REFERENCE_NOISE)
        return sorted(self._work(REFERENCE_S, REFERENCE_NOISE) for _ in range(3))[1]

    def _round_trip(self) -> None:
        self.now_s += ROUND_TRIP_S * self._random.lognormal(0, 0.2)

    def _work(self, seconds: float, noise: float) -> float:
        """Do what takes so long undisturbed; how long it took."""
        left_s = seconds * math.exp(noise * self._random.normal())
        begun_s = self.now_s
        into_s = (begun_s + self._phase_s) % self._period_s  # its first part is the stop
        stopped_s = max(self._stop_s - into_s, 0.0)
        until_next_s = self._period_s - max(into_s, self._stop_s)
        if left_s > until_next_s:
            stopped_s += self._stop_s * math.ceil((left_s - until_next_s) / (self._period_s - self._stop_s))
        self.now_s += left_s + stopped_s
        return self.now_s - begun_s


def series(random: Random, drawn: Drawn, beside: int = 1, step_s: float = 1.0) -> SampleSeries:
    """A run in which `beside` samples share each reading of the reference kernel; one begins every `step_s`."""
    noise, both, own = drawn
    jitter = REFERENCE_NOISE * random.normal(size=noise.size)
    seconds = np.asarray(TRUE_S * both * own * np.exp(NOISE * noise), dtype=np.float64)
    reference_s = np.asarray(NOMINAL_S * both * np.exp(jitter), dtype=np.float64)
    shared = np.where(np.arange(noise.size) % beside, math.nan, reference_s)
    return SampleSeries(seconds, step_s * np.arange(noise.size, dtype=np.float64), np.asarray(shared, dtype=np.float64))
