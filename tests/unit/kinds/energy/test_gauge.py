"""The gauge as a meter, over a daemon that answers with lines of a phone."""

import pytest

from farm.common.errors import Code
from farm.kinds.energy.meter import LEARN_S, SILENT_S, GaugeMeter
from tests.support.errors import raises_code

UPTIME_S, BEHIND_S = 500.0, 0.03  # of the phone at the clock's 0; of a line that takes long


class FakePhone:
    """A phone whose gauge updates each second, and the clock that its lines pass by."""

    def __init__(self, amperes=lambda at_s: 0.3 + 0.001 * (at_s % 2), status="Discharging", silent_from_s=1e9):
        self.now_s, self._told_s = 0.0, 0.0
        self._amperes, self.status, self._silent_from_s = amperes, status, silent_from_s
        self.naps = []

    def call(self, verb, nap_s):
        assert verb == "gauge"
        lines = [] if self.naps else [(self.now_s, "gauge battery")]
        self.naps.append(nap_s)
        while self._told_s + nap_s <= min(self.now_s, self._silent_from_s):
            self._told_s += nap_s
            microamperes = -round(self._amperes(self._told_s // 1) * 1e6)
            text = f"{self._told_s + UPTIME_S:.2f} {microamperes} 4000000 - {self.status}"
            lines.append((self._told_s + (BEHIND_S if len(lines) % 3 else 0.0), text))
        return {"lines": lines}

    def clock(self):
        return self.now_s

    def wait(self, seconds):
        self.now_s += seconds


def meter_of(phone):
    return GaugeMeter(phone, clock=phone.clock, wait=phone.wait)


def test_readings_are_by_this_hosts_clock_and_one_an_update():
    phone = FakePhone()
    meter = meter_of(phone)
    assert meter.period_s() == pytest.approx(1.0, abs=0.11)
    learned_s = phone.now_s
    found = meter.until(learned_s + 10)
    assert len(found) == pytest.approx(10, abs=2)
    assert all(learned_s - 1 <= each.at_s <= phone.now_s for each in found)
    assert [each.watts for each in found] == pytest.approx([1.2] * len(found), rel=0.01)
    assert meter.step(found) == pytest.approx(0.001)
    assert phone.naps[-1] == pytest.approx(0.25, abs=0.03)
    about = {"source": "fuel gauge", "name": "battery", "figure": "current", "unit": "µA"}
    assert meter.about() == {**about, "sign": "negative while discharging"}


def test_a_gauge_that_always_says_the_same_is_refused():
    phone = FakePhone(amperes=lambda _: 0.3)
    with raises_code(Code.POWER_NOT_MEASURABLE, match="did not change several times in 90 s"):
        meter_of(phone).period_s()
    assert phone.now_s == pytest.approx(LEARN_S, abs=1)


def test_a_cable_that_feeds_the_phone_again_ends_it():
    phone = FakePhone()
    meter = meter_of(phone)
    meter.period_s()
    phone.status = "Charging"
    with raises_code(Code.POWER_NOT_MEASURABLE, match="its battery says 'Charging' and not that it discharges"):
        meter.until(phone.now_s + 10)


def test_a_silent_gauge_is_not_waited_for_for_ever():
    phone = FakePhone(silent_from_s=20.0)
    meter = meter_of(phone)
    meter.period_s()
    with raises_code(Code.GAUGE_FAILED, match=f"has told nothing for {SILENT_S:.0f} s"):
        meter.until(1000.0)
    assert phone.now_s < 20 + SILENT_S + 2


def test_lines_that_are_none_are_refused():
    phone = FakePhone(status="")
    with raises_code(Code.GAUGE_FAILED, match="is not understood"):
        meter_of(phone).period_s()
