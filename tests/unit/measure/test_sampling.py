from dataclasses import replace

import numpy as np
import pytest

from farm.measure.assess import (
    MAX_SLOW_NOISE,
    MIN_SLOW_NOISE,
    assess,
    best,
    measure_again,
    more_samples,
)
from farm.measure.conditions import ENOUGH_SAMPLES, Conditions, PhoneCondition, Verdict
from farm.measure.interval import slow_noise, wander
from tests.unit.measure.shapes import NOMINAL_S, a_run, ar, noise, stepped


def good():
    return assess(a_run(noise(60)), NOMINAL_S)


def suspect():
    return assess(a_run(noise(60)), NOMINAL_S, half_width=0.0005)


def rejected():
    return assess(a_run(noise(60), stepped(60, 30, 0.3)), NOMINAL_S)


def test_a_narrower_interval_takes_more_but_never_more_than_as_many_again():
    found = good()
    assert more_samples(found, 0.01) == 0  # enough is enough
    assert 15 <= more_samples(found, 0.95 * found.estimate.half_width) <= 30
    assert more_samples(found, 0.0005) == 60
    assert more_samples(found, 0.0005, most=70) == 10
    assert more_samples(found, 0.0005, most=60) == 0


def test_samples_that_resemble_their_neighbours_need_a_long_look():
    found = replace(assess(a_run(ar(400, 0.7, seed=3)), NOMINAL_S), slow_noise=0.0)
    seems = replace(found, estimate=replace(found.estimate, effective_count=90.0))
    assert more_samples(seems, 0.5) > 0
    assert more_samples(replace(found, estimate=replace(found.estimate, effective_count=101.0)), 0.5) == 0


def test_the_first_batch_is_enough_for_independent_samples_and_more_than_a_second():
    quiet = assess(a_run(noise(ENOUGH_SAMPLES)), NOMINAL_S)
    assert more_samples(quiet, 0.5) == more_samples(quiet, 0.02) == 0
    assert more_samples(replace(quiet, span_s=0.6), 0.5) == 20
    assert more_samples(assess(a_run(ar(ENOUGH_SAMPLES, 0.9, seed=3)), NOMINAL_S), 0.5) > 0  # like their neighbours


def noise_of(power, count, seed):
    """Noise of unit variance with the given spectrum, sampled every 15 ms."""
    fresh = np.random.default_rng(seed)
    frequencies = np.fft.rfftfreq(4 * count, 0.015)
    phases = fresh.normal(size=frequencies.size) + 1j * fresh.normal(size=frequencies.size)
    values = np.fft.irfft(phases * np.sqrt(power(frequencies)))
    return (values / values.std())[:count]


@pytest.mark.parametrize("seed", range(4))
def test_noise_of_200_ms_needs_more_than_a_few_seconds(seed):
    found = assess(a_run(noise_of(lambda f: 1 / (1 + (2 * np.pi * 0.2 * f) ** 2), 256, seed)), NOMINAL_S)
    assert found.estimate.effective_count < 40
    assert more_samples(found, 0.01) > 200


def ornstein_uhlenbeck(memory_s):
    return lambda f: 1 / (1 + (2 * np.pi * memory_s * f) ** 2)


def flicker(longest_s):
    return lambda f: 1 / np.maximum(f, 1 / longest_s)


@pytest.mark.parametrize("seed", range(8))
def test_noise_whose_memory_is_as_long_as_the_run_is_told_from_short_memory(seed):
    """30 s of samples, 15 ms apart."""
    assert slow_noise(noise(2000, seed)) < 0.02
    for memory_s in (0.05, 0.1, 0.2):
        assert slow_noise(noise_of(ornstein_uhlenbeck(memory_s), 2000, seed)) < MAX_SLOW_NOISE
    for longest_s in (12, 60):
        assert slow_noise(noise_of(flicker(longest_s), 2000, seed)) > MAX_SLOW_NOISE
    fresh = np.random.default_rng(seed)
    assert slow_noise(noise(2000, seed) + np.cumsum(0.05 * fresh.normal(size=2000))) > 0.9
    assert slow_noise(noise(2000, seed) + 3 * (np.arange(2000) // 130 % 2)) > 0.9


def test_independent_samples_seldom_seem_to_wander_however_they_are_distributed():
    fresh = np.random.default_rng(3)
    for drawn in (fresh.normal, fresh.exponential, lambda size: fresh.standard_t(3, size=size)):
        found = [slow_noise(drawn(size=60)) > MIN_SLOW_NOISE for _ in range(100)]
        assert sum(found) < 20


@pytest.mark.parametrize("count", [1, 4, 11, 12, 13, 33, 34, 60])
def test_a_short_run_has_a_probability_too(count):
    assert 0 <= slow_noise(noise(count)) <= 1
    assert slow_noise(np.ones(count)) == 0


def test_a_run_that_wanders_goes_on_and_its_interval_is_wider():
    run = a_run(noise_of(flicker(12), 2000, 1))
    found = assess(run, NOMINAL_S, half_width=0.1)
    assert found.verdict is Verdict.TRUSTED
    amounts = {each.code: each.amount for each in found.amounts}
    assert amounts["wanders"] > 0.0005
    assert found.estimate.half_width == pytest.approx(sum(amounts.values()), rel=0.02)
    assert more_samples(found, 0.1) >= 1000
    assert more_samples(found, 0.1, most=2000) == 0
    assert {"wanders", "wide"} <= {each.code for each in assess(run, NOMINAL_S, half_width=0.002).reasons}


@pytest.mark.parametrize("seed", range(8))
def test_only_1_over_f_noise_has_a_bound(seed):
    """30 s of samples, 15 ms apart."""
    for longest_s in (12, 60):
        away = noise_of(flicker(longest_s), 2000, seed)
        assert 0.1 < wander(away) < 3
    fresh = np.random.default_rng(seed)
    assert wander(noise(2000, seed) + np.cumsum(0.05 * fresh.normal(size=2000))) is None
    assert wander(noise(2000, seed) + 1.5 * np.sin(np.arange(2000) * 0.015 * 2 * np.pi / 5)) is None
    assert wander(noise(2000, seed) + 3 * (np.arange(2000) // 130 % 2)) is None


@pytest.mark.parametrize("count", [1, 11, 12, 60])
def test_what_does_not_vary_does_not_wander(count):
    assert wander(np.ones(count)) == 0
    assert wander(noise(count)) is None or wander(noise(count)) >= 0


def test_what_has_no_bound_is_not_trusted_however_wide_the_goal():
    walk = noise(2000) + np.cumsum(0.05 * np.random.default_rng(1).normal(size=2000))
    found = assess(a_run(walk), NOMINAL_S, half_width=0.4)
    assert "wanders" in {each.code for each in found.reasons}
    assert found.verdict is not Verdict.TRUSTED


def test_what_warm_up_took_is_taken_anew():
    warming = 1 + 0.2 * np.exp(-np.arange(40) / 8)
    found = assess(a_run(noise(40), 1.0, warming), NOMINAL_S)
    assert found.warmup > 10
    assert more_samples(found, 0.5) > 0


def test_measured_again_until_trusted_or_no_more():
    assert measure_again([], 0)
    assert not measure_again([good()], 3)
    assert measure_again([suspect()], 1)
    assert not measure_again([suspect(), suspect()], 1)
    assert not measure_again([suspect(), good()], 3)


def test_a_throttled_phone_is_not_measured_again_at_once():
    hot = assess(a_run(noise(60)), NOMINAL_S, conditions=Conditions(after=PhoneCondition(throttle_status=3)))
    assert not measure_again([hot], 3)


def test_the_best_verdict_is_reported_and_of_equals_the_last():
    first, second = suspect(), suspect()
    assert best([first, rejected()]) is first
    assert best([first, second]) is second
    with pytest.raises(ValueError):
        best([])
