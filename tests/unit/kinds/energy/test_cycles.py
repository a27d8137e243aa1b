import numpy as np
import pytest

from farm.kinds.energy.command import remarks
from farm.kinds.energy.cycles import CyclePlan, CycleTimes, joules, plan, to_wire, verdict_on
from farm.kinds.energy.meter import step_of
from farm.measure.conditions import Reason, Verdict
from farm.measure.energy import EnergyEstimate, EnergyNotResolved, PowerReading, clock_lag_s

PLAN = CyclePlan(cycles=20, window_s=1.0, settle_s=0.15)
BEGUN_S = 1_764_266_400.0


def measured(net_w, noise_w=0.05, lost=(), lag_s=0.0):
    """20 cycles at ten readings a second, idle at 1 W; the meter is silent in the cycles of `lost`."""
    times = [
        CycleTimes(*(BEGUN_S + 3 * cycle + border for border in range(4)), inference_s=0.02) for cycle in range(20)
    ]
    random, readings = np.random.default_rng(5), []
    for place in range(600):
        at_s = (place + 1) / 10 - 0.001
        if int(at_s // 3) not in lost:
            watts = 1.0 + net_w * (int(at_s) % 3 == 1) + noise_w * random.normal()
            readings.append(PowerReading(BEGUN_S + at_s - lag_s, watts))
    return joules(readings, times, PLAN, 0.1, step_of(readings))


def test_the_joules_of_known_power_are_found():
    found = measured(2.0)
    assert isinstance(found, EnergyEstimate)
    assert found.low_j <= 0.04 <= found.high_j
    assert to_wire(found)["energy"]["gross_j"] == pytest.approx(0.06, rel=0.02)


@pytest.mark.parametrize("lag_s", [-0.3, -0.15, 0.0, 0.02, 0.15, 0.3])
def test_a_meter_whose_clock_lags_is_set_right_by_the_windows(lag_s):
    found = measured(2.0, lag_s=lag_s)
    assert isinstance(found, EnergyEstimate)
    assert found.lag_s == pytest.approx(lag_s if abs(lag_s) > 0.1 else 0.0, abs=0.06)  # a reading takes 0.1 s
    assert found.net_j == pytest.approx(0.04, rel=0.02)


def test_noise_shows_no_lag():
    random = np.random.default_rng(3)
    readings = [PowerReading(place / 10, 1 + random.normal()) for place in range(600)]
    assert clock_lag_s(readings, np.array([[3.0 * n + border for border in range(4)] for n in range(20)])) == 0.0


def test_a_question_beyond_the_meter_is_no_number():
    assert isinstance(measured(0.0, noise_w=0.0), EnergyNotResolved)  # it always says the same
    assert measured(2.0, lost=(7,)) == EnergyNotResolved(
        "the meter left out readings: a window has fewer than three", None
    )
    wire = to_wire(measured(0.02))
    assert wire["energy"] is None
    (sentence,) = remarks({**wire, "certificate": {"notes": []}})
    assert sentence.startswith("the meter does not resolve it: an inference takes about")


@pytest.mark.parametrize(
    ("asked", "cycles", "window_s"),
    [((120.0, 0.1, 1.5), 20, 2.0), ((1800.0, 1.0, 1.5), 60, 10.0), ((3600.0, 5.0, 2.5), 36, 33.3)],
)
def test_windows_are_as_long_as_the_meter_needs(asked, cycles, window_s):
    planned = plan(*asked)
    assert (planned.cycles, planned.window_s) == (cycles, pytest.approx(window_s, abs=0.1))
    assert planned.run_s == pytest.approx(asked[0], rel=0.01)


def test_a_run_too_short_for_the_meter_says_how_long_it_must_be():
    assert plan(60.0, 1.0, 1.5).needed_s == pytest.approx(1.1 * 330.0)
    assert isinstance(plan(330.0, 1.0, 1.5), CyclePlan)
    too_rare = "a reading every 20 s is too rare for idle and busy windows"
    assert plan(3600.0, 20.0, 2.5) == EnergyNotResolved(too_rare, None)


def test_joules_are_in_histories_with_a_verdict_and_unresolved_ones_are_rejected():
    found = measured(2.0)
    hot = Reason("throttled", Verdict.SUSPECT, "the phone throttled")
    told = verdict_on(found, [hot])
    assert (told["verdict"], told["values"]["energy"]["value"]) == ("suspect", found.net_j)
    assert verdict_on(found)["verdict"] == "trusted"
    none = verdict_on(EnergyNotResolved("its steps are too large", None))
    assert (none["verdict"], none["values"], none["reasons"][0]["code"]) == ("rejected", {}, "unresolved")
