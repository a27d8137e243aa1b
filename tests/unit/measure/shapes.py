"""Runs whose truth is known: 1 ms at a nominal speed at which the reference kernel takes 0.1 ms."""

import numpy as np

from farm.measure.series import series

TRUE_S = 1e-3
NOMINAL_S = 1e-4


def noise(count, seed=1):
    return np.random.default_rng(seed).normal(size=count)


def ar(count, rho, seed=1):
    fresh = noise(count + 50, seed) * np.sqrt(1 - rho**2)
    values = np.zeros(count + 50)
    for place in range(1, values.size):
        values[place] = rho * values[place - 1] + fresh[place]
    return values[50:]


def a_run(away, both=1.0, own=1.0, *, reference=True):
    """`away` in percent of the truth; `both` slows the reference kernel too, `own` the model alone."""
    speed = np.ones(away.size) * both
    beside = NOMINAL_S * speed * np.exp(0.003 * noise(away.size, 99))
    starts = 0.05 * np.arange(away.size)
    return series(TRUE_S * speed * own * np.exp(0.01 * away), starts, beside if reference else None)


def stepped(count, at, by):
    return np.where(np.arange(count) < at, 1.0, 1 + by)
