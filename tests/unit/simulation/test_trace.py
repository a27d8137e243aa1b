"""Traces: read whole or refused with the line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import UserError
from farm.simulation.state import BatteryStatus
from farm.simulation.trace import files_of_probe, parse_trace, torn_line

PROBE = """\
==farm:boot
boot_id=x
==farm:battery
Current Battery Service state:
  level: 54
==farm:cpu
/sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq=864000
==farm:supply
battery/POWER_SUPPLY_CAPACITY=54
battery/cycle_count=211
==farm:zones
thermal_zone3 skin therm=41200
==farm:end
"""


def test_a_probe_becomes_the_files_it_read():
    assert files_of_probe(PROBE) == {
        "dumpsys/battery": "Current Battery Service state:\n  level: 54\n",
        "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "864000\n",
        "sys/class/power_supply/battery/cycle_count": "211\n",
        "sys/class/thermal/thermal_zone3/type": "skin therm\n",
        "sys/class/thermal/thermal_zone3/temp": "41200\n",
    }


def test_moments():
    lines = [
        {"t": 0, "state": {"battery_level": 3, "battery_status": 3}},
        {"t": 1.5, "probe": PROBE, "files": {"dumpsys/battery": "nothing\n"}},
    ]
    first, second = parse_trace("\n".join(map(json.dumps, lines)) + "\n\n")
    assert (first.at_s, first.state) == (0, {"battery_level": 3, "battery_status": BatteryStatus.DISCHARGING})
    assert second.files["dumpsys/battery"] == "nothing\n"  # said outright: it counts more than the probe's
    assert second.files["sys/class/thermal/thermal_zone3/temp"] == "41200\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("{}", "line 1"),
        ('{"t": 0}\nnonsense', "line 2"),
        ('{"t": 0, "he\n{"t": 1}\n', "line 1"),  # only the last line may be cut
        ('{"t": 5}\n{"t": 4}', "time goes back"),
        ('{"t": 0, "state": {"mood": 3}}', "mood"),
        ('{"t": 0, "state": {"battery_level": 300}}', "300 is not a percentage"),
        ('{"t": 0, "files": {"../../etc/passwd": "x"}}', "no file of a phone"),
        ('{"t": 0, "files": {"data/x": "x"}}', "no file of a phone"),
        ('{"t": 0, "weather": 1}', "weather"),
        ('{"t": NaN}', "no time"),
        ("[1]", "line 1"),
    ],
)
def test_what_is_no_trace(text, words):
    with pytest.raises(UserError, match=words):
        parse_trace(text)


LINES = '{"t": 0}\n{"t": 1, "files": {"dumpsys/battery": "30 °C\u2028"}}\n'


@given(st.integers(1, len(LINES) - 1))
def test_a_trace_that_was_cut_keeps_its_whole_lines(length):
    cut = LINES[:length]
    whole, torn = torn_line(cut)
    assert whole + torn == cut
    assert bool(torn) == (length not in (8, 9, len(LINES) - 1))
    if length >= 8:
        assert len(parse_trace(cut)) == (1 if length < len(LINES) - 1 else 2)


@given(st.text())
def test_any_probe_gives_only_files_of_sensors(text):
    for name in files_of_probe("==farm:supply\n" + text + "\n==farm:zones\n" + text):
        assert name.startswith(("dumpsys/", "sys/"))
        assert ".." not in name
