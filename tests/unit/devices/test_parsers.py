"""Parsers of what phones print, on texts that no capture has: getprop, cpuinfo, names of parts, sections of a probe."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.phone_text import SECTION, decode, parse_getprop, split_sections
from farm.devices.health.probe.battery import add_supply, parse_dumpsys
from farm.devices.health.probe.system import parse_boot, parse_cpu, parse_data, parse_gpu, parse_processes
from farm.devices.health.probe.thermal import parse_thermalservice, parse_zones
from farm.devices.identity.cpu import MAX_CPUS, parse_cpu_list, read_cpu
from farm.devices.identity.soc import base_part, part_name, rows_of_model, rows_of_platform, vendor_name
from farm.model.health import Battery, ThrottleStatus
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


def test_vendor_logs_among_the_fields_are_not_fields():
    said = """Current Battery Service state:
  USB powered: true
09-12 10:11:12.131 D/BatteryService level:71, temperature:990
  level: 40
  Capacity level: -1
  temperature: 26
  voltage: 13
  charge counter: 12
  level: 99
"""
    battery, dropped = parse_dumpsys(said)
    assert battery == Battery(40, powered_by=("usb",))
    assert {(each.sensor, each.raw) for each in dropped} == {("temperature", "26"), ("voltage", "13")}


def test_the_gauge_counts_where_somebody_set_the_services_values():
    stopped, dropped = parse_dumpsys("  UPDATES STOPPED\n  level: 40\n")
    assert (stopped, [each.raw for each in dropped]) == (Battery(), ["UPDATES STOPPED"])
    assert add_supply(stopped, "battery/POWER_SUPPLY_CAPACITY=100")[0].percent == 100


def test_a_gauge_without_a_battery_tells_nothing():
    battery, dropped = add_supply(Battery(), "battery/POWER_SUPPLY_PRESENT=0\nbattery/POWER_SUPPLY_CAPACITY=50\n")
    assert (battery, [each.raw for each in dropped]) == (Battery(), ["PRESENT=0"])


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


def test_capacities_in_mah_and_those_that_cannot_be():
    said = "battery/charge_full=3900\nbattery/charge_full_design=4000000\n"
    assert add_supply(Battery(), said)[0] == Battery(full_uah=3_900_000, design_uah=4_000_000)
    said = "battery/charge_full=9000000\nbattery/charge_full_design=4000000\n"
    battery, dropped = add_supply(Battery(), said)
    assert (battery.full_uah, [each.sensor for each in dropped]) == (None, ["CHARGE_FULL"])


def test_a_status_that_somebody_set_or_that_there_is_not_counts_for_nothing():
    assert parse_thermalservice("IsStatusOverride: true\nThermal Status: 5\n")[0].throttle is None
    assert parse_thermalservice("Thermal Status: 9\n")[0].throttle is None
    assert parse_thermalservice("Thermal Status: 3\nCached:\n")[0].throttle is ThrottleStatus.SEVERE
    sentinel = "Current temperatures from HAL:\n\tTemperature{mValue=0.0, mType=3, mName=SUBBAT, mStatus=4}\n"
    assert parse_thermalservice(sentinel)[0].throttle is None


@pytest.mark.parametrize(
    "more",
    [
        "HAL Ready: false\n",
        "HAL Ready: true\nHAL connection:\n\tThermalHAL AIDL 3  connected: no\n",
        "HAL Ready: true\nCurrent temperatures from HAL:\nCurrent cooling devices from HAL:\n",
        "\n*** SERVICE 'thermalservice' DUMP TIMEOUT (10000ms) EXPIRED ***\n",
    ],
)
def test_the_status_of_a_service_without_its_hal_is_a_default(more):
    reading, dropped = parse_thermalservice(f"Thermal Status: 0\nCached temperatures:\n{more}")
    assert (reading.throttle, [each.sensor for each in dropped]) == (None, ["Thermal Status"])


def test_the_level_of_a_service_that_measured_nothing_is_a_default():
    said = "  present: true\n  level: {}\n  scale: 100\n  voltage: {}\n  temperature: {}\n"
    assert parse_dumpsys(said.format(0, 0, 0))[0].percent is None
    assert parse_dumpsys(said.format(0, 3300, 250))[0].percent == 0
    assert parse_dumpsys(said.format(89, 0, 0))[0].percent == 89


zone_names = st.sampled_from(["cpu-0", "pm8150b-ibat-lvl0", "soc", "battery", "vbat"])


@given(st.lists(st.tuples(zone_names, st.integers(-(10**9), 10**9)), max_size=20))
def test_zones_that_are_not_temperatures_never_show(zones):
    found, dropped = parse_zones("\n".join(f"{name}={value}" for name, value in zones))
    assert len(found) + len(dropped) <= len(zones)
    assert all(each.sensor in {"cpu-0", "battery"} and 5 <= each.celsius <= 120 for each in found)


def test_kgsl_with_units_and_without_values():
    root = "/sys/class/kgsl/kgsl-3d0"
    gpu, temperatures, dropped = parse_gpu(
        f"{root}/gpuclk=N/A\n{root}/clock_mhz=257 MHz\n{root}/gpubusy= 5 4\n{root}/temp=-40000\n"
        f"{root}/thermal_pwrlevel=2\n{root}/max_gpuclk=\n{root}/devfreq/governor=<unsupported>\n"
    )
    assert (gpu.clock_hz, gpu.max_hz, gpu.busy_percent, gpu.throttled, gpu.celsius) == (257e6, None, None, True, None)
    assert (gpu.governor, temperatures) == ("", ())
    assert {each.sensor for each in dropped} == {"gpuclk", "max_gpuclk", "gpubusy", "temp"}


def test_mali_and_samsungs_own_files():
    folder = "/sys/class/misc/mali0/device/devfreq/13000000.mali"
    gpu, _, _ = parse_gpu(f"{folder}/cur_freq=390000000\n{folder}/max_freq=880000000\n{folder}/governor=dummy\n")
    assert (gpu.clock_hz, gpu.max_hz, gpu.governor) == (390e6, 880e6, "dummy")
    gpu, temperatures, _ = parse_gpu(
        "/sys/kernel/gpu/gpu_clock=702\n/sys/kernel/gpu/gpu_busy=31%\n/sys/kernel/gpu/gpu_tmu=44"
    )
    assert (gpu.clock_hz, gpu.busy_percent, [each.source for each in temperatures]) == (702e6, 31.0, ["gpu"])
    gpu, _, _ = parse_gpu("/sys/class/devfreq/17000010.devfreq_mif/cur_freq=421000000\n")  # memory's clock
    assert gpu.clock_hz is None


def test_policies():
    root = "/sys/devices/system/cpu/cpufreq/policy4"
    clusters, dropped = parse_cpu(
        f"{root}/related_cpus=4-6,7\n{root}/scaling_cur_freq=12\n{root}/scaling_governor=a b\n"
    )
    assert [(each.cores, each.khz, each.governor) for each in clusters] == [((4, 5, 6, 7), None, "")]
    assert [each.raw for each in dropped] == ["12"]


def test_space_where_data_is_a_folder_of_another_mount():
    said = "Filesystem 1K-blocks     Used Available Use% Mounted on\noverlay 263174212 41000000 222174212  16% /\n"
    assert parse_data(said) == (263_174_212 << 10, 222_174_212 << 10)


def test_boot():
    said = "boot_id=084b1560-70b8\n/proc/uptime=12433.95 6613.43\n/proc/loadavg=6.83 4.51 3.15 15/304 11723\n"
    assert parse_boot(said) == ("084b1560-70b8", 12_433.95, 6.83)


PS = """\
self=75
server=67
supervisor=62
    PID    PPID  PGID S %CPU    RSS NAME
      2       1     1 S  2.0  22996 system_server
     12       2     0 D 95.5      0 [kworker/0:1]
     62       1    62 S  0.0   1976 sh
     67      64    67 S  0.5   9696 tvm_rpc
     71       2    71 S  0.0   2096 sh
     75       2    75 S  0.0   1800 sh
     88      75    75 R 50.0   2468 ps
     91      67    91 D 77.1   9000 tvm_rpc
     95       1    91 Z  1.0      0 helper one
    100       1    67 S  0.0    100 helper
"""


def test_processes():
    busiest, server = parse_processes(PS)
    assert [each.name for each in busiest] == ["tvm_rpc", "system_server", "helper one", "tvm_rpc"]
    assert [(each.pid, each.state) for each in server] == [(62, "S"), (67, "S"), (91, "D"), (100, "S")]
    assert (server[1].ppid, server[1].pgid, server[1].rss_bytes) == (64, 67, 9_696 << 10)


def test_a_server_that_its_bundles_own_loader_started_is_the_server():
    _, server = parse_processes(PS.replace("tvm_rpc", "ld-linux-aarch64.so.1"))
    assert [each.name for each in server] == ["sh", "tvm_rpc", "tvm_rpc", "helper"]


def test_old_ps_names_the_server_without_shares():
    row = "shell     1396  244   325048 30552 ffffffff 4022e7fc R /data/local/tmp/farm/bundles/x/tvm_rpc"
    busiest, server = parse_processes(f"{decode(capture('ps/msm8226-android4-toolbox'))}\n{row}\n")
    assert busiest == ()
    assert [(each.pid, each.state, each.name, each.pgid) for each in server] == [(1396, "R", "tvm_rpc", -1)]
