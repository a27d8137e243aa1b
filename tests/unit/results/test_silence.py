"""When a series of results has stopped: simulated series with and without a rhythm."""

import numpy as np
import pytest

from farm.results.silence_rules import MAX_GAPS, rhythm

DAY_S, HOUR_S = 86400.0, 3600.0
DAYS = 120


def nightly(random):
    return np.arange(DAYS) * DAY_S + random.exponential(900, DAYS)


def weekdays(random):
    days = np.array([day for day in range(DAYS) if day % 7 < 5])
    return days * DAY_S + random.exponential(900, days.size)


def irregular_days(random):
    return np.cumsum(DAY_S * (1 + 0.15 * random.normal(size=DAYS)))


def two_together(random):
    return np.sort(np.concatenate([np.arange(DAYS) * DAY_S, np.arange(DAYS) * DAY_S + 400 * random.random(DAYS)]))


def one_outage(random):
    at_s = nightly(random)
    return at_s[(at_s < 40 * DAY_S) | (at_s > 60 * DAY_S)]


RHYTHMS = [nightly, weekdays, irregular_days, two_together]


def late(at_s, end):
    """Whether the result `end` would have come late."""
    found = rhythm(at_s[max(end - 2 * MAX_GAPS, 0) : end])
    return found is not None and found.late_at_s < at_s[end]


@pytest.mark.parametrize("series", RHYTHMS)
def test_a_series_that_goes_on_is_never_late(series):
    """Under one false alert in 1,000 series-days; 1,200 are simulated."""
    for seed in range(10):
        at_s = series(np.random.default_rng(seed)).tolist()
        assert not any(late(at_s, end) for end in range(8, len(at_s)))


@pytest.mark.parametrize("series", RHYTHMS)
def test_a_series_that_stops_is_late_within_a_period_after_its_next_result_was_due(series):
    for seed in range(10):
        at_s = series(np.random.default_rng(seed))
        at_s = at_s[at_s < 115 * DAY_S].tolist()  # a Wednesday
        found = rhythm(at_s)
        assert found.period_s == pytest.approx(DAY_S, rel=0.1)
        assert DAY_S < found.late_at_s - at_s[-1] < 2.1 * DAY_S


def test_an_outage_is_one_alert_and_is_not_learned():
    at_s = one_outage(np.random.default_rng(1)).tolist()
    assert sum(late(at_s, end) for end in range(8, len(at_s))) == 1
    assert rhythm(at_s[:60]).late_at_s - at_s[59] < 2 * DAY_S


def test_a_skipped_night_is_an_alert_once():
    at_s = [night * DAY_S for night in range(60) if night not in (30, 45)]
    assert [end for end in range(8, len(at_s)) if late(at_s, end)] == [30]


def test_a_weekend_is_awaited():
    at_s = [day * DAY_S for day in range(26) if day % 7 < 5]  # until a Friday
    assert 3 * DAY_S < rhythm(at_s).late_at_s - at_s[-1] < 4 * DAY_S


def test_submissions_by_hand_have_no_rhythm():
    for seed in range(20):
        random = np.random.default_rng(seed)
        assert rhythm(np.cumsum(random.exponential(6 * HOUR_S, 25)).tolist()) is None
    assert rhythm([0.0, 1.0, 2.0]) is None
    assert rhythm([5.0] * 30) is None


def test_a_series_that_is_silent_for_long_has_ended():
    found = rhythm([night * DAY_S for night in range(20)])
    assert found.over_at_s - found.late_at_s > 20 * DAY_S
