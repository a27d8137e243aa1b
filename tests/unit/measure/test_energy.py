import numpy as np
import pytest

from farm.measure.energy import (
    EnergyCycle,
    EnergyEstimate,
    EnergyNotResolved,
    PowerReading,
    PowerWindow,
    estimate,
    window,
)

INFERENCE_S = 0.02
RUN_S = 240.0


def cycles(idle_w, busy_w, hidden_w=0.0):
    """A cycle for each idle power; the baseline rises by 0.1 W within each."""
    return [
        EnergyCycle(
            PowerWindow(idle - 0.05, hidden_w),
            PowerWindow(busy, hidden_w),
            PowerWindow(idle + 0.05, hidden_w),
            INFERENCE_S,
        )
        for idle, busy in zip(idle_w, busy_w, strict=True)
    ]


def readings(watts, step_s=0.1):
    return [PowerReading(step_s * place, each) for place, each in enumerate(watts)]


def test_a_baseline_that_drifts_costs_nothing():
    idle_w = np.linspace(0.5, 1.5, 20)
    found = estimate(cycles(idle_w, idle_w + 2.0), RUN_S, 0.1)
    assert isinstance(found, EnergyEstimate)
    assert found.net_j == pytest.approx(2.0 * INFERENCE_S)
    assert found.idle_w == pytest.approx(idle_w[-found.cycles :].mean())
    assert found.gross_j == pytest.approx((found.idle_w + 2.0) * INFERENCE_S)


@pytest.mark.parametrize(
    ("busy_w", "hidden_w", "needs"),
    [
        ([1.2, 2.8] * 10, 0.0, lambda needed_s: needed_s > 10 * RUN_S),  # wider than wanted
        ([1.01, 0.99] * 10, 0.0, lambda _: True),  # the model draws nothing
        ([0.5] * 20, 0.0, lambda needed_s: needed_s is None),  # below the baseline: no length of a run helps
        ([1.5] * 20, 0.25, lambda needed_s: needed_s is None),  # equal readings of a coarse meter
        ([3.0] * 19, 0.0, lambda needed_s: needed_s == RUN_S * 20 / 19),
        ([3.0], 0.0, lambda needed_s: needed_s == RUN_S * 20),
        ([], 0.0, lambda needed_s: needed_s is None),
    ],
)
def test_what_is_no_number_says_how_long_to_measure_if_that_helps(busy_w, hidden_w, needs):
    found = estimate(cycles([1.0] * len(busy_w), busy_w, hidden_w), RUN_S, 0.1)
    assert isinstance(found, EnergyNotResolved)
    assert needs(found.needed_s)


def test_the_cycles_that_decide_take_no_part_in_the_number():
    found = estimate(cycles([1.0] * 21, [4.0] * 7 + [3.0] * 14), RUN_S, 0.1)
    assert isinstance(found, EnergyEstimate)
    assert found.net_j == pytest.approx(2.0 * INFERENCE_S)
    assert found.cycles == 14


def test_a_small_step_of_the_meter_widens_the_interval():
    fine, stepped = (estimate(cycles([1.0] * 20, [3.0] * 20, each), RUN_S, 0.1) for each in (0.0, 0.01))
    assert isinstance(fine, EnergyEstimate)
    assert isinstance(stepped, EnergyEstimate)
    assert stepped.high_j - fine.high_j == pytest.approx(0.02 * INFERENCE_S)


def test_a_window_takes_the_readings_inside_it():
    found = window(readings([9.0] * 10 + [2.0] * 21 + [9.0] * 10), 0.95, 3.05, 0.0)
    assert found == PowerWindow(pytest.approx(2.0), 0.0)
    assert window(readings([1.0] * 10), 0.75, 0.95, 0.0) is None


def test_a_late_reading_counts_for_the_time_it_stands_for():
    late = [PowerReading(0.1, 1.0), PowerReading(0.2, 1.0), PowerReading(0.6, 2.0)]
    found = window(late, 0.0, 1.0, 0.0)
    assert found is not None
    assert found.watts == pytest.approx((0.1 * 1.0 + 0.4 * 2.0) / 0.5)


@pytest.mark.parametrize(
    ("noise_w", "middle_w", "hidden_w"),
    [(0.0, 1.0, 0.05), (0.005, 1.05, 0.05), (0.1, 1.0, 0.0), (0.1, 1.05, 0.0)],
    ids=["still", "still, between two steps", "noisy", "noisy, between two steps"],
)
def test_only_noise_averages_the_steps_of_a_meter_out(noise_w, middle_w, hidden_w):
    drawn = middle_w + noise_w * np.random.default_rng(3).normal(size=400)
    found = window(readings((np.round(drawn / 0.1) * 0.1).tolist()), 0.0, 100.0, 0.1)
    assert found is not None
    assert found.hidden_w == pytest.approx(hidden_w)
