"""Whether intervals of `farm.measure.energy` hold the true joules: simulated meters on a phone of known power.

Idle power wanders and drifts, a busy window adds the same to each; the meter rounds to its step and updates at its
period. Of runs that the meter resolves, the rate that holds the truth; of those that it cannot, the rate that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import Context, Figure
from benchmarks.rates import Case, Goal, rates
from benchmarks.simulated_runs import Random
from farm.kinds.energy.cycles import CyclePlan, CycleTimes, added, cycles_of, joules
from farm.kinds.energy.meter import NAPS_PER_PERIOD, step_of
from farm.measure.energy import (
    EnergyCycle,
    EnergyEstimate,
    EnergyNotResolved,
    PowerReading,
    PowerWindow,
    estimate,
    window,
)
from farm.measure.gauge import SETTLE_PERIODS, GaugeLine, GaugeScale, GaugeUpdates, period_s, recognised
from farm.measure.rails import POLL_S, PowerRail, UptimeClock, readings_of
from farm.measure.rails import RAILS_SETTLE_PERIODS as RAILS_SETTLE
from farm.measure.series import FloatArray

RUNS = 2400
LIMIT_RUNS = 6000  # about a sixth of them count
LINE_RUNS = 1600  # each makes thousands of lines
SEED = 20261127
IDLE_W, INFERENCE_S = 0.8, 0.02
HALF_WIDTH = 0.1
WINDOW_S = 10.0  # an idle stretch between two busy ones is two windows long


@dataclass(frozen=True)
class SimulatedMeter:
    """A meter, and the noise of the power it sees."""

    step_w: float
    period_s: float
    noise_w: float


FINE = SimulatedMeter(step_w=0.0001, period_s=0.02, noise_w=0.05)
SHUNT = SimulatedMeter(step_w=0.005, period_s=0.1, noise_w=0.1)
GAUGE = SimulatedMeter(step_w=0.004, period_s=1.0, noise_w=0.2)
STEPPED = SimulatedMeter(step_w=0.03, period_s=1.0, noise_w=0.005)  # its steps do not average out
COARSE = SimulatedMeter(step_w=0.5, period_s=1.0, noise_w=0.02)


def run(context: Context) -> list[Figure]:
    """The rate of every case, and whether it meets its goal."""
    return rates(context, _cases, SEED)


def _cases() -> list[Case]:
    coverage, unresolved = Goal(93, 97), Goal(99)
    return [
        Case("coverage: fine meter, 20 cycles", RUNS, _covers(FINE, 20, 2.0, 0.0), coverage),
        Case("coverage: shunt, 20 cycles, baseline drifts by 0.3 W", RUNS, _covers(SHUNT, 20, 2.0, 0.3), coverage),
        Case("coverage: fuel gauge, 20 cycles, baseline drifts by 0.3 W", RUNS, _covers(GAUGE, 20, 2.0, 0.3), coverage),
        Case("coverage: fuel gauge, 40 cycles of 0.5 W", RUNS, _covers(GAUGE, 40, 0.5, 0.3), coverage),
        Case("coverage: fuel gauge, 40 cycles, baseline wanders", RUNS, _covers(GAUGE, 40, 2.0, 0.0, 0.05), coverage),
        Case(
            "coverage: fuel gauge, 20 cycles of 0.4 W, which few runs resolve",
            LIMIT_RUNS,
            _covers(GAUGE, 20, 0.4, 0.3),
            coverage,
        ),
        Case("coverage: lines of a gauge in µA, 20 cycles of 1.5 W", LINE_RUNS, _covers_by_lines(1e-6, 1000), coverage),
        Case("coverage: lines of a gauge in mA, 20 cycles of 1.5 W", LINE_RUNS, _covers_by_lines(-1e-3, 1), coverage),
        Case("coverage: power rails, two that count, 20 cycles of 1.3 W", LINE_RUNS, _covers_by_rails, coverage),
        Case("coverage: steps of 0.03 W, hardly any noise", RUNS, _covers(STEPPED, 20, 2.0, 0.0), Goal(93)),
        Case("not resolved: fuel gauge, 20 cycles of 0.02 W", RUNS, _not_resolved(GAUGE, 20, 0.02), unresolved),
        Case("not resolved: fuel gauge, the model draws nothing", RUNS, _not_resolved(GAUGE, 20, 0.0), unresolved),
        Case("not resolved: steps of 0.5 W, hardly any noise", RUNS, _not_resolved(COARSE, 20, 0.4), unresolved),
    ]


def _covers(
    meter: SimulatedMeter, count: int, net_w: float, drift_w: float, wander_w: float = 0.0
) -> Callable[[Random], bool | None]:
    """Of resolved runs, whether the interval has the true joules."""

    def trial(random: Random) -> bool | None:
        found = _measured(random, meter, count, net_w, drift_w, wander_w)
        return found.low_j <= net_w * INFERENCE_S <= found.high_j if isinstance(found, EnergyEstimate) else None

    return trial


def _not_resolved(meter: SimulatedMeter, count: int, net_w: float) -> Callable[[Random], bool | None]:
    return lambda random: isinstance(_measured(random, meter, count, net_w, 0.3), EnergyNotResolved)


def _measured(
    random: Random, meter: SimulatedMeter, count: int, net_w: float, drift_w: float, wander_w: float = 0.0
) -> EnergyEstimate | EnergyNotResolved:
    """One run: idle, busy, idle in each cycle; `wander_w` is what a random walk of the baseline makes in a second."""
    run_s = 3 * WINDOW_S * count
    times = np.arange(0.0, run_s + meter.period_s, meter.period_s)
    loaded = (times // WINDOW_S).astype(int) % 3 == 1
    wander = wander_w * meter.period_s**0.5 * np.cumsum(random.normal(size=times.size))
    true_w = IDLE_W + drift_w * times / run_s + wander + net_w * loaded
    shown_w = np.round((true_w + meter.noise_w * random.normal(size=times.size)) / meter.step_w) * meter.step_w
    return estimate(_cut(times, shown_w, count, meter), run_s, HALF_WIDTH)


def _cut(times: FloatArray, shown_w: FloatArray, count: int, meter: SimulatedMeter) -> list[EnergyCycle]:
    readings = [PowerReading(at_s, watts) for at_s, watts in zip(times.tolist(), shown_w.tolist(), strict=True)]
    per_window = round(WINDOW_S / meter.period_s)

    def window_at(number: int) -> PowerWindow:
        near = readings[number * per_window : (number + 1) * per_window]
        start_s = number * WINDOW_S
        found = window(near, start_s + meter.period_s / 2, start_s + WINDOW_S - meter.period_s / 2, meter.step_w)
        assert found is not None, "a window is longer than three periods of each meter"
        return found

    return [
        EnergyCycle(window_at(3 * k), window_at(3 * k + 1), window_at(3 * k + 2), INFERENCE_S) for k in range(count)
    ]


GAUGE_CYCLES, GAUGE_PERIOD_S, GAUGE_NET_W, GAUGE_NOISE_W = 20, 1.0, 1.5, 0.15
REST_V, INNER_OHM = 4.0, 0.1


def _covers_by_lines(amperes: float, step: int) -> Callable[[Random], bool | None]:
    """Of runs that a gauge resolves, whether the interval has the true joules; from the lines that a phone prints.

    Args:
        amperes: of one of its units, negative where it turns the sign round.
        step: of its figure, in its units.
    """

    def trial(random: Random) -> bool | None:
        rest = _lines(random, np.zeros(60), amperes, step)
        scale, period = recognised(rest), period_s(rest)
        if not isinstance(scale, GaugeScale) or period is None:
            return False
        found = _measured_by_lines(random, scale, period, amperes, step)
        return found.low_j <= GAUGE_NET_W * INFERENCE_S <= found.high_j if isinstance(found, EnergyEstimate) else None

    return trial


def _measured_by_lines(
    random: Random, scale: GaugeScale, period: float, amperes: float, step: int
) -> EnergyEstimate | EnergyNotResolved:
    per_window = round(WINDOW_S / GAUGE_PERIOD_S)
    loaded = np.arange(3 * per_window * GAUGE_CYCLES) // per_window % 3 == 1
    updates = GaugeUpdates(scale, period)
    readings = [
        reading
        for line in _lines(random, loaded.astype(float), amperes, step)
        if (reading := updates.reading(line, 0.0)) is not None
    ]
    times = [
        CycleTimes(begun, begun + WINDOW_S, begun + 2 * WINDOW_S, begun + 3 * WINDOW_S, INFERENCE_S)
        for begun in (3 * WINDOW_S * cycle for cycle in range(GAUGE_CYCLES))
    ]
    planned = CyclePlan(GAUGE_CYCLES, WINDOW_S, SETTLE_PERIODS * period)
    return joules(readings, times, planned, HALF_WIDTH, step_of(readings))


def _lines(random: Random, loaded: FloatArray, amperes: float, step: int) -> list[GaugeLine]:
    """A phone's lines; `loaded`: for each period of the gauge, whether the model ran. It tells each period's mean."""
    watts = IDLE_W + 0.3 * np.linspace(0, 1, loaded.size) + GAUGE_NET_W * loaded
    watts = watts + GAUGE_NOISE_W * random.normal(size=loaded.size)
    volts = REST_V - INNER_OHM * watts / REST_V
    figures = np.rint(watts / volts / amperes / step).astype(int) * step
    millivolts = np.rint(1e3 * volts).astype(int)
    late_s = GAUGE_PERIOD_S * random.random()  # of its updates, against the windows
    nap_s = GAUGE_PERIOD_S / NAPS_PER_PERIOD
    lines = []
    for nap in range((loaded.size + 1) * NAPS_PER_PERIOD):
        update = int((nap * nap_s - late_s) // GAUGE_PERIOD_S) - 1
        if 0 <= update < loaded.size:
            lines.append(GaugeLine(nap * nap_s, int(figures[update]), int(millivolts[update]), None, "Discharging"))
    return lines


RAILS_CYCLES, RAILS_WINDOW_S = 20, 2.0
CPU_NET_W, MEMORY_NET_W, RAILS_NOISE_W = 1.0, 0.3, 0.4
FINE_S = 0.01  # of the simulated power


def _covers_by_rails(random: Random) -> bool | None:
    """Of runs that two rails resolve, whether the interval has the true joules.

    The phone's counters are read at moments of their own, and its clock is compared with the host's to 10 ms.
    """
    times = np.arange(0.0, 3 * RAILS_WINDOW_S * RAILS_CYCLES + 1, FINE_S)
    loaded = (times // RAILS_WINDOW_S).astype(int) % 3 == 1
    late_s, apart_s = POLL_S * random.random(), 0.01 * (2 * random.random() - 1)
    clock = UptimeClock((apart_s, 0.0), (apart_s + 1.0, 1.0))
    windows = [
        CycleTimes(begun, begun + RAILS_WINDOW_S, begun + 2 * RAILS_WINDOW_S, begun + 3 * RAILS_WINDOW_S, INFERENCE_S)
        for begun in (3 * RAILS_WINDOW_S * cycle for cycle in range(RAILS_CYCLES))
    ]
    planned = CyclePlan(RAILS_CYCLES, RAILS_WINDOW_S, RAILS_SETTLE * POLL_S)
    by_rail = []
    for net_w in (CPU_NET_W, MEMORY_NET_W):
        watts = IDLE_W / 2 + net_w * loaded + RAILS_NOISE_W * random.normal(size=times.size)
        joules_so_far = np.cumsum(watts * FINE_S)
        places = np.arange(round(late_s / FINE_S), times.size, round(POLL_S / FINE_S))
        counts = [(round(float(times[each]) + FINE_S, 3), round(1e6 * float(joules_so_far[each]))) for each in places]
        found = cycles_of(readings_of(PowerRail(0, "CPU", "CPU", counts), clock), windows, planned, 0.0)
        assert not isinstance(found, EnergyNotResolved), "a window is longer than five periods"
        by_rail.append(found)
    total = estimate([added(each) for each in zip(*by_rail, strict=True)], planned.run_s, HALF_WIDTH)
    true_j = (CPU_NET_W + MEMORY_NET_W) * INFERENCE_S
    return total.low_j <= true_j <= total.high_j if isinstance(total, EnergyEstimate) else None
