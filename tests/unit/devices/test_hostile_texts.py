"""Texts that no phone in its senses prints: what is kept of them is bounded, and so is the work they make."""

import json
import re
import sys
from dataclasses import asdict
from pkgutil import iter_modules

import pytest
from hypothesis import given
from hypothesis import strategies as st

import farm.devices.health.probe
from farm.common.phone_text import SECTION
from farm.devices.health.probe.parse import (
    MAX_DROPPED,
    MAX_LINE_CHARACTERS,
    MAX_SECTION_CHARACTERS,
    MAX_TEMPERATURES,
    SECTIONS,
    cut_sections,
    parse_probe,
)
from farm.devices.identity.identity import RawIdentity, identify
from tests.unit.devices.captures import probe_answer, texts

MUCH = 1 << 18  # characters; four times what is kept of a section
POLICY = "/sys/devices/system/cpu/cpufreq/policy"


def said_in(section, text):
    return parse_probe(f"{SECTION}{section}\n{text}\n{SECTION}end\n".encode("utf-8", "replace"))


def in_bounds(health):
    record = asdict(health)
    return (
        len(health.temperatures) <= MAX_TEMPERATURES + 2
        and len(health.dropped) <= MAX_DROPPED + 1
        and len(health.cpu) <= 16
        and len(health.server) <= 64
        and all(len(each) <= 300 and (each.isprintable() or not each) for each in texts(record))
        and len(json.dumps(record)) < 300_000
    )


ROWS = {
    "zones": "thermal_zone{0} cpu{0}=40000\n",
    "thermal": "\tTemperature{{mValue=40.5, mType=3, mName=s{0}, mStatus=0}}\n",
    "processes": "{0} 1 1 R 99.0 100 tvm_rpc\n",
    "kernel": "[{0}.0] kgsl: gpu fault \x1b]0;x\x07\n",
    "cpu": POLICY + "{0}/related_cpus=999\n",
    "supply": "battery/TEMP={0}\n",
    "gpu": "/sys/class/kgsl/kgsl-3d0/gpuclk{0}=1\n",
    "battery": "  level: \x1b[31m{0}\n",
}
HEADS = {"thermal": "Current temperatures from HAL:\n", "processes": "PID PPID PGID S %CPU RSS NAME\n"}


@pytest.mark.parametrize("section", ROWS)
def test_a_flood_of_rows_is_kept_in_bounds(section):
    row = ROWS[section]
    body = HEADS.get(section, "") + "".join(row.format(number) for number in range(2, MUCH // len(row)))
    health = said_in(section, body)
    assert in_bounds(health)
    assert section in health.missing
    assert any(each.source == "probe" and each.sensor == section for each in health.dropped)


def test_thousands_of_zones_are_counted_not_kept():
    zones = "".join(f"thermal_zone{number} cpu{number}=40000\n" for number in range(1000))
    health = said_in("zones", zones)
    assert len(health.temperatures) == MAX_TEMPERATURES
    assert [each.raw for each in health.dropped] == [f"{1000 - MAX_TEMPERATURES} temperatures"]


def test_more_that_is_not_believed_than_any_phone_has_is_counted():
    health = said_in("zones", "".join(f"thermal_zone{number} cpu{number}=-40000\n" for number in range(1000)))
    assert len(health.dropped) == MAX_DROPPED + 1
    assert health.dropped[-1].raw == f"{1000 - MAX_DROPPED} more readings"


@pytest.mark.parametrize("unit", ["\n", "\r\n", " ", "\n ", "\x1b", "level: ", "kgsl ", "thermal_zone1 ", "0-999,"])
@pytest.mark.parametrize("section", SECTIONS)
def test_no_section_is_read_beyond_its_bounds(section, unit):
    output = f"{SECTION}{section}\n{unit * (MUCH // len(unit))}\n{SECTION}end\n"
    text = cut_sections(output.encode()).get(section)
    assert len(text) <= MAX_SECTION_CHARACTERS
    assert max(map(len, text.splitlines()), default=0) <= MAX_LINE_CHARACTERS
    assert in_bounds(said_in(section, unit * (4096 // len(unit))))


@pytest.mark.parametrize("listed", ["0-999," * 40_000, "0-999", "0-63," * 100, "64", "7 999"])
def test_cores_that_no_phone_has(listed):
    health = said_in("cpu", f"{POLICY}0/related_cpus={listed}\n{POLICY}4/related_cpus=4-7\n")
    assert [each.cores for each in health.cpu] == [(4, 5, 6, 7)]


def test_a_raw_value_of_a_finding_is_short_and_cannot_colour_a_terminal():
    health = said_in("battery", "  powered: x\n  level: " + "\x1b[31m" * 600)
    (odd,) = [each for each in health.dropped if each.sensor == "level"]
    assert len(odd.raw) <= 80
    assert odd.raw.startswith("\\x1b[31m")


def test_one_endless_line_costs_only_itself():
    battery = b"  level: 54\n  scale: 100\n"
    health = parse_probe(probe_answer(battery=battery + b"  log: " + b"x" * 5000 + b"\n  temperature: 312\n"))
    assert (health.battery.percent, health.battery.celsius) == (54, 31.2)
    assert "battery" in health.missing


@given(st.sampled_from(SECTIONS), st.text(max_size=300), st.integers(1, 60))
def test_any_text_is_kept_in_bounds(section, text, times):
    assert in_bounds(said_in(section, text * times))


def test_no_pattern_looks_for_blanks_over_many_lines():
    """`^\\s*` with MULTILINE begins at each newline and runs through all that follow: the square of their number."""
    for module in iter_modules(farm.devices.health.probe.__path__, "farm.devices.health.probe."):
        __import__(module.name)
    patterns = [
        value.pattern
        for name, module in list(sys.modules.items())
        if name.startswith(("farm.devices.", "farm.common."))
        for value in vars(module).values()
        if isinstance(value, re.Pattern) and value.flags & re.MULTILINE and isinstance(value.pattern, str)
    ]
    assert len(patterns) > 5
    assert [pattern for pattern in patterns if r"\s*" in pattern or r"\s+" in pattern] == []


IDENTITY_ROWS = {
    "files": "/sys/devices/system/cpu/cpufreq/policy{0}/scaling_governor=g{0}\x1b[2J\n",
    "cpuinfo": "processor\t: {0}\nFeatures\t: fp{0} asimd\x1b[2J\nHardware\t: \x1b]0;x\x07\n",
    "gles": "GLES: {0}\n",
    "getprop": "[a{0}]: [x]\n",
}


def of(section, body):
    return list(texts(asdict(identify(RawIdentity.parse(f"{SECTION}{section}\n{body}\n".encode())))))


@pytest.mark.parametrize("section", IDENTITY_ROWS)
def test_a_flood_of_rows_about_itself(section):
    row = IDENTITY_ROWS[section]
    said = of(section, "".join(row.format(number) for number in range(MUCH // len(row))))
    assert max(map(len, said)) < 1000
    assert sum(map(len, said)) < 50_000
    assert all(each.isprintable() for each in said)


PROPERTIES = (
    "ro.product.model", "ro.product.manufacturer", "ro.build.fingerprint", "ro.soc.model", "ro.soc.manufacturer",
    "ro.product.cpu.abilist", "farm.virtual.abi", "ro.board.platform", "ro.hardware.egl", "ro.serialno",
)  # fmt: skip


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("unit", ["\x1b[31m", "x", "a,", " \t", "kirin ", "powervr", "adreno "])
def test_a_property_without_end(name, unit):
    said = of("getprop", f"[{name}]: [{unit * (MUCH // len(unit))}]")
    assert max(map(len, said)) <= 200
    assert all(each.isprintable() for each in said)


def test_features_of_many_cores_are_compared_once_each():
    flags = " ".join(f"f{number}" for number in range(2000))
    said = of("cpuinfo", "".join(f"processor\t: {core}\nFeatures\t: {flags}\n" for core in range(64)))
    assert "f0" in said
    assert "f1999" not in said
