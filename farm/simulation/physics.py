"""How a phone warms, cools, throttles, drains and charges: pure functions of figures and passed time.

Heat: four lumped masses. CPU and GPU give to the skin (the case), skin and battery to the air, the battery lies behind
the skin. The constants are the simulation's own, chosen so that an idle phone has the temperatures of `PhoneState()`
in 25 °C air, that one busy core ends in throttling, and that the case follows with a time constant of about ten
minutes; only orders of magnitude are a phone's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp
from types import MappingProxyType
from typing import TYPE_CHECKING

from farm.simulation.state import IDLE_LOAD, BatteryStatus, ThrottlingStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

AMBIENT_C = 25.0
AIR = "ambient"
CAPACITY_J_PER_K: Mapping[str, float] = MappingProxyType({"cpu": 6.0, "gpu": 6.0, "skin": 90.0, "battery": 50.0})
# (from, to) -> K/W
RESISTANCE_K_PER_W: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("cpu", "skin"): 6.25,
        ("gpu", "skin"): 6.0,
        ("skin", "battery"): 3.0,
        ("skin", AIR): 9.0 + 9 / 19,  # makes the idle case 31 °C
        ("battery", AIR): 6.0,
    }
)
IDLE_CPU_W = 0.8
IDLE_GPU_W = 0.5
WATTS_PER_CORE = 3.0  # one big core at its highest clock
GPU_W = 5.0  # a GPU that has no idle moment
SCREEN_W = 0.9  # drawn from the battery; spread over the case too thinly to matter
CHARGER_W = 7.5  # 5 V, 1.5 A: a charging port (USB battery charging 1.2)
_MAX_STEP_S = 1.0  # explicit Euler: far below the fastest node's 36 s

# Skin from which on Android's severity holds, and the share of the highest clock that is left. The thresholds lie in
# the range of the captured `dumpsys thermalservice` outputs (skin, light: 36 to 39 degrees; severe: 42 to 50).
STEPS: tuple[tuple[float, ThrottlingStatus, float], ...] = (
    (39.0, ThrottlingStatus.LIGHT, 0.85),
    (43.0, ThrottlingStatus.MODERATE, 0.7),
    (45.0, ThrottlingStatus.SEVERE, 0.55),
    (47.0, ThrottlingStatus.CRITICAL, 0.4),
    (52.0, ThrottlingStatus.EMERGENCY, 0.25),
    (55.0, ThrottlingStatus.SHUTDOWN, 0.2),
)
HYSTERESIS_K = 1.5  # a step is left this far below where it was entered
_SHARES = {ThrottlingStatus.NONE: 1.0} | {status: share for _, status, share in STEPS}

LOAD_PERIODS_S = (60.0, 300.0, 900.0)

# Charge -> volts of an idle lithium cell.
_REST_V = ((0.0, 3.30), (0.05, 3.55), (0.2, 3.70), (0.5, 3.85), (0.8, 4.05), (1.0, 4.38))
_INNER_OHM = 0.08
_TAPER_FROM = 0.8  # above this charge the current falls
_FULL = 0.9995


def heat(
    temps_c: Mapping[str, float], watts: Mapping[str, float], ambient_c: float, seconds: float
) -> dict[str, float]:
    """The temperatures after some time of constant power; `watts` by node, missing ones 0."""
    now = dict(temps_c)
    left = seconds
    while left > 0:
        step = min(left, _MAX_STEP_S)
        left -= step
        joules = {node: watts.get(node, 0.0) * step for node in CAPACITY_J_PER_K}
        for (source, sink), resistance in RESISTANCE_K_PER_W.items():
            flow = (now[source] - (ambient_c if sink == AIR else now[sink])) / resistance * step
            joules[source] -= flow
            if sink != AIR:
                joules[sink] += flow
        for node, amount in joules.items():
            now[node] += amount / CAPACITY_J_PER_K[node]
    return now


def throttling_of(skin_c: float, before: ThrottlingStatus = ThrottlingStatus.NONE) -> tuple[ThrottlingStatus, float]:
    """Severity and remaining clock share for a skin temperature, `before` being the severity until now."""
    status = ThrottlingStatus.NONE
    for threshold_c, step, _ in STEPS:
        if skin_c >= threshold_c - (HYSTERESIS_K if step <= before else 0.0):
            status = step
    return status, _SHARES[status]


@dataclass(frozen=True, slots=True)
class Cell:
    """A battery as its physics sees it."""

    charge: float  # 0 to 1 of what it holds now
    full_uah: int
    current_ma: float = 0.0  # into the battery; negative while it drains
    voltage_mv: int = 4100
    status: BatteryStatus = BatteryStatus.CHARGING


def rest_voltage(charge: float) -> float:
    """Volts of the idle cell."""
    for (low, low_v), (high, high_v) in pairwise(_REST_V):
        if charge <= high:
            return low_v + (high_v - low_v) * (max(charge, low) - low) / (high - low)
    return _REST_V[-1][1]


def drain(cell: Cell, load_w: float, *, powered: bool, charging: bool, seconds: float) -> Cell:
    """The battery after some time.

    Args:
        cell: before.
        load_w: what the phone draws.
        powered: current comes through the cable. It feeds the phone first, the battery gets the rest.
        charging: the battery is allowed to take some; if not, the cable feeds the phone alone.
        seconds: how long.
    """
    rest_v = rest_voltage(cell.charge)
    spare_w = (CHARGER_W if powered else 0.0) - load_w
    if spare_w > 0:
        room = min(1.0, (1.0 - cell.charge) / (1.0 - _TAPER_FROM))
        spare_w *= room if charging else 0.0
    # Volts at the terminals: rest, plus what the current drops inside; one correction is exact to a millivolt.
    current_a = spare_w / (rest_v + spare_w / rest_v * _INNER_OHM)
    charge = cell.charge + current_a * seconds / 3600 / (cell.full_uah / 1e6)
    if not powered:
        status = BatteryStatus.DISCHARGING
    elif not charging:
        status = BatteryStatus.NOT_CHARGING
    elif charge >= _FULL:
        status, current_a = BatteryStatus.FULL, 0.0
    else:
        status = BatteryStatus.CHARGING
    return replace(
        cell,
        charge=min(1.0, max(0.0, charge)),
        current_ma=round(current_a * 1000, 1),
        voltage_mv=round((rest_v + current_a * _INNER_OHM) * 1000),
        status=status,
    )


def cpu_watts(busy_cores: float, clock_share: float, watts_per_core: float = WATTS_PER_CORE) -> float:
    """Power of the CPU. Time spent counts at its clock's voltage: less than in proportion when throttled."""
    return IDLE_CPU_W + busy_cores * watts_per_core * clock_share**2


def gpu_watts(busy: float, clock_share: float) -> float:
    """Power of the GPU; `busy` 0 to 1."""
    return IDLE_GPU_W + busy * GPU_W * clock_share**2


def battery_watts(current_ma: float) -> float:
    """The heat in watts of the current through the battery; charging loses some more."""
    amperes = current_ma / 1000
    return amperes**2 * _INNER_OHM + max(0.0, amperes) * 0.1


def load(before: tuple[float, float, float], busy_cores: float, seconds: float) -> tuple[float, float, float]:
    """The load averages after some time: an idle phone's, plus a process in each busy core (proc(5): 1, 5, 15 min)."""
    target = IDLE_LOAD[0] + busy_cores
    one, five, fifteen = (
        target + (was - target) * exp(-seconds / period_s) for was, period_s in zip(before, LOAD_PERIODS_S, strict=True)
    )
    return one, five, fifteen
