import numpy as np
import pytest

from farm.measure.series import series
from farm.measure.sustained import sustained


def long_run(*levels, rate=2, scatter=0.01):
    """A run of levels, each (seconds, its samples' time); samples at a fixed rate, scattered."""
    random = np.random.default_rng(7)
    level_s = np.concatenate([np.full(int(length_s * rate), value_s) for length_s, value_s in levels])
    seconds = level_s * np.exp(scatter * random.normal(size=level_s.size))
    return series(seconds, np.arange(level_s.size) / rate)


def test_a_phone_that_steps_down_twice_has_its_first_step_and_the_last_level():
    found = sustained(long_run((233, 1e-3), (300, 1.2e-3), (667, 1.5e-3)))
    assert found.throttled_after_s == pytest.approx(233, abs=1)
    assert found.plateau_from_s == pytest.approx(533, abs=1)
    assert found.plateau is not None
    assert found.plateau.low_s <= 1.5e-3 <= found.plateau.high_s
    assert found.fresh.median_s == pytest.approx(1e-3, rel=0.005)
    assert found.slowdown == pytest.approx(1.5, rel=0.01)


def test_a_phone_that_stays_as_fast_has_a_plateau_from_the_beginning():
    found = sustained(long_run((1200, 1e-3)))
    assert found.throttled_after_s is None
    assert found.plateau_from_s == 0
    assert found.form == "steady"
    assert found.slowdown == pytest.approx(1, abs=0.005)


def test_a_level_at_the_very_end_is_no_plateau():
    found = sustained(long_run((1080, 1e-3), (120, 1.3e-3)))
    assert found.throttled_after_s == pytest.approx(1080, abs=1)
    assert found.plateau is None
    assert found.slowdown == pytest.approx(1.3, rel=0.005)


def test_swings_at_the_end_do_not_hide_the_throttling_and_are_no_plateau():
    swings = [(100, 1.5e-3), (100, 1.2e-3)] * 5
    found = sustained(long_run((200, 1e-3), *swings))
    assert found.throttled_after_s == pytest.approx(200, abs=1)
    assert found.plateau is None
    assert found.form == "oscillation"
    assert found.period_s == pytest.approx(200, rel=0.1)
    assert found.slowdown == pytest.approx(1.35, rel=0.03)


def course(times, rate=2, length_s=1800, scatter=0.01):
    """A run whose samples take `times(seconds since its begin)` milliseconds."""
    at_s = np.arange(length_s * rate) / rate
    random = np.random.default_rng(11)
    return series(1e-3 * times(at_s) * np.exp(scatter * random.normal(size=at_s.size)), at_s)


@pytest.mark.parametrize("constant_s", [120, 300])
def test_a_phone_that_becomes_slower_little_by_little_is_slower_at_the_end(constant_s):
    found = sustained(course(lambda at_s: 1 - 0.3 * np.expm1(-at_s / constant_s)))
    assert found.form == "exponential"
    assert found.slowdown == pytest.approx(1.3, rel=0.03)
    assert found.time_constant_s == pytest.approx(constant_s, rel=0.2)
    assert found.plateau is not None  # once it is within 1 % of its end
    assert found.plateau.median_s == pytest.approx(1.3e-3, rel=0.01)
    assert found.plateau_from_s == pytest.approx(constant_s * np.log(30), rel=0.25)


def test_a_phone_that_is_still_becoming_slower_has_no_plateau():
    found = sustained(course(lambda at_s: 1 - 0.5 * np.expm1(-at_s / 1800)))
    assert found.form == "exponential"
    assert found.plateau is None
    assert found.slowdown == pytest.approx(1 - 0.5 * np.expm1(-1), rel=0.03)


@pytest.mark.parametrize("rate", [1, 2, 4])
@pytest.mark.parametrize("stay_s", [1, 5])
def test_two_speeds_in_turns_are_as_slow_as_their_mean(rate, stay_s):
    found = sustained(course(lambda at_s: np.where(at_s < 300, 1, np.where(at_s // stay_s % 2, 1.1, 1.3)), rate))
    assert found.form == "oscillation"
    assert found.period_s == pytest.approx(2 * stay_s, rel=0.02)
    assert found.slowdown == pytest.approx(1.2, rel=0.01)
    assert found.plateau is not None
    assert found.plateau.median_s == pytest.approx(1.2e-3, rel=0.01)
    assert found.throttled_after_s == pytest.approx(300, abs=2 * stay_s + 2)


def test_a_phone_that_becomes_faster_did_not_throttle():
    found = sustained(long_run((300, 1.3e-3), (900, 1e-3)))
    assert found.throttled_after_s is None
    assert found.plateau_from_s == pytest.approx(300, abs=1)


def test_buckets_are_minutes_and_one_without_samples_is_left_out():
    starts = np.concatenate([np.arange(60.0), np.arange(120.0, 200.0)])
    found = sustained(series(np.full(starts.size, 1e-3), starts))
    assert [bucket.start_s for bucket in found.buckets] == [0, 120, 180]
    assert [bucket.estimate.count for bucket in found.buckets] == [60, 60, 20]


def test_a_run_of_seconds_has_shorter_buckets():
    found = sustained(long_run((5, 1e-3), (15, 1.4e-3), rate=100), bucket_s=2)
    assert len(found.buckets) == 10
    assert found.throttled_after_s == pytest.approx(5, abs=0.1)


def test_a_single_sample_is_a_run():
    found = sustained(series([1e-3]))
    assert found.plateau is not None
    assert found.plateau.median_s == pytest.approx(1e-3)


def test_a_bucket_has_a_length():
    with pytest.raises(ValueError, match="bucket of 0 s"):
        sustained(series([1e-3]), bucket_s=0)
