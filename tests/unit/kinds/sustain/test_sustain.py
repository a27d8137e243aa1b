import math
from types import SimpleNamespace

import numpy as np
import pytest

from farm.common.errors import Code, HostError
from farm.kinds.energy import PowerSource
from farm.kinds.energy.meter import Meter
from farm.kinds.sustain import SustainSpec
from farm.kinds.sustain.command import print_results, ranking, remarks
from farm.kinds.sustain.page import PAGE
from farm.kinds.sustain.worker import RunPower, report, run_power, run_through, verdict_on
from farm.measure.conditions import PhoneCondition
from farm.measure.energy import PowerReading
from farm.simulation.physics import AMBIENT_C, IDLE_GPU_W, cpu_watts, heat, throttling_of
from farm.simulation.state import PhoneState, ThrottlingStatus
from farm.web.plots import PlotSource
from tests.support.errors import raises_code

FRESH_S = 0.02


class WarmPhone:
    """A phone with some busy cores in simulated time: it warms while it is timed, and its clock falls in steps."""

    def __init__(self, cores=2.0):
        self.cores, self.now_s, self.temps_c = cores, 0.0, dict(PhoneState().temps_c)
        self.status, self.share, self.throttled_at_s = ThrottlingStatus.NONE, 1.0, None

    def timer(self, number, repeat):
        seconds = FRESH_S / self.share * (1 + 0.001 * (int(self.now_s * 7) % 5))
        self._pass(number * repeat * seconds)
        return [seconds] * repeat

    def look(self):
        self._pass(0.2)
        return PhoneCondition(temperature_c=self.temps_c["battery"], throttle_status=self.status.value)

    def _pass(self, seconds):
        self.now_s += seconds
        watts = {"cpu": cpu_watts(self.cores, self.share), "gpu": IDLE_GPU_W}
        self.temps_c = heat(self.temps_c, watts, AMBIENT_C, seconds)
        self.status, self.share = throttling_of(self.temps_c["skin"], self.status)
        if self.share < 1 and self.throttled_at_s is None:
            self.throttled_at_s = self.now_s


def course_of(phone, sustain_s=1800.0, stop_c=53.0):
    return run_through(phone.timer, phone.look, sustain_s, stop_c, clock=lambda: phone.now_s)


def test_the_course_of_a_phone_that_throttles():
    phone = WarmPhone()
    found = report(course_of(phone), 1800.0)
    assert found["throttled_after_s"] == pytest.approx(phone.throttled_at_s, rel=0.05)
    assert found["plateau"]["median_ms"] == pytest.approx(1000 * FRESH_S / phone.share, rel=0.05)
    assert found["slowdown"] == pytest.approx(1 / phone.share, rel=0.05)
    assert [row["start_s"] for row in found["buckets"]] == [60.0 * minute for minute in range(30)]
    assert all(row["low_ms"] <= row["median_ms"] <= row["high_ms"] for row in found["buckets"])
    celsius = [row["celsius"] for row in found["buckets"]]
    assert celsius[-1] > celsius[0] + 5
    assert found["buckets"][-1]["throttle_status"] > 0
    assert (found["stopped"], found["wanted_s"]) == ("", 1800.0)
    assert found["seconds"] >= 1800


def test_a_battery_that_becomes_too_hot_ends_the_run_with_what_there_is():
    course = course_of(WarmPhone(cores=4.0), stop_c=34.0)
    found = report(course, 1800.0)
    assert found["stopped"].startswith("the battery reached 34.")
    assert 0 < found["seconds"] < 1800
    assert found["buckets"]
    result = {"stopped": found["stopped"], "seconds": 312.0, "plateau": None, "certificate": {"notes": []}}
    assert remarks(result) == [
        f"ended after 5m 12s: {found['stopped']}",
        "no plateau: its speed still changed at the end",
    ]


def test_a_phone_that_is_too_hot_from_the_start_gives_a_sample_at_least():
    course = course_of(WarmPhone(), stop_c=0.0)
    assert course.stopped
    assert report(course, 1800.0)["buckets"]


def test_a_short_run_has_as_many_buckets_and_a_phone_without_thermometer_has_a_course():
    phone = WarmPhone()
    course = run_through(phone.timer, PhoneCondition, 10.0, 53.0, clock=lambda: phone.now_s)
    found = report(course, 10.0)
    assert len(found["buckets"]) == 10
    assert found["throttled_after_s"] is None
    assert found["buckets"][0]["celsius"] is None


def test_watts_between_looks_become_joules_of_each_minute_and_of_the_plateau():
    phone = WarmPhone()
    course = course_of(phone)
    course.watts = [3.0] * (len(course.looks) - 1)
    course.watts[:4] = [None, None, None, None]  # the first minute
    found = report(course, 1800.0)
    assert (found["buckets"][0]["busy_w"], found["buckets"][0]["gross_j"]) == (None, None)
    assert (found["buckets"][-1]["busy_w"], found["plateau"]["busy_w"]) == (3.0, 3.0)
    assert found["plateau"]["gross_j"] == pytest.approx(3e-3 * found["plateau"]["median_ms"], rel=0.01)
    assert course.to_wire()["watts"] == course.watts


class SimulatedMeter(Meter):
    """A power meter with readings each 10 ms of simulated time."""

    settle_periods = 1.5

    def __init__(self, phone, watts, fails_at_s=math.inf, period_s=0.01):
        self.phone, self.watts, self.fails_at_s = phone, watts, fails_at_s
        self.read_to_s, self._period_s = 0.0, period_s

    def period_s(self):
        return self._period_s

    def about(self):
        return {"source": "meter"}

    def until(self, end_s):
        if end_s > self.fails_at_s:
            raise HostError("the power meter (m) ended with 1")
        now_s = self.phone.now_s
        assert end_s <= now_s, "a meter is asked for what it has told, and the phone does not wait"
        times = np.arange(self.read_to_s + self._period_s, now_s, self._period_s)
        self.read_to_s = float(times[-1]) if times.size else self.read_to_s
        return [PowerReading(float(at_s), self.watts(at_s)) for at_s in times]


class SimulatedRails(SimulatedMeter):
    """Two rails that tell in batches of half a minute, at moments of their own, and a third that does not count."""

    counted = ("CPU", "GPU")

    def until(self, end_s):
        return self.rest() if self.phone.now_s - self.read_to_s > 30 else []

    def rest(self):
        found = SimulatedMeter.until(self, self.read_to_s)
        return [
            PowerReading(each.at_s + late_s, watts, rail=rail)
            for rail, watts, late_s in (("CPU", 2.0, 0.0), ("GPU", 0.5, 0.1), ("Display", 0.9, 0.0))
            for each in found
        ]


def powered_course(phone, meter):
    power = RunPower(meter, clock=lambda: phone.now_s)
    course = run_through(phone.timer, power.around(phone.look), 1800.0, 53.0, clock=lambda: phone.now_s)
    power.end()
    course.watts = power.watts
    return power, course


def test_the_power_of_a_look_is_in_no_stretch():
    phone = WarmPhone()
    power, course = powered_course(phone, SimulatedMeter(phone, lambda at_s: 2.0 if at_s > 0.2 else 9.0))
    assert len(course.watts) == len(course.looks) - 1
    assert course.watts == pytest.approx([2.0] * len(course.watts))
    assert power.notes() == []


def test_a_meter_that_fails_leaves_what_it_has_said():
    phone = WarmPhone()
    power, course = powered_course(phone, SimulatedMeter(phone, lambda _: 2.0, fails_at_s=900.0))
    found = report(course, 1800.0)
    assert (found["buckets"][0]["busy_w"], found["buckets"][-1]["busy_w"]) == (pytest.approx(2.0), None)
    assert power.notes() == ["its power is not known to the end: the power meter (m) ended with 1"]


def test_rails_add_up_in_batches_of_their_own():
    phone = WarmPhone()
    meter = SimulatedRails(phone, lambda _: 0.0, period_s=0.25)
    power, course = powered_course(phone, meter)
    assert course.watts == pytest.approx([2.5] * (len(course.looks) - 1))
    assert power.about() == {"source": "meter", "period_s": 0.25}
    assert power.notes() == []


def test_of_readings_only_those_are_kept_that_a_stretch_awaits():
    phone, kept = WarmPhone(), []
    power = RunPower(SimulatedRails(phone, lambda _: 0.0, period_s=0.25), clock=lambda: phone.now_s)
    look = power.around(phone.look)
    for _ in range(100):
        look()
        phone.timer(1000, 1)
        kept.append(len(power._readings))
    assert max(kept[-50:]) <= max(kept[:50])


def test_a_source_too_slow_for_a_run_is_named():
    phone = WarmPhone()
    power, course = powered_course(phone, SimulatedMeter(phone, lambda _: 2.0, period_s=9.0))
    assert set(course.watts) == {None}
    assert power.notes() == ["its power is not known: a reading every 9 s is too rare between two looks at the phone"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (PowerSource(none="p has no power meter"), "p has no power meter"),
        (PowerSource(meter=("/absent/meter",)), "the power meter (/absent/meter) cannot be started"),
    ],
)
def test_a_phone_without_a_source_and_one_whose_meter_does_not_start_have_no_power(source, why):
    with run_power(source, SimpleNamespace(progress=lambda _: None)) as power:
        look = power.around(PhoneCondition)
        look(), look()
        power.end()
    assert (power.watts, power.about()) == ([None], None)
    (note,) = power.notes()
    assert note.startswith(f"its power is not known: {why}")


def test_columns_of_power_stand_only_where_there_is_power(capsys):
    done = {
        **report(course_of(WarmPhone()), 1800.0), "device": "p1", "soc": "x", "certificate": {"notes": []},
    }  # fmt: skip
    print_results([done])
    assert "POWER" not in capsys.readouterr().out
    done["buckets"][-1]["busy_w"] = 2.5
    done["plateau"] |= {"busy_w": 2.5, "gross_j": 0.05}
    print_results([done])
    assert capsys.readouterr().out.splitlines()[1].endswith("2.500 W  50.00 mJ")


def spec(**fields):
    return SustainSpec.from_wire({"on": "android", "model": "0" * 64, "name": "a.onnx", **fields})


def test_a_run_fits_into_its_time_limit():
    with raises_code(Code.BAD_SPEC, match="a run of 1800 s does not fit") as raised:
        spec(timeout_s=1800.0)
    assert "timeout_s = 2400" in raised.value.hint
    assert spec(**SustainSpec.completed({"sustain_s": 3600.0})).timeout_s == 4200
    assert spec(**SustainSpec.completed({"timeout_s": 9000.0})).timeout_s == 9000


def result(device, *medians_ms):
    rows = [
        {"median_ms": each, "low_ms": each, "high_ms": each, "start_s": 60.0 * at, "celsius": 30.0 + at}
        for at, each in enumerate(medians_ms)
    ]
    return {
        "device": device, "buckets": rows, "throttled_after_s": 61.0, "plateau": None, "seconds": 120.0,
        "bucket_s": 60.0,
    }  # fmt: skip


def test_phones_are_ranked_in_the_first_minute_and_at_the_end():
    found = ranking([result("quick", 2.0, 5.0), result("steady", 3.0, 3.0)])
    assert found == [
        "first minute: 1. quick 2.000 ms, 2. steady 3.000 ms",
        "at the end: 1. steady 3.000 ms, 2. quick 5.000 ms",
    ]
    assert ranking([result("alone", 1.0)]) == []
    short = ranking([result("quick", 2.0, 5.0) | {"bucket_s": 0.5}] * 2)
    assert short[0].startswith("first 0.5 s: 1. quick")


def test_the_page_draws_the_course():
    (plot,) = PAGE.plots(PlotSource(shown={"result": result("p1", 2.0, 5.0)}))
    assert plot.summary == "2.000 ms at first, 5.000 ms at the end: it throttled after 1m 1s."
    assert [panel.label for panel in plot.panels] == ["one run, ms", "°C"]
    assert plot.table.rows[1] == ("1", "5.000", "5.000", "5.000", "31.0", "", "")
    assert PAGE.plots(PlotSource(shown={"result": {"buckets": [{"median_ms": None}]}})) == []
    assert PAGE.plots(PlotSource(shown={})) == []


def test_a_run_is_in_histories_by_its_end_and_its_slowdown():
    found = report(course_of(WarmPhone()), 1800.0)
    told = verdict_on(found)
    assert told["values"]["latency at the end"]["value"] == pytest.approx(found["end"]["median_ms"] / 1e3)
    assert (told["verdict"], told["values"]["slowdown"]["value"]) == ("trusted", found["slowdown"])
    cut = verdict_on({**found, "stopped": "too hot", "plateau": None})
    assert [each["code"] for each in cut["reasons"]] == ["ended_early", "no_plateau"]
    assert cut["verdict"] == "suspect"
