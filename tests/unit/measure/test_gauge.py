from pathlib import Path

import pytest

from farm.measure.gauge import (
    GaugeLine,
    GaugeScale,
    GaugeUpdates,
    figure_of,
    gauge_line,
    period_s,
    recognised,
    why_fed,
)
from tests.support.pages import ROOT

CAPTURES = ROOT / "tests" / "data" / "phones" / "power_supply"


def lines(*currents, voltage=3_900_000, status="Discharging", every_s=0.5):
    return [GaugeLine(10 + every_s * n, each, voltage, None, status) for n, each in enumerate(currents)]


def counted(*counters, every_s=2.0):
    return [GaugeLine(10 + every_s * n, None, 3900, each, "3") for n, each in enumerate(counters)]


def captured(name):
    """The line that gauge.sh makes of a captured uevent."""
    fields = dict(line.split("=", 1) for line in Path(CAPTURES, name).read_text().splitlines())
    words = (fields.get(f"POWER_SUPPLY_{each}", "-") for each in ("CURRENT_NOW", "VOLTAGE_NOW", "CHARGE_COUNTER"))
    found = gauge_line(f"100.25 {' '.join(words)} {fields['POWER_SUPPLY_STATUS']}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("12.34 -450000 3900000 2400000 Discharging", GaugeLine(12.34, -450000, 3900000, 2400000, "Discharging")),
        ("12.34 - 3900 1000 Not charging", GaugeLine(12.34, None, 3900, 1000, "Not charging")),
        ("12.34 - 3900 1000", None),
        ("soon 1 2 3 Full", None),
        ("nan 1 2 3 Full", None),
        ("12.34 1.5 2 3 Full", None),
        (f"12.34 {'9' * 400} 2 3 Full", None),
    ],
)
def test_a_line(text, wanted):
    assert gauge_line(text) == wanted


@pytest.mark.parametrize(
    ("told", "unit", "per_unit"),
    [
        (lines(-450_000, -451_000), "µA", -1e-6),
        (lines(450_000, 451_000), "µA", 1e-6),
        (lines(-450, -451, voltage=3900), "mA", -1e-3),
        (lines(15_000, 16_000), "µA", 1e-6),
        ([captured("axp22-discharging-uevent.txt")], "µA", 1e-6),
        (counted(3_000_000, 2_999_900, 2_999_700, 2_999_600), "µAh", -3600e-6),
        (counted(3000, 2999, 2998, 2997, every_s=9.0), "mAh", -3.6),
    ],
    ids=["kernel", "turned sign", "mA", "little", "axp22", "counter", "counter in mAh"],
)
def test_units_and_signs_are_recognised(told, unit, per_unit):
    found = recognised(told)
    assert isinstance(found, GaugeScale)
    assert (found.unit, found.per_unit) == (unit, pytest.approx(per_unit))
    assert found.volts(told[0]) == pytest.approx(3.9, abs=0.1)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (lines(-450_000, -451_000, status="Charging"), "its battery says 'Charging'"),
        (lines(-450_000, 451_000), "currents of both signs"),
        (lines(0, 0), "neither a current nor a charge"),
        (lines(-8_000, -8_000), "neither in µA nor in mA is that the power of a phone that is awake"),
        (lines(-450_000, -451_000, voltage=65_535_000), "no voltage of a battery"),
        (lines(-450_000, -451_000, voltage=None), "no voltage of a battery"),
        (counted(3000, 3001, 3002), "does not fall"),
        ([captured("bq27000-uncalibrated.txt")], "its battery says 'Full'"),
        ([captured("moto-xt1072-uevent.txt")], "its battery says 'Full'"),
    ],
    ids=["charging", "signs", "zero", "unit", "volts", "no volts", "counter", "bq27000", "moto"],
)
def test_what_cannot_be_believed_has_no_scale(told, said):
    found = recognised(told)
    assert isinstance(found, str)
    assert said in found


def test_the_period_is_that_of_changes_which_are_seen():
    assert period_s(lines(*[-450_000 - n // 2 for n in range(14)])) == pytest.approx(1.0)
    assert period_s(lines(*[-450_000] * 40)) is None
    assert figure_of(lines(0, 0)) == ""


def test_a_phone_that_is_fed_in_the_middle_is_noticed():
    assert not why_fed(lines(-450_000, -450_000))
    assert "Not charging" in why_fed([*lines(-450_000), *lines(0, status="Not charging")])
    assert why_fed(lines(None, status="-")) == "its battery tells no status"


def test_a_current_is_read_once_an_update():
    told = lines(-400_000, -400_000, -500_000, -500_000, -500_000, -500_000)
    scale = recognised(told)
    assert isinstance(scale, GaugeScale)
    updates = GaugeUpdates(scale, period=1.0)
    found = [reading for line in told if (reading := updates.reading(line, 1000.0)) is not None]
    assert [each.at_s for each in found] == [1010.0, 1011.0, 1012.0]
    assert [each.watts for each in found] == pytest.approx([0.4 * 3.9, 0.5 * 3.9, 0.5 * 3.9])
    assert [each.volts for each in found] == pytest.approx([3.9] * 3)


@pytest.mark.parametrize("voltage", [0, -3_900_000, 65_535_000_000], ids=str)
def test_a_line_with_a_voltage_that_no_battery_has_is_no_reading(voltage):
    scale = recognised(lines(-450_000, -451_000))
    assert isinstance(scale, GaugeScale)
    assert GaugeUpdates(scale, 0.5).reading(lines(-450_000, voltage=voltage)[0], 0.0) is None


def test_a_counter_gives_the_mean_since_its_last_change():
    told = counted(3000, 3000, 2999, 2999, 2999, 2998, every_s=9.0)
    scale = recognised(told)
    assert isinstance(scale, GaugeScale)
    updates = GaugeUpdates(scale, period=18.0)
    found = [reading for line in told if (reading := updates.reading(line, 0.0)) is not None]
    assert [each.at_s for each in found] == [28.0, 55.0]
    assert [each.watts for each in found] == pytest.approx([3.6 / 18 * 3.9, 3.6 / 27 * 3.9])
