"""Simulated runs whose truth is known, for bench statistics: noise, drift, steps, clocks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from farm.measure.series import FloatArray, Series

TRUE_S = 1e-3
NOMINAL_S = 1e-4
NOISE = 0.01
REFERENCE_NOISE = 0.003
BURN_IN = 60  # values of an AR(1) process, so that it is in its middle when a run begins

Random = np.random.Generator
# What a shape draws: noise of the samples (in units of NOISE), speed of model and reference, speed of the model alone.
Drawn = tuple[FloatArray, FloatArray, FloatArray]
Shape = Callable[[Random, int], Drawn]
Noise = Callable[[Random, int], FloatArray]


def ar(likeness: float) -> Callable[[Random, int], FloatArray]:
    def drawn(random: Random, count: int) -> FloatArray:
        fresh = random.normal(size=count + BURN_IN) * math.sqrt(1 - likeness**2)
        values = np.empty_like(fresh)
        last = 0.0
        for place, each in enumerate(fresh):
            last = likeness * last + each
            values[place] = last
        return values[BURN_IN:]

    return drawn


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


def series(random: Random, drawn: Drawn, beside: int = 1) -> Series:
    """A run in which `beside` samples share each reading of the reference kernel."""
    noise, both, own = drawn
    jitter = REFERENCE_NOISE * random.normal(size=noise.size)
    seconds = np.asarray(TRUE_S * both * own * np.exp(NOISE * noise), dtype=np.float64)
    reference_s = np.asarray(NOMINAL_S * both * np.exp(jitter), dtype=np.float64)
    shared = np.where(np.arange(noise.size) % beside, math.nan, reference_s)
    return Series(seconds, np.arange(noise.size, dtype=np.float64), shared)
