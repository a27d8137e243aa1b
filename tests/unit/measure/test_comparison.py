import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.measure.assess import assess
from farm.measure.comparison import (
    FIND_EFFECT,
    FIRST_PAIRS,
    MAX_EFFECT,
    STAGES,
    ComparisonAnswer,
    compare,
    compare_results,
    more_pairs,
    needed_pairs,
    needed_same,
    together,
)
from farm.measure.conditions import Reason, Verdict
from tests.unit.measure.shapes import NOMINAL_S, TRUE_S, a_run, noise

times = st.floats(1e-12, 1e9)


def pairs(count, effect, scale=0.01, drift=0.0):
    """A and B of `count` pairs, timed A B B A A B B A with a drift over the whole time."""
    order = np.exp(scale * noise(2 * count) + drift * np.arange(2 * count) / count)
    rounds = (TRUE_S * order).reshape(-1, 4)
    return rounds[:, [0, 3]].ravel(), (1 + effect) * rounds[:, [1, 2]].ravel()


@pytest.mark.parametrize(
    ("effect", "answer"),
    [(0.05, ComparisonAnswer.SLOWER), (-0.05, ComparisonAnswer.FASTER), (0.0, ComparisonAnswer.SAME)],
)
def test_what_is_so_is_said(effect, answer):
    found = compare(*pairs(200, effect))
    assert found.answer is answer
    assert found.low < 1 + effect < found.high
    assert found.pairs == 200


def test_too_much_noise_cannot_tell_and_says_how_many_pairs_could():
    found = compare(*pairs(FIRST_PAIRS, 0.03, scale=0.08))
    assert found.answer is ComparisonAnswer.CANNOT_TELL
    assert found.needed_pairs > 200
    assert more_pairs(found) == FIRST_PAIRS
    assert more_pairs(found, most=FIRST_PAIRS + 10) == 10
    assert more_pairs(found, most=FIRST_PAIRS) == 0


@pytest.mark.parametrize(("count", "effect"), [(6, 61.0), (10, 0.5), (10, -0.4), (38, 0.06)])
def test_few_pairs_tell_what_lies_wholly_beyond_the_minimum_effect(count, effect):
    found = compare(*pairs(count, effect))
    assert found.answer is (ComparisonAnswer.SLOWER if effect > 0 else ComparisonAnswer.FASTER)
    assert found.low < 1 + effect < found.high
    assert "few_pairs" not in {reason.code for reason in found.reasons}


@pytest.mark.parametrize(
    ("samples", "options", "answer"),
    [
        (pairs(4, 61.0), {}, ComparisonAnswer.CANNOT_TELL),
        (pairs(10, 0.02), {}, ComparisonAnswer.CANNOT_TELL),
        (pairs(6, 0.5, 0.2), {}, ComparisonAnswer.CANNOT_TELL),
        (pairs(10, 0.0), {}, ComparisonAnswer.CANNOT_TELL),
        (pairs(400, 0.005, scale=0.002), {}, ComparisonAnswer.SAME),  # sure, and below the minimum effect
        (pairs(400, 0.005, scale=0.002), {"min_effect": 0.001}, ComparisonAnswer.SLOWER),
        (pairs(100, 0.0, scale=0.002, drift=0.3), {}, ComparisonAnswer.SAME),
        (([TRUE_S] * 40, [TRUE_S] * 40), {}, ComparisonAnswer.SAME),
    ],
)
def test_few_pairs_cannot_tell_and_neither_drift_nor_little_is_a_difference(samples, options, answer):
    assert compare(*samples, **options).answer is answer


def test_how_well_the_size_is_known_is_apart_from_the_answer():
    found = compare(*pairs(10, 61.0, scale=0.2))
    assert found.answer is ComparisonAnswer.SLOWER
    assert found.known_to == pytest.approx(max(found.high / found.ratio, found.ratio / found.low))
    assert found.to_wire()["known_to"] > 1.2
    assert "beyond_samples" in {reason.code for reason in found.reasons}


def test_equal_builds_are_hardly_ever_told_apart_by_few_pairs():
    alarms = 0
    for seed in range(400):
        order = (TRUE_S * np.exp(0.05 * noise(4 * 5, seed))).reshape(-1, 4)
        found = compare(order[:, [0, 3]].ravel(), order[:, [1, 2]].ravel(), min_effect=0.0)
        alarms += found.answer is not ComparisonAnswer.CANNOT_TELL
    assert alarms <= 4


def test_how_long_to_go_on_does_not_depend_on_the_answer():
    even, uneven = (compare(*pairs(FIRST_PAIRS, effect, scale=0.03)) for effect in (0.0, 0.3))
    assert uneven.answer is ComparisonAnswer.SLOWER
    assert more_pairs(even) == more_pairs(uneven) > 0


def test_where_it_is_looked_at_is_fixed_in_advance():
    found = replace(compare(*pairs(200, 0.0, scale=0.03)), needed_pairs=202)
    assert more_pairs(found) == 120
    assert more_pairs(replace(found, needed_pairs=200, needed_same=200)) == 0
    pairs_taken, looks = FIRST_PAIRS, [FIRST_PAIRS]
    while more := more_pairs(replace(found, pairs=pairs_taken, needed_pairs=10**9), most=10**9):
        pairs_taken += more
        looks.append(pairs_taken)
    assert tuple(looks) == STAGES


@pytest.mark.parametrize(
    ("samples", "options", "code", "words"),
    [
        (pairs(10, 0.01), {}, "few_pairs", "only 10 pairs, 40 needed"),
        (pairs(FIRST_PAIRS, 0.0, scale=0.08), {}, "includes_1", "the interval includes no difference"),
        (pairs(1000, 0.008, scale=0.02), {}, "below_min_effect", "below the minimum effect"),
    ],
)
def test_cannot_tell_always_says_why(samples, options, code, words):
    found = compare(*samples, **options)
    assert found.answer is ComparisonAnswer.CANNOT_TELL
    assert found.reasons[0].code == code
    assert words in found.reasons[0].cause


@given(st.floats(-0.3, 0.3), st.floats(0.001, 0.3), st.integers(1, 40), st.floats(0, 0.5))
@settings(max_examples=50, deadline=None)
def test_only_cannot_tell_has_a_reason_why_nothing_is_told(effect, scale, rounds, min_effect):
    found = compare(*pairs(2 * rounds, effect, scale=scale), min_effect=min_effect)
    open_ = {reason.code for reason in found.reasons} & {"few_pairs", "includes_1", "below_min_effect"}
    assert len(open_) == (found.answer is ComparisonAnswer.CANNOT_TELL)


def test_the_effect_to_find_follows_from_the_least():
    assert compare(*pairs(40, 0.0), min_effect=0.4).find_effect == MAX_EFFECT
    assert compare(*pairs(40, 0.0), min_effect=0.02).find_effect == pytest.approx(0.06)
    assert compare(*pairs(40, 0.0), min_effect=0.002).find_effect == FIND_EFFECT


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_is_no_narrower_than_the_standard_deviation_says(seed):
    rounds = 0.02 * noise(20, seed)
    found = compare(np.full(40, TRUE_S), TRUE_S * np.exp(np.repeat(rounds, 2)))
    of_one_look = 2.576 * math.sqrt(math.pi / 2) * np.std(rounds) / math.sqrt(20)
    assert min(math.log(found.high / found.ratio), math.log(found.ratio / found.low)) > of_one_look


def test_a_ratio_that_changes_within_is_told():
    a_s, b_s = pairs(100, 0.0)
    b_s[50:] *= 1.1
    assert "step" in {reason.code for reason in compare(a_s, b_s).reasons}


def test_smaller_effects_need_more_pairs():
    assert needed_pairs(0.1, 0.02) > needed_pairs(0.1, 0.03) > needed_pairs(0.05, 0.03)
    assert needed_same(0.1, 0.005) > needed_same(0.1, 0.01)
    assert needed_same(0.1, 0.0) == 0


@pytest.mark.parametrize(
    ("samples", "options"),
    [
        *((pairs(40, 0.0), {"min_effect": each}) for each in (-0.1, 0.9, math.nan)),
        *((each, {}) for each in (([1.0], [1.0]), ([1.0] * 4, [1.0] * 2), ([], []))),  # not in turns
    ],
)
def test_what_cannot_be_compared_is_refused(samples, options):
    with pytest.raises(ValueError):
        compare(*samples, **options)


@given(st.lists(st.tuples(times, times, times, times), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_any_times_compare_and_the_other_way_round_is_the_inverse(rounds):
    a_s, b_s = ([time for each in rounds for time in each[first::2]] for first in (0, 1))
    there, back = compare(a_s, b_s), compare(b_s, a_s)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.needed_pairs == back.needed_pairs or there.needed_pairs == pytest.approx(back.needed_pairs, rel=0.5)
    json.dumps(there.to_wire(), allow_nan=False)


def test_stored_results_compare_with_a_warning():
    a, b = (assess(a_run(noise(100, seed), 1.0, own), NOMINAL_S).estimate for seed, own in ((1, 1.0), (2, 1.05)))
    found = compare_results(a, b)
    assert found.answer is ComparisonAnswer.SLOWER
    assert found.low < 1.05 < found.high
    assert [reason.code for reason in found.reasons] == ["not_in_turns"]
    assert more_pairs(found) == 0
    alike = compare_results(a, replace(a, low_s=0.9 * a.low_s))
    assert alike.answer is ComparisonAnswer.CANNOT_TELL
    assert [reason.code for reason in alike.reasons] == ["includes_1", "not_in_turns"]


def test_stored_results_that_are_not_trusted_cannot_tell():
    a, b = (assess(a_run(noise(100, seed), 1.0, own), NOMINAL_S).estimate for seed, own in ((1, 1.0), (2, 1.05)))
    doubt = Reason("not_trusted", Verdict.SUSPECT, "the result of A is suspect: its reference drifted")
    found = compare_results(a, b, min_effect=0.4, doubts=[doubt])
    assert found.answer is ComparisonAnswer.CANNOT_TELL
    assert found.reasons[0] == doubt
    assert found.low > 1
    assert compare_results(a, replace(b, median_s=9, low_s=8, high_s=10), doubts=[doubt]).answer == "slower"
    assert compare_results(b, a, min_effect=0.01, doubts=[doubt]).answer is ComparisonAnswer.CANNOT_TELL
    assert together([found, compare_results(a, b)]).answer is ComparisonAnswer.CANNOT_TELL
    assert doubt in together([found, found]).reasons


def test_phones_must_agree():
    slower, same = compare(*pairs(200, 0.05)), compare(*pairs(200, 0.0))
    assert together([slower, slower]).answer is ComparisonAnswer.SLOWER
    both = together([slower, same])
    assert both.answer is ComparisonAnswer.CANNOT_TELL
    assert both.low == same.low
    assert both.high == slower.high
    assert both.pairs == 400
    assert "phones_disagree" in {reason.code for reason in both.reasons}
    with pytest.raises(ValueError):
        together([])
