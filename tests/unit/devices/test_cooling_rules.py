"""The cooling curve against synthetic phones: exact, noisy, stepping, in a warm room."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.devices.thermal.cooling_rules import BODY_TAU_S, MAX_S, ROOM_C, SAMPLES, CoolingCurve


def cooled(curve, hot_c, ambient_c, tau_s, span_s, *, every_s=10.0, begin_s=0.0, noise=None):
    """The curve after a phone cooled for `span_s`; its last temperature; when."""
    at_s, celsius = begin_s, hot_c
    while at_s <= begin_s + span_s:
        celsius = ambient_c + (hot_c - ambient_c) * math.exp(-(at_s - begin_s) / tau_s)
        curve = curve.take(at_s, celsius + (noise() if noise else 0.0), idle=True)
        at_s += every_s
    return curve, celsius, at_s


def truth_s(celsius, target_c, ambient_c, tau_s):
    return tau_s * math.log((celsius - ambient_c) / (target_c - ambient_c))


def test_before_it_knows_anything_the_defaults_answer():
    expected = truth_s(41.0, 36.0, ROOM_C, BODY_TAU_S)
    assert CoolingCurve().seconds_until(36.0, 41.0) == pytest.approx(expected)
    assert CoolingCurve().seconds_until(36.0, 36.0) == 0.0  # cool enough


@pytest.mark.parametrize("tau_s", [120.0, 400.0, 1500.0])
@pytest.mark.parametrize("ambient_c", [18.0, 26.0, 33.0])
def test_an_exact_curve_is_recognised(tau_s, ambient_c):
    curve, celsius, _ = cooled(CoolingCurve(), 46.0, ambient_c, tau_s, 1.2 * tau_s)
    assert curve.now().tau_s == pytest.approx(tau_s, rel=0.05)
    assert curve.now().ambient_c == pytest.approx(ambient_c, abs=1.0)
    target_c = ambient_c + 0.5 * (celsius - ambient_c)
    assert curve.seconds_until(target_c, celsius) == pytest.approx(
        truth_s(celsius, target_c, ambient_c, tau_s), rel=0.3
    )


def test_noise_of_a_coarse_thermometer_does_no_harm():
    noise = random.Random(7)
    curve, celsius, _ = cooled(CoolingCurve(), 47.0, 25.0, 500.0, 900.0, noise=lambda: noise.gauss(0.0, 0.25))
    assert curve.seconds_until(28.0, celsius) == pytest.approx(truth_s(celsius, 28.0, 25.0, 500.0), rel=0.35)


def test_whole_degrees_do_no_harm():
    curve = CoolingCurve()
    for at_s in range(0, 900, 10):
        curve = curve.take(at_s, round(25.0 + 22.0 * math.exp(-at_s / 500.0)), idle=True)
    assert curve.now().tau_s == pytest.approx(500.0, rel=0.35)


def test_what_one_segment_taught_serves_the_next_from_its_first_reading():
    curve, _, at_s = cooled(CoolingCurve(), 46.0, 24.0, 240.0, 480.0)
    curve = curve.take(at_s, 47.0, idle=False)  # somebody works on it
    curve = curve.take(at_s + 10, 46.0, idle=True)
    assert curve.segment == ((at_s + 10, 46.0),)
    assert curve.seconds_until(34.0, 46.0) == pytest.approx(truth_s(46.0, 34.0, 24.0, 240.0), rel=0.2)


def test_a_phone_that_works_teaches_nothing():
    curve = CoolingCurve()
    for at_s in range(0, 600, 10):
        curve = curve.take(at_s, 45.0 - at_s / 100, idle=False)
    assert curve == CoolingCurve()


def test_warming_up_begins_anew():
    curve, celsius, at_s = cooled(CoolingCurve(), 44.0, 25.0, 300.0, 60.0)
    assert len(curve.take(at_s, celsius + 3.0, idle=True).segment) == 1


def test_a_step_on_the_way_is_no_curve_and_what_comes_after_it_counts():
    """A fan is switched on: it cools four times as fast, to a lower end."""
    curve, celsius, at_s = cooled(CoolingCurve(), 48.0, 30.0, 1200.0, 200.0)
    curve, celsius, _ = cooled(curve, celsius, 22.0, 150.0, 400.0, begin_s=at_s)
    assert curve.now().ambient_c == pytest.approx(22.0, abs=1.5)


def test_in_a_room_that_is_too_warm_it_says_where_it_stays():
    curve, celsius, _ = cooled(CoolingCurve(), 45.0, 39.0, 300.0, 1200.0)
    assert curve.seconds_until(36.0, celsius) is None
    assert curve.floor_c(36.0) == pytest.approx(39.0, abs=0.5)
    assert curve.floor_c(41.0) is None


def test_a_warm_room_is_not_claimed_from_the_first_minute():
    curve, _, _ = cooled(CoolingCurve(), 45.0, 39.0, 600.0, 60.0)
    assert curve.floor_c(36.0) is None


def test_a_long_segment_keeps_few_readings_and_its_latest():
    curve, _, at_s = cooled(CoolingCurve(), 45.0, 25.0, 600.0, 7200.0)
    assert len(curve.segment) <= SAMPLES
    assert curve.segment[-1][0] == at_s - 10.0
    assert curve.now().ambient_c == pytest.approx(25.0, abs=0.3)


@given(
    readings=st.lists(st.tuples(st.floats(0, 1e6), st.floats(-40, 150), st.booleans()), max_size=60),
    target_c=st.floats(20, 60),
    celsius=st.floats(20, 120),
)
def test_whatever_is_read_an_estimate_is_a_time_or_unknown(readings, target_c, celsius):
    curve = CoolingCurve()
    for at_s, read_c, idle in readings:
        curve = curve.take(at_s, read_c, idle=idle)
    assert [at_s for at_s, _ in curve.segment] == sorted({at_s for at_s, _ in curve.segment})
    estimate_s = curve.seconds_until(target_c, celsius)
    assert estimate_s is None or 0.0 <= estimate_s <= MAX_S
    if celsius <= target_c:
        assert estimate_s == 0.0


def test_a_phone_that_warms_up_slowly_is_never_said_to_rest_above_its_reading():
    curve = CoolingCurve()
    for at_s in range(0, 900, 10):
        celsius = 75.0 - 45.0 * math.exp(-at_s / 400.0)
        curve = curve.take(at_s, celsius, idle=True)
        floor_c = curve.floor_c(36.0)
        assert floor_c is None or floor_c <= celsius + 0.5
    assert curve.segment[-1][1] < 72.0
    assert curve.seconds_until(36.0, celsius) is None
