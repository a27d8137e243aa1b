import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farm.measure.amounts import UNKNOWN, follows_between
from farm.measure.assess import assess
from farm.measure.conditions import COOL, END_HOSTS_WORK, END_OTHER_WORK, Conditions, PhoneCondition, Verdict
from farm.measure.series import series
from tests.unit.measure.shapes import NOMINAL_S, TRUE_S, a_run, ar, noise, stepped

times = st.floats(1e-12, 1e9)


def codes(found):
    return {reason.code for reason in found.reasons}


def test_a_quiet_run_is_trusted_and_holds_the_truth():
    found = assess(a_run(noise(60)), NOMINAL_S)
    assert found.verdict is Verdict.TRUSTED
    assert not found.reasons
    assert found.warmup == 0
    assert found.estimate.low_s < TRUE_S < found.estimate.high_s


def test_drift_that_the_reference_tells_is_taken_out():
    drift = 1 + 0.1 * np.arange(60) / 60
    found = assess(a_run(noise(60), drift), NOMINAL_S)
    assert found.verdict is Verdict.TRUSTED
    assert found.estimate.low_s < TRUE_S < found.estimate.high_s
    assert found.raw_median_s > 1.04 * TRUE_S
    assert found.drift == pytest.approx(0.1, abs=0.02)


def test_the_estimate_is_at_nominal_speed_though_the_whole_run_was_slower():
    found = assess(a_run(noise(60), 1.2), NOMINAL_S)
    assert found.estimate.median_s == pytest.approx(TRUE_S, rel=0.01)
    unknown = assess(a_run(noise(60), 1.2))
    assert unknown.estimate.median_s == pytest.approx(1.2 * TRUE_S, rel=0.01)


@pytest.mark.parametrize(
    ("times", "verdict"),
    [(1.002, Verdict.TRUSTED), (0.998, Verdict.TRUSTED), (1.1, Verdict.SUSPECT), (0.9, Verdict.SUSPECT),
     (1.2, Verdict.SUSPECT), (0.8, Verdict.SUSPECT),
     (1.45, Verdict.SUSPECT), (1.6, Verdict.REJECTED), (0.6, Verdict.REJECTED), (7.9, Verdict.REJECTED)],
)  # fmt: skip
def test_a_reference_far_from_its_nominal_is_a_reason_however_constant(times, verdict):
    found = assess(a_run(noise(60), times), NOMINAL_S)
    assert found.verdict is verdict
    far = {"reference_offset"} if abs(times - 1) > 0.15 else set()
    assert codes(found) == (set() if verdict is Verdict.TRUSTED else {"wide", "follows"} | far)
    assert found.to_wire()["reference_offset"] == pytest.approx(times - 1, abs=0.01)


def test_how_far_it_is_is_said():
    reason, *_ = assess(a_run(noise(60), 1.0, 1 / 7.9), NOMINAL_S / 7.9).reasons
    assert re.search(r"the clock was 7\.(8|9)\d+ times slower than usual", reason.cause)
    assert "beyond 1.5 times is rejected" in reason.evidence
    reason, *_ = assess(a_run(noise(60)), 1.25 * NOMINAL_S).reasons
    assert re.search(r"the clock was 1\.2[456]\d+ times faster than usual", reason.cause)


def test_a_clock_that_rejects_leaves_no_narrow_interval_whatever_was_learned():
    """The model was slowed down a quarter as much as the kernel, and follows its small changes all the same."""
    clock = 11.83 * (1 + 0.1 * np.arange(60) / 60)
    found = assess(a_run(noise(60), clock, 1 / 4), NOMINAL_S, follows=(0.99, 1.01))
    assert found.estimate.low_s < TRUE_S / 4 < TRUE_S < 2.9 * TRUE_S < found.estimate.high_s
    assert found.estimate.half_width > 5
    assert "reaches to the median as measured" in found.reasons[0].evidence


def test_without_a_nominal_there_is_no_offset():
    assert assess(a_run(noise(60), 8.0)).reference_offset == pytest.approx(0, abs=1e-3)
    assert assess(a_run(noise(60), reference=False), NOMINAL_S).reference_offset is None


def test_a_step_in_both_is_not_hidden_by_the_correction():
    found = assess(a_run(noise(60), stepped(60, 30, 0.2)), NOMINAL_S)
    assert found.verdict is Verdict.REJECTED
    assert found.reference_step is not None
    assert found.reference_step.index == pytest.approx(30, abs=1)
    assert found.reference_step.change == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("at", [4, 10, 30, 50, 56])
def test_throttling_is_no_warm_up_wherever_it_begins(at):
    for run in (a_run(noise(60), stepped(60, at, 0.15)), a_run(noise(60), 1.0, stepped(60, at, 0.15))):
        assert assess(run, NOMINAL_S).verdict is not Verdict.TRUSTED


@pytest.mark.parametrize("number", [2, 3])
def test_a_clock_with_levels_is_not_trusted(number):
    clock = 1 + 0.1 * np.random.default_rng(2).integers(0, number, size=60)
    assert "reference_modes" in codes(assess(a_run(noise(60), clock), NOMINAL_S))
    assert "modes" in codes(assess(a_run(noise(60), 1.0, clock), NOMINAL_S))


def test_warm_up_is_cut_and_said():
    warming = 1 + 0.2 * np.exp(-np.arange(100) / 4)
    found = assess(a_run(noise(100), 1.0, warming), NOMINAL_S)
    assert 5 <= found.warmup <= 30
    assert found.count == 100
    assert found.used == 100 - found.warmup
    assert found.verdict is Verdict.TRUSTED
    assert found.estimate.low_s < TRUE_S < found.estimate.high_s


def test_a_run_that_warms_up_all_the_time_is_not_trusted():
    warming = 1 + 0.1 * np.exp(-np.arange(100) / 30)
    assert codes(assess(a_run(noise(100), 1.0, warming), NOMINAL_S)) & {"warming_up", "trend", "step"}


def test_outliers_are_counted_and_stay():
    away = noise(60)
    away[[10, 40]] = 60
    found = assess(a_run(away), NOMINAL_S)
    assert found.outliers.indices == (10, 40)
    assert found.outliers.worst == pytest.approx(0.82, abs=0.05)
    assert found.used == 60
    assert found.verdict is Verdict.TRUSTED


def test_a_phone_that_stops_now_and_then_is_not_trusted_however_few_samples_it_hit():
    away = noise(60)
    away[[10, 25, 40]] += 100 * np.log(6)  # 50 ms in a sample of 10 ms
    found = assess(a_run(away), NOMINAL_S)
    assert found.outliers.lost == pytest.approx(15 / 75, abs=0.01)
    assert codes(found) == {"held_up"}
    assert found.verdict is Verdict.SUSPECT


def test_samples_that_were_too_short_lose_no_time():
    away = noise(60)
    away[[10, 25]] -= 100 * np.log(6)
    assert assess(a_run(away), NOMINAL_S).outliers.lost == 0


def amounts(found):
    return {each.code: each.amount for each in found.amounts}


def test_a_burst_of_outliers_is_an_amount_and_more_than_was_asked_for_a_reason():
    away = noise(80)
    away[50:55] = 30
    found = assess(a_run(away), NOMINAL_S)
    assert found.verdict is Verdict.TRUSTED
    calm = np.log(np.delete(a_run(away).seconds, range(50, 55)))
    moved = np.median(np.log(a_run(away).seconds)) - np.median(calm)
    assert amounts(found)["burst"] == pytest.approx(abs(moved), abs=3e-4)
    found = assess(a_run(away), NOMINAL_S, half_width=0.0004)
    assert {"burst", "wide"} <= codes(found)
    assert next(each for each in found.reasons if each.code == "burst").verdict is Verdict.SUSPECT


def test_of_a_virtual_phone_this_host_is_the_cause():
    away = noise(80)
    away[20:28] = 30
    found = assess(a_run(away), NOMINAL_S, conditions=Conditions(virtual=True), half_width=0.001)
    burst = next(each for each in found.reasons if each.code == "burst")
    assert (burst.evidence, burst.hint) == ("Something else ran on this host.", END_HOSTS_WORK)
    assert not any("on the phone" in each.hint + each.evidence for each in found.reasons)


@pytest.mark.parametrize(
    ("conditions", "hint"),
    [(Conditions(PhoneCondition(36.0)), END_OTHER_WORK),
     (Conditions(PhoneCondition(36.0), virtual=True), END_HOSTS_WORK),
     (Conditions(PhoneCondition(30.0), after=PhoneCondition(41.0)), COOL), (Conditions(), COOL)],
)  # fmt: skip
def test_a_phone_that_is_cool_or_virtual_is_not_told_to_cool(conditions, hint):
    offset, *_ = assess(a_run(noise(60), 2.0), NOMINAL_S, conditions=conditions).reasons
    assert (offset.code, offset.hint) == ("reference_offset", hint)


def test_amounts_are_the_parts_of_the_interval_and_the_largest_comes_first():
    away = noise(80)
    away[50:55] = 30
    found = assess(a_run(away, 1.004), NOMINAL_S)
    sizes = [each.amount for each in found.amounts]
    assert sizes == sorted(sizes, reverse=True)
    assert found.estimate.half_width == pytest.approx(sum(sizes), rel=0.01)
    assert set(amounts(found)) == {"sampling", "follows", "burst"}
    wire = found.to_wire()["amounts"]
    assert wire[0] == {name: getattr(found.amounts[0], name) for name in ("code", "cause", "amount")}


@pytest.mark.parametrize("follows", [0.0, 0.5, 1.0])
def test_a_model_that_may_follow_the_clock_less_is_not_trusted_at_another_clock(follows):
    found = assess(a_run(noise(200), 1.05, 1.05 ** (follows - 1)), NOMINAL_S)
    assert codes(found) == {"wide", "follows"}
    assert found.estimate.low_s < TRUE_S < found.estimate.high_s
    assert found.reasons[0].evidence.startswith("Most of it: the model may not follow the clock")


@pytest.mark.parametrize(("follows", "verdict"), [(1.0, Verdict.TRUSTED), (0.0, Verdict.SUSPECT)])
def test_a_run_in_which_the_clock_moved_tells_how_far_the_model_follows(follows, verdict):
    drift = 1 + 0.1 * np.arange(200) / 200
    found = assess(a_run(noise(200), drift, drift ** (follows - 1)), NOMINAL_S)
    assert found.verdict is verdict
    assert found.estimate.low_s < TRUE_S < found.estimate.high_s


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_earlier_benches_at_other_clocks_tell_how_far_a_model_follows(share):
    clocks = 1 + 0.03 * noise(8, 5)
    medians = TRUE_S * clocks**share * np.exp(0.002 * noise(8, 6))
    low, high = follows_between(medians, NOMINAL_S * clocks)
    assert low <= share <= high
    assert low > share - 0.25
    found = assess(a_run(noise(200), 1.03, 1.03 ** (share - 1)), NOMINAL_S, follows=(low, high))
    assert found.verdict is (Verdict.TRUSTED if share == 1 else Verdict.SUSPECT)
    assert found.estimate.low_s < TRUE_S < found.estimate.high_s


@pytest.mark.parametrize(
    ("medians", "clocks"),
    [
        ([], []),
        ([1e-3] * 4, [1e-4, 2e-4, 3e-4, 4e-4]),
        ([1e-3] * 8, [1e-4] * 8),
        ([1e-3, 2e-3] * 4, [1e-4, 1.1e-4] * 4),
    ],
)
def test_few_benches_benches_at_one_clock_and_benches_that_scatter_tell_nothing(medians, clocks):
    medians = [each * (1 + 0.5 * (number % 3)) for number, each in enumerate(medians)]
    assert follows_between(medians, clocks) == UNKNOWN


def test_a_small_step_of_the_clock_is_an_amount_where_the_samples_follow_it():
    clock = stepped(200, 150, 0.03)
    found = assess(a_run(noise(200), clock), NOMINAL_S)
    assert found.reference_step is not None
    assert found.verdict is Verdict.TRUSTED
    assert "reference_step" in amounts(found)
    alone = assess(a_run(noise(200), 1.0, clock), NOMINAL_S)
    assert "step" in codes(alone)
    assert "step" not in amounts(alone)


def test_without_a_reference_nothing_is_trusted():
    found = assess(a_run(noise(60), reference=False))
    assert codes(found) == {"no_reference"}
    assert found.nominal_s is None
    assert found.verdict is Verdict.SUSPECT


def test_samples_like_their_neighbours_widen_the_interval_and_count_less():
    alone, alike = (assess(a_run(each), NOMINAL_S) for each in (noise(100), ar(100, 0.7)))
    assert amounts(alike)["sampling"] > 1.5 * amounts(alone)["sampling"]
    assert alike.estimate.effective_count < 40 < alone.estimate.effective_count


def test_what_was_asked_for_and_not_reached_is_said():
    reason = next(each for each in assess(a_run(noise(60)), NOMINAL_S, half_width=0.0005).reasons)
    assert reason.code == "wide"
    assert re.fullmatch(r"uncertain by ±[0-9.]+ %, goal ±0.05 %", reason.cause)
    assert reason.hint == "measure longer: --measure 2m"


@pytest.mark.parametrize(
    ("moment", "code", "verdict"),
    [
        (PhoneCondition(throttle_status=1), "throttled", Verdict.SUSPECT),
        (PhoneCondition(throttle_status=4), "throttled", Verdict.REJECTED),
        (PhoneCondition(temperature_c=45.0), "temperature", Verdict.SUSPECT),
        (PhoneCondition(battery_percent=9.0), "battery", Verdict.SUSPECT),
        (PhoneCondition(clock_hz=1.0e9), "clock", Verdict.SUSPECT),
        (PhoneCondition(gpu_clock_hz=0.4e9), "gpu_clock", Verdict.SUSPECT),
        (PhoneCondition(governors="powersave"), "governor", Verdict.SUSPECT),
        (PhoneCondition(disturbed="com.game keeps the phone busy"), "disturbed", Verdict.SUSPECT),
    ],
)
def test_conditions_speak_against_a_result(moment, code, verdict):
    before = PhoneCondition(
        temperature_c=30.0,
        throttle_status=0,
        battery_percent=80.0,
        charging=False,
        clock_hz=2.0e9,
        gpu_clock_hz=0.7e9,
        governors="schedutil",
        neighbours=0,
        disturbed="",
    )
    calm = Conditions(before=before, after=before)
    assert assess(a_run(noise(60)), NOMINAL_S, conditions=calm).verdict is Verdict.TRUSTED
    found = assess(a_run(noise(60)), NOMINAL_S, conditions=replace(calm, during=(moment,)))
    assert codes(found) == {code}
    assert found.verdict is verdict


def test_the_certificate_is_json_and_names_what_is_unknown():
    wire = assess(
        a_run(noise(60)), NOMINAL_S, conditions=Conditions(before=PhoneCondition(throttle_status=0))
    ).to_wire()
    again = json.loads(json.dumps(wire, allow_nan=False))
    assert again["verdict"] == "trusted"
    assert "throttle_status" not in again["unknown"]
    assert {"temperature_c", "clock_hz"} <= set(again["unknown"])
    assert again["estimate"]["half_width"] > 0


@given(
    samples=st.lists(st.tuples(times, st.one_of(times, st.just(math.nan))), min_size=1, max_size=60),
    nominal_s=st.one_of(st.none(), times),
)
@example(
    [(2.0, math.nan), (2.0, 1.0), (2.0, 1.0), (2.0, math.nan), *[(1.0, math.nan)] * 4], None
)  # none after the warm-up
@settings(max_examples=60, deadline=None)
def test_any_times_get_an_estimate_and_json(samples, nominal_s):
    seconds, reference_s = zip(*samples, strict=True)
    found = assess(series(seconds, None, reference_s), nominal_s)
    assert 0 < found.estimate.low_s <= found.estimate.median_s <= found.estimate.high_s < math.inf
    json.dumps(found.to_wire(), allow_nan=False)


@given(st.lists(st.floats(1e-4, 1e-2), min_size=1, max_size=40), st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_in_other_units_the_interval_is_the_same(seconds, factor):
    one, other = (assess(series(np.array(seconds) * scale)) for scale in (1.0, factor))
    for name in ("median_s", "low_s", "high_s"):
        assert getattr(other.estimate, name) == pytest.approx(factor * getattr(one.estimate, name), rel=1e-6)


@given(st.integers(1, 50), st.floats(1e-6, 10))
@settings(max_examples=30, deadline=None)
def test_equal_samples_have_an_interval_of_no_width(count, value):
    found = assess(series([value] * count, None, [NOMINAL_S] * count), NOMINAL_S)
    assert found.estimate.half_width == pytest.approx(0, abs=1e-9)
    assert found.verdict is (Verdict.TRUSTED if count >= 30 else Verdict.SUSPECT if count >= 5 else Verdict.REJECTED)


def test_an_interval_ends_at_the_samples_and_one_that_says_nothing_is_rejected():
    wild = 1e-3 * np.exp(3 * ar(40, 0.98))
    found = assess(series(wild, None, np.full(40, NOMINAL_S)), NOMINAL_S)
    assert found.estimate.low_s >= wild.min() * (1 - 1e-9)
    assert found.estimate.high_s <= wild.max() * (1 + 1e-9)
    assert "beyond_samples" in codes(found)
    assert next(each for each in found.reasons if each.code == "wide").verdict is Verdict.REJECTED


def test_an_interval_that_doubts_make_too_wide_is_rejected():
    clock = 1e-4 * np.array([0.4, 0.2, 0.4, 2.5, 2.4])  # a host that was held up; no nominal is known yet
    found = assess(series(TRUE_S * np.array([1.0, 1.01, 1.02, 1.01, 1.0]), None, clock))
    assert amounts(found)["sampling"] < 0.05
    assert amounts(found)["reference_outliers"] > 0.8
    assert next(each for each in found.reasons if each.code == "wide").verdict is Verdict.REJECTED


@pytest.mark.parametrize("seed", range(8))
def test_the_interval_of_few_samples_beside_a_noisy_reference_ends_at_the_samples_too(seed):
    reference = NOMINAL_S * np.exp(0.5 * noise(6, seed + 50))
    found = assess(series(1e-3 * np.exp(0.1 * noise(6, seed)), None, reference), NOMINAL_S)
    low, high = found.estimate.low_s, found.estimate.high_s
    wider = math.exp(sum(each.amount for each in found.amounts if each.code != "sampling"))
    low, high = low * wider, high / wider
    assert found.fastest_s * (1 - 1e-9) <= low < high <= found.slowest_s * (1 + 1e-9)
    at_an_end = low <= found.fastest_s * (1 + 1e-9) or high >= found.slowest_s * (1 - 1e-9)
    assert ("beyond_samples" in codes(found)) == at_an_end


@given(st.lists(st.tuples(times, times), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_no_interval_exceeds_its_samples_without_a_reason(samples):
    seconds, _ = zip(*samples, strict=True)
    found = assess(series(seconds))
    wider = math.exp(sum(each.amount for each in found.amounts if each.code != "sampling"))
    assert min(seconds) * (1 - 1e-9) <= found.estimate.low_s * wider
    assert found.estimate.high_s / wider <= max(seconds) * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_are_rejected_with_a_number_all_the_same(count):
    found = assess(a_run(noise(count)), NOMINAL_S)
    assert found.verdict is Verdict.REJECTED
    assert found.estimate.count == count


def test_one_sample_has_no_interval_that_could_be_wide():
    assert codes(assess(a_run(noise(1), 1.0376), NOMINAL_S)) == {"few_samples"}


@pytest.mark.parametrize(
    ("seconds", "start_s", "reference_s"),
    [
        ([], None, None),
        ([1.0, math.nan], None, None),
        ([1.0, 0.0], None, None),
        ([1.0, math.inf], None, None),
        ([1.0, 1.0], [0.0], None),
        ([1.0, 1.0], [1.0, 0.0], None),
        ([1.0, 1.0], None, [1.0, -1.0]),
    ],
)
def test_what_is_no_series_is_refused(seconds, start_s, reference_s):
    with pytest.raises(ValueError):
        series(seconds, start_s, reference_s)


def in_blocks(run, size):
    return series(run.seconds, run.start_s, np.where(np.arange(run.count) % size, math.nan, run.reference_s))


def test_samples_may_share_a_reading_of_the_reference_kernel():
    shared = in_blocks(a_run(noise(160), 1 + 0.1 * np.arange(160) / 160), 4)
    assert shared.readings.tolist() == list(range(0, 160, 4))
    found = assess(shared, NOMINAL_S)
    assert found.verdict is Verdict.TRUSTED
    assert found.estimate.low_s < TRUE_S < found.estimate.high_s


def test_a_step_that_few_readings_witness_is_seen_in_the_samples_themselves():
    found = assess(in_blocks(a_run(noise(40), stepped(40, 22, 0.2)), 4), NOMINAL_S)
    assert found.verdict is Verdict.REJECTED
    assert found.step is not None
    assert found.step.index == pytest.approx(22, abs=1)


def test_a_reference_that_was_hardly_timed_is_none():
    beside = np.full(60, math.nan)
    beside[::20] = NOMINAL_S
    assert assess(series([TRUE_S] * 60, None, beside), NOMINAL_S).nominal_s is None
