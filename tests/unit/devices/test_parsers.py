"""Parsers of what phones print, on texts that no capture has: getprop, cpuinfo, names of parts, sections of a probe."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.phone_text import SECTION, decode, parse_getprop, split_sections
from farm.devices.health.probe.battery import add_supply
from farm.devices.health.probe.system import parse_processes
from farm.devices.health.probe.thermal import parse_zones
from farm.devices.identity.cpu import MAX_CPUS, parse_cpu_list, read_cpu
from farm.devices.identity.soc import base_part, part_name, rows_of_model, rows_of_platform, vendor_name
from farm.model.health import Battery
from tests.unit.devices.captures import answer, capture, every

# --- getprop


def test_values_may_span_lines_and_properties_may_share_one():
    text = (
        "[a]: [1]\n[b]: [two\nlines\n\nand more]\n[c]: [3]      [d]: []\n[e]: [x [y] z]\nnoise\n[a]: [again]\n[f]: [cut"
    )
    assert parse_getprop(text) == {
        "a": "1",
        "b": "two\nlines\n\nand more",
        "c": "3",
        "d": "",
        "e": "x [y] z]\nnoise",
        "f": "cut",
    }


keys = st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True)
plain_values = st.text(st.characters(codec="utf-8", exclude_characters="[]\r"), max_size=30).map(str.strip)


@given(st.dictionaries(keys, plain_values, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_what_is_printed_is_read_back(properties, end):
    printed = "".join(f"[{key}]: [{value}]\n" for key, value in properties.items()).replace("\n", end)
    assert parse_getprop(decode(printed.encode())) == properties


@given(st.binary())
def test_any_bytes_are_properties(data):
    assert all(isinstance(value, str) for value in parse_getprop(decode(data)).values())


@pytest.mark.parametrize("path", every("getprop"), ids=lambda path: path.stem)
def test_almost_every_line_of_a_dump_is_a_property(path):
    text = decode(path.read_bytes())
    keys_seen = set(re.findall(r"^\[([^\]\s]+)\]: \[", text, re.MULTILINE))
    assert keys_seen <= set(parse_getprop(text))


# --- cpuinfo and cpufreq


def test_one_part_for_all_names_no_cluster_when_there_are_two_kinds():
    # Two Cortex-A72 and four Cortex-A53; the kernel prints the part of the core that ran `cat`.
    facts = read_cpu(decode(capture("cpuinfo/xiaomi-redmi-note-3")), {}, core_kinds=2)
    assert [(cluster.cores, cluster.name) for cluster in facts.clusters] == [(6, "")]
    assert facts.lead.mcpu == "cortex-a53"
    assert facts.hardware == "Qualcomm Technologies, Inc MSM8956"


def test_sleeping_cores_are_completed_from_sysfs():
    cpu = "/sys/devices/system/cpu/"
    sysfs = {
        f"{cpu}present": "0-9",
        f"{cpu}cpu0/cpufreq/related_cpus": "0 1 2 3",
        f"{cpu}cpu0/cpufreq/cpuinfo_max_freq": "1400000",
        f"{cpu}cpufreq/policy4/related_cpus": "4 5 6 7",
        f"{cpu}cpufreq/policy4/cpuinfo_max_freq": "2000000",
        f"{cpu}cpu8/regs/identification/midr_el1": "0x00000000410fd081",
    }
    facts = read_cpu(decode(capture("cpuinfo/meizu-pro-6")), sysfs)
    assert [(c.cores, c.name, c.max_khz) for c in facts.clusters] == [
        (4, "", 1400000),
        (4, "Cortex-A53", 2000000),
        (1, "Cortex-A72", 0),
        (1, "", 0),
    ]
    assert facts.cores == 10


def test_features_are_what_every_core_has():
    block = "processor : {}\nFeatures : {}\nCPU implementer : 0x41\nCPU part : {}\n\n"
    text = block.format(0, "fp asimd asimddp", "0xd05") + block.format(1, "fp asimd asimddp sve", "0xd44")
    assert read_cpu(text, {}).features == ("fp", "asimd", "asimddp")


def test_an_unknown_part_is_named_by_its_numbers():
    facts = read_cpu("processor : 0\nFeatures : fp asimd\nCPU implementer : 0x51\nCPU part : 0xabc\n", {})
    assert facts.clusters[0].name == "ARM 0x51/0xabc"
    assert facts.lead is None


@given(st.text())
def test_any_cpu_list_is_within_bounds(text):
    assert all(0 <= number < MAX_CPUS for number in parse_cpu_list(text))


CPUINFO_LINES = """
processor : 0
processor : 1
processor :
Processor : x
Features : fp asimd
Features :
CPU part : 0xd03
CPU part : -1
CPU implementer : 0x41
CPU implementer :
Hardware : y
vendor_id : z
model name : w
""".splitlines()


@given(st.lists(st.sampled_from(CPUINFO_LINES) | st.text(max_size=20), max_size=30), st.integers(0, 3))
def test_any_cpuinfo_counts_consistently(lines, kinds):
    facts = read_cpu("\n".join(lines), {}, kinds)
    assert sum(cluster.cores for cluster in facts.clusters) == facts.cores


# --- GPU and SoC names


@given(st.text())
def test_part_names_are_fixed_points(text):
    part = part_name(text)
    assert part_name(part) == part
    assert base_part(base_part(part)) == base_part(part)


def test_table_rows():
    assert {row.model for row in rows_of_platform("lahaina")} == {"SM8350", "SM8350-AC", "SM7325", "SM7325-AE"}
    assert {row.model for row in rows_of_model("SM8350")} == {"SM8350", "SM8350-AC"}
    assert [row.name for row in rows_of_model("sm8350-ac")] == ["Snapdragon 888+"]
    assert rows_of_model("") == rows_of_platform("") == rows_of_platform("nothing") == ()


def test_vendors():
    assert vendor_name("QTI") == "Qualcomm"
    assert vendor_name("Rockchip") == "Rockchip"
    assert vendor_name("", "MT6781") == "MediaTek"
    assert vendor_name("", "mystery") == ""


# --- sections


def test_sections():
    output = f"banner\r\n{SECTION}a\r\n1\r\n{SECTION}b\r\n{SECTION}a\r\n2\r\n".encode()
    assert split_sections(output) == {"": "banner", "a": "1\n2\n"}
    assert split_sections(output, last="a") == {"": "banner", "a": f"1\n{SECTION}b\n{SECTION}a\n2\n"}
    assert set(split_sections(answer("poco-f6-peridot"))) >= {"getprop"}


# --- sections of a probe


@pytest.mark.parametrize(
    ("status", "raw", "current_ma"),
    [
        ("Charging", 812_000, 812.0),
        ("Charging", -812_000, None),  # the driver's sign, or a cable too weak
        ("Discharging", 812_000, -812.0),
        ("Discharging", -812_000, -812.0),
        ("Full", 20_000, None),
        ("Discharging", 321, None),  # mA or µA
    ],
)
def test_a_current_whose_direction_is_sure(status, raw, current_ma):
    battery, _ = add_supply(Battery(), f"battery/POWER_SUPPLY_STATUS={status}\nbms/POWER_SUPPLY_CURRENT_NOW={raw}")
    assert battery.current_ma == current_ma


zone_names = st.sampled_from(["cpu-0", "pm8150b-ibat-lvl0", "soc", "battery", "vbat"])


@given(st.lists(st.tuples(zone_names, st.integers(-(10**9), 10**9)), max_size=20))
def test_zones_that_are_not_temperatures_never_show(zones):
    found, dropped = parse_zones("\n".join(f"{name}={value}" for name, value in zones))
    assert len(found) + len(dropped) <= len(zones)
    assert all(each.sensor in {"cpu-0", "battery"} and 5 <= each.celsius <= 120 for each in found)


def test_old_ps_names_the_server_without_shares():
    row = "shell     1396  244   325048 30552 ffffffff 4022e7fc R /data/local/tmp/farm/bundles/x/tvm_rpc"
    busiest, server = parse_processes(f"{decode(capture('ps/msm8226-android4-toolbox'))}\n{row}\n")
    assert busiest == ()
    assert [(each.pid, each.state, each.name, each.pgid) for each in server] == [(1396, "R", "tvm_rpc", -1)]
