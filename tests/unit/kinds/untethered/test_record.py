"""What a phone wrote down while it was alone: the joules, and each way in which it can have gone wrong."""

import numpy as np
import pytest

from farm.common.errors import Code
from farm.kinds.energy.cycles import CyclePlan, even_plan
from farm.kinds.untethered.executor import RunRecord, check_time, energy_of, read_marks
from farm.measure.energy import EnergyEstimate, EnergyNotResolved
from tests.support.errors import raises_code

PLAN = even_plan(240.0)  # 20 cycles, windows of 4 s
CUT_S, FIRST_S, NAP_S = 100.0, 115.0, 0.25
IDLE_W, NET_W, CALLS, RUNS = 1.2, 2.0, 8, 5
TRUE_J = NET_W * PLAN.window_s / (CALLS * RUNS)


def marks(cycles=PLAN.cycles, last="done", boot="one"):
    lines = [f"boot {boot}"]
    for cycle in range(cycles):
        at = [FIRST_S + (3 * cycle + window) * PLAN.window_s for window in range(4)]
        lines += [f"idle {at[0]:.2f} ", f"busy {at[1]:.2f} ", f"rest {at[2]:.2f} {CALLS}", f"end {at[3]:.2f} "]
    return "\n".join([*lines, last])


def gauge(period_s=0.5, slept=(), fed_from_s=1e9, cut_s=CUT_S):
    """A gauge's lines; it is silent between the seconds of `slept`."""
    random = np.random.default_rng(3)
    noise_w = 0.1 * random.normal(size=2000)
    lines = ["gauge battery"]
    for nap in range(1200):
        at_s = 95.0 + NAP_S * nap
        if slept and slept[0] < at_s < slept[1]:
            continue
        update = int(at_s / period_s) - 1  # it tells the mean of a period that is over
        loaded = at_s >= FIRST_S and int((update * period_s - FIRST_S) // PLAN.window_s) % 3 == 1
        microamperes = round((IDLE_W + NET_W * loaded + noise_w[update]) / 4.0 * 1e6)
        status = "Discharging" if cut_s <= at_s < fed_from_s else "Charging"
        lines.append(f"{at_s:.2f} {-microamperes} 4000000 - {status}")
    return "\n".join(lines)


def found(text=None, said=None, boot="one"):
    record = read_marks(marks() if text is None else text)
    return energy_of(record, gauge() if said is None else said, PLAN, runs=RUNS, half_width=0.1, boot=boot)


def test_the_joules_of_a_run_are_found():
    estimate, about = found()
    assert isinstance(estimate, EnergyEstimate)
    assert estimate.low_j <= TRUE_J <= estimate.high_j
    assert estimate.inference_s == pytest.approx(PLAN.window_s / (CALLS * RUNS))
    assert (about["source"], about["name"], about["unit"]) == ("fuel gauge", "battery", "µA")
    assert about["period_s"] == pytest.approx(0.5)


def test_a_slow_gauge_says_how_long_the_run_must_be():
    unresolved, _ = found(said=gauge(period_s=2.0))
    assert isinstance(unresolved, EnergyNotResolved)
    assert unresolved.needed_s == pytest.approx(6.5 * 2.0 * 60, rel=0.15)


@pytest.mark.parametrize(
    ("text", "said", "boot", "code", "match"),
    [
        ("", None, "one", Code.UNTETHERED_FAILED, "has no record of its run"),
        (None, None, "two", Code.UNTETHERED_FAILED, "rebooted while it was alone"),
        (marks(7, "failed the program ended with exit code 9: x"), None, "one", Code.PROGRAM_FAILED, "exit code 9: x"),
        (marks(7, ""), None, "one", Code.UNTETHERED_FAILED, "had done 7 of 20 cycles"),
        (None, gauge(slept=(150.0, 190.0)), "one", Code.UNTETHERED_FAILED, "slept for 40 s"),
        (None, gauge(cut_s=1e9), "one", Code.POWER_NOT_MEASURABLE, "'Charging' and not that it discharges, though its"),
        (None, "", "one", Code.POWER_NOT_MEASURABLE, "it said nothing, though its port had no power"),
        (None, gauge(cut_s=125.0), "one", Code.UNTETHERED_FAILED, "noticed only 10 s after"),
        (None, gauge(fed_from_s=200.0), "one", Code.POWER_NOT_MEASURABLE, "in the middle of the run its battery says"),
    ],
    ids=["nothing", "reboot", "program", "not done", "slept", "fed", "no gauge", "late", "fed again"],
)
def test_a_run_that_went_wrong_is_one_clear_error(text, said, boot, code, match):
    with raises_code(code, match=match):
        found(text, said, boot)


@pytest.mark.parametrize(
    ("text", "record"),
    [
        (
            "boot x\nidle 1.00 \nrest 2.00 4\nbusy\nbusy z\nidle 3.00 \nbusy 4.00 \nrest 5.00 0\nend 6.00",
            RunRecord("x"),
        ),
        ("\x00\xff\n\nidle", RunRecord()),
        (f"idle ²\nidle 1\nbusy 2\nrest 3 {'9' * 5000}\nend 4\nidle 1\nbusy 2\nrest 3 ²\nend 4", RunRecord()),
    ],
    ids=["places", "bytes", "numbers"],
)
def test_marks_that_are_not_whole_are_left_out(text, record):
    assert read_marks(text) == record


def test_a_torn_last_line_of_the_gauge_is_left_out():
    assert found(said=f"{gauge()}\n200.00 -300000 4000000 - Disch")[0] == found(said=f"{gauge()}\n")[0]


def test_a_run_beyond_its_time_limit_is_refused_before():
    check_time(300.0, 301.0)
    with raises_code(Code.POWER_NOT_MEASURABLE, match="away for 2060 s, and the attempt may last 1075 s more"):
        check_time(2060.0, 1075.0)


def test_windows_are_even():
    assert isinstance(PLAN, CyclePlan)
    assert (PLAN.cycles, PLAN.window_s) == (20, 4.0)
    assert even_plan(3000.0).cycles == 100
