"""The model of heat and battery: energy is kept, cooling ends at the air's temperature, throttling has hysteresis."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.simulation.physics import (
    AIR,
    AMBIENT_C,
    CAPACITY_J_PER_K,
    CHARGER_W,
    HYSTERESIS_K,
    IDLE_CPU_W,
    IDLE_GPU_W,
    RESISTANCE_K_PER_W,
    STEPS,
    Cell,
    cpu_watts,
    drain,
    heat,
    load,
    rest_voltage,
    throttling_of,
)
from farm.simulation.state import IDLE_LOAD, BatteryStatus, PhoneState, ThrottlingStatus

IDLE_W = {"cpu": IDLE_CPU_W, "gpu": IDLE_GPU_W}
COLD = dict.fromkeys(CAPACITY_J_PER_K, AMBIENT_C)
temperatures = st.fixed_dictionaries({node: st.floats(0, 100) for node in CAPACITY_J_PER_K})


def stored_joules(temps_c):
    return sum(CAPACITY_J_PER_K[node] * degrees for node, degrees in temps_c.items())


def test_an_idle_phone_stays_at_its_idle_temperatures():
    assert heat(PhoneState().temps_c, IDLE_W, AMBIENT_C, 3600) == pytest.approx(dict(PhoneState().temps_c), abs=0.05)


@given(temperatures, st.floats(0, 20), st.floats(0, 20))
def test_energy_is_neither_made_nor_lost(start, cpu_w, gpu_w):
    after = heat(start, {"cpu": cpu_w, "gpu": gpu_w}, AMBIENT_C, 1.0)
    to_air = sum(
        (start[source] - AMBIENT_C) / resistance
        for (source, sink), resistance in RESISTANCE_K_PER_W.items()
        if sink == AIR
    )
    assert stored_joules(after) - stored_joules(start) == pytest.approx(cpu_w + gpu_w - to_air, abs=1e-6)


@settings(max_examples=20)  # each of 200 steps; what differs is one number
@given(st.floats(AMBIENT_C + 1, 90))
def test_without_power_everything_cools_to_the_air_and_never_below(start_c):
    temps_c = dict.fromkeys(CAPACITY_J_PER_K, start_c)
    for _ in range(200):
        cooler = heat(temps_c, {}, AMBIENT_C, 60)
        assert all(AMBIENT_C - 1e-9 <= cooler[node] <= temps_c[node] + 1e-9 for node in temps_c)
        temps_c = cooler
    assert temps_c == pytest.approx(COLD, abs=0.01)


def test_the_case_follows_more_slowly_than_the_die():
    after = heat(PhoneState().temps_c, {"cpu": 6.0, "gpu": IDLE_GPU_W}, AMBIENT_C, 30)
    risen = {node: after[node] - PhoneState().temps_c[node] for node in after}
    assert risen["cpu"] > 10 * risen["skin"] > 0
    assert risen["skin"] > risen["battery"]


def test_one_busy_core_ends_in_throttling_which_then_keeps_the_phone_from_shutting_down():
    temps_c, status, scale = dict(PhoneState().temps_c), ThrottlingStatus.NONE, 1.0
    seen = set()
    for _ in range(1800):
        # Throttled, a busy core runs that share of the time.
        temps_c = heat(temps_c, {"cpu": cpu_watts(2 * scale, scale), "gpu": IDLE_GPU_W}, AMBIENT_C, 2)
        status, scale = throttling_of(temps_c["skin"], status)
        seen.add(status)
    assert max(seen) >= ThrottlingStatus.MODERATE
    assert ThrottlingStatus.SHUTDOWN not in seen


@given(st.floats(20, 60), st.sampled_from(list(ThrottlingStatus)))
def test_hysteresis_never_lets_go_early_nor_holds_long(skin_c, before):
    fresh, _ = throttling_of(skin_c)
    status, share = throttling_of(skin_c, before)
    assert fresh <= status <= max(before, fresh)
    assert status <= throttling_of(skin_c + HYSTERESIS_K)[0]
    assert share == dict([(ThrottlingStatus.NONE, 1.0), *((step, rest) for _, step, rest in STEPS)])[status]


def test_a_battery_gives_what_the_load_takes():
    """4.4 Wh for an hour at 4.4 W; the cell's volts fall with its charge, so the share is between the two ends'."""
    cell = Cell(0.8, 5_000_000)
    for _ in range(60):
        cell = drain(cell, 4.4, powered=False, charging=True, seconds=60)
    assert 4.4 / rest_voltage(0.8) / 5 < 0.8 - cell.charge < 4.4 / rest_voltage(0.5) / 5
    assert (cell.status, cell.current_ma < -1000) == (BatteryStatus.DISCHARGING, True)
    assert cell.voltage_mv < rest_voltage(cell.charge) * 1000  # the load pulls it down


def test_a_phone_charges_full_ever_more_slowly_and_then_stops():
    cell, currents = Cell(0.5, 5_000_000), []
    for _ in range(24 * 60):
        cell = drain(cell, 1.3, powered=True, charging=True, seconds=60)
        currents.append(cell.current_ma)
    assert (cell.status, cell.current_ma, round(cell.charge, 2)) == (BatteryStatus.FULL, 0, 1.0)
    falling = [current for current in currents if current < 1000]
    assert all(later <= earlier for earlier, later in itertools.pairwise(falling))
    assert cell.voltage_mv == pytest.approx(4380, abs=5)


@pytest.mark.parametrize(
    ("load_w", "powered", "charging", "status", "sign"),
    [
        (1.3, True, True, BatteryStatus.CHARGING, 1),
        (1.3, True, False, BatteryStatus.NOT_CHARGING, 0),
        (1.3, False, True, BatteryStatus.DISCHARGING, -1),
        (CHARGER_W + 3, True, True, BatteryStatus.CHARGING, -1),  # more than the cable brings
        (CHARGER_W + 3, True, False, BatteryStatus.NOT_CHARGING, -1),
    ],
)
def test_status_and_sign_of_the_current_agree(load_w, powered, charging, status, sign):
    cell = drain(Cell(0.5, 5_000_000), load_w, powered=powered, charging=charging, seconds=1)
    assert cell.status is status
    assert (cell.current_ma > 0) - (cell.current_ma < 0) == sign


def test_load_averages_follow_the_busy_cores_each_at_its_pace():
    busy = load(IDLE_LOAD, 2.0, 60.0)
    assert [round(each - IDLE_LOAD[0], 2) for each in busy] == [1.26, 0.36, 0.13]
    assert [round(each, 2) for each in load(busy, 0.0, 3600.0)] == [0.4, 0.4, 0.4]
