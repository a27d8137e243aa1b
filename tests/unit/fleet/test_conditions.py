"""A phone's condition around a measurement, from what real phones print."""

from pathlib import Path

import pytest

from farm.fleet.conditions import parse_conditions

PHONES = Path("tests/data/phones")


def read(kind, name):
    return (PHONES / kind / name).read_text(errors="replace")


def test_a_phone_on_a_cable():
    found = parse_conditions(
        {
            "battery": read("dumpsys_battery", "xiaomi-hyperos-usb-500mA.txt"),
            "thermal": read("thermalservice", "xiaomi13tpro-android16.txt"),
        }
    )
    assert found == {"temperature_c": 30.7, "throttle_status": 0, "battery_percent": 96, "charging": True}


@pytest.mark.parametrize("name", ["nvidia-shield-tv-pro-2019.txt", "bort-samsungoutput.txt"])
def test_the_status_stands_on_a_line_of_its_own(name):
    assert parse_conditions({"thermal": read("thermalservice", name)})["throttle_status"] == 0


def test_a_throttled_phone():
    assert (
        parse_conditions({"thermal": "IsStatusOverride: false\nThermal Status: 3\nCached:\n"})["throttle_status"] == 3
    )
    assert parse_conditions({"thermal": "Thermal Status: 9\n"})["throttle_status"] is None


def test_what_is_not_there_is_unknown():
    unknown = dict.fromkeys(("temperature_c", "throttle_status", "battery_percent", "charging"))
    assert parse_conditions({}) == unknown
    assert parse_conditions({"battery": read("dumpsys_battery", "updates-stopped-short.txt")})["charging"] is None
