"""Parsers of a probe's sections, each on every genuine capture of its kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.phone_text import decode
from farm.devices.health.probe.battery import add_supply, parse_dumpsys
from farm.devices.health.probe.readings import clock_hz
from farm.devices.health.probe.system import (
    parse_boot,
    parse_cpu,
    parse_data,
    parse_gpu,
    parse_kernel,
    parse_meminfo,
    parse_processes,
)
from farm.devices.health.probe.thermal import parse_thermalservice, parse_zones
from farm.model.health import Battery, SensorGroup, ThrottleStatus
from tests.unit.devices.captures import capture, every, first_lines

CPU, GPU, SKIN, BATTERY, OTHER = (
    SensorGroup.CPU,
    SensorGroup.GPU,
    SensorGroup.SKIN,
    SensorGroup.BATTERY,
    SensorGroup.OTHER,
)


def text(name):
    return decode(capture(name))


def of_files(name):
    """A capture of files as the probe prints them."""
    return "\n".join(f"{path}={line}" for path, line in first_lines(capture(name)).items())


# --- battery

BATTERIES = {
    "adb-model-li-poly": Battery(15, 34.0, 4359, None, "good", "charging", ("ac",)),
    "android10-full-li-ion": Battery(100, 27.4, 4352, None, "good", "full", ("usb",)),
    "appium-2016-zero-voltage": Battery(89, None, None, None, "good", "charging", ("ac",)),
    "honor-alt-nx1-magicos": Battery(54, 22.0, 3906, None, "good", "discharging"),
    "pixel8pro-limit-charging": Battery(22, 28.0, 3764, None, "good", "charging", ("usb",)),
    "samsung-2018-usb-full": Battery(100, 30.9, 4312, None, "good", "full", ("usb",)),
    "samsung-mBootCompleted-2018": Battery(84, 32.6, 4063, 321.0, "good", "charging", ("usb",), 1764),
    "skia-tab-indented": Battery(94, 28.1, 4248, None, "good", "charging", ("ac",)),
    "tvbox-no-battery-discharging": Battery(),
    "updates-stopped-short": Battery(),
    "xiaomi-hyperos-usb-500mA": Battery(96, 30.7, 4284, None, "good", "charging", ("usb",)),
    "zflip4-android16-excerpt": Battery(96, 30.4, cycles=509),
}


@pytest.mark.parametrize("path", every("dumpsys_battery"), ids=lambda path: path.stem)
def test_battery(path):
    assert parse_dumpsys(decode(path.read_bytes()))[0] == BATTERIES[path.stem]


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


def supply(name):
    return "\n".join(f"battery/{line}" for line in text(f"power_supply/{name}").splitlines())


def test_the_gauge_says_what_dumpsys_does_not():
    battery, dropped = add_supply(Battery(percent=99), supply("moto-xt1072-uevent"))
    assert battery == Battery(99, 25.7, 4313, None, "good", "full", full_uah=2_365_000, design_uah=2_366_000)
    assert {each.sensor for each in dropped} == {"CYCLE_COUNT", "CURRENT_NOW"}  # 0 cycles; -6510 of what?


def test_the_gauge_counts_where_somebody_set_the_services_values():
    stopped, dropped = parse_dumpsys(text("dumpsys_battery/updates-stopped-short"))
    assert [each.raw for each in dropped] == ["UPDATES STOPPED"]
    assert add_supply(stopped, supply("moto-xt1072-uevent"))[0].percent == 100


def test_a_gauge_without_a_battery_tells_nothing():
    battery, dropped = add_supply(Battery(), "battery/POWER_SUPPLY_PRESENT=0\nbattery/POWER_SUPPLY_CAPACITY=50\n")
    assert (battery, [each.raw for each in dropped]) == (Battery(), ["PRESENT=0"])


def test_an_uncalibrated_gauge_tells_nothing_but_its_design():
    battery, dropped = add_supply(Battery(), supply("bq27000-uncalibrated"))
    assert battery == Battery(status="full", design_uah=11_652_480)
    assert {each.sensor for each in dropped} == {"CYCLE_COUNT", "CURRENT_NOW", "voltage", "temperature"}


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


# --- thermal service

HOTTEST = {
    "bort-emulator_spaceinname": (SKIN, "test temperature sensor", 30.8),
    "bort-pixeloutput": (CPU, "cpu0-silver-usr", 32.3),
    "bort-samsungoutput": (CPU, "AP", 34.6),
    "nvidia-shield-tv-pro-2019": None,  # only the stale section
    "pixel8a-android17": (CPU, "LITTLE", 46.0),
    "skia-pixel-tensor-full": (CPU, "LITTLE", 27.0),
    "skia-pixel-thermalhal2": (CPU, "cpu1-silver-usr", 44.1),
    "skia-samsung-sdhms": (SKIN, "TYPE_SKIN", 25.3),
    "xiaomi13tpro-android16-b": (CPU, "CPU", 57.9),
    "xiaomi13tpro-android16": (CPU, "CPU", 62.8),
}


def test_no_thermistor_of_the_radio_is_the_processor_and_no_missing_battery_is_cold():
    said, _ = parse_thermalservice(text("thermalservice_excerpts/galaxy-a24"))
    assert {each.sensor for each in said.temperatures if each.group is SensorGroup.CPU} == {"AP"}
    said, dropped = parse_thermalservice(text("thermalservice_excerpts/galaxy-s24plus"))
    assert [each.sensor for each in said.temperatures if each.group is SensorGroup.BATTERY] == ["BAT"]
    assert [each.sensor for each in dropped] == ["SUBBAT"]


@pytest.mark.parametrize("path", every("thermalservice"), ids=lambda path: path.stem)
def test_thermalservice(path):
    said, _ = parse_thermalservice(decode(path.read_bytes()))
    hottest = max(said.temperatures, key=lambda each: each.celsius, default=None)
    assert (hottest and (hottest.group, hottest.sensor, hottest.celsius)) == HOTTEST[path.stem]
    throttled = (ThrottleStatus.SEVERE, "SKIN") if path.stem == "xiaomi13tpro-android16" else (ThrottleStatus.NONE, "")
    assert (said.throttle, said.throttled_by) == throttled


def test_types_of_a_hal_that_numbers_them_from_one():
    said, dropped = parse_thermalservice(text("thermalservice/skia-samsung-sdhms"))
    assert [(each.sensor, each.group) for each in said.temperatures] == [
        ("TYPE_CPU", CPU),
        ("TYPE_BATTERY", BATTERY),
        ("TYPE_SKIN", SKIN),
        ("TYPE_USB_PORT", OTHER),
    ]
    assert [(each.sensor, each.raw) for each in dropped] == [("TYPE_POWER_AMPLIFIER", "-99.9")]
    shifted = (
        "Sdhms connected: yes\nCurrent temperatures from HAL:\nTemperature{mValue=41.0, mType=4, mName=X, mStatus=2}\n"
    )
    found = parse_thermalservice(shifted)[0]
    assert (found.temperatures[0].group, found.throttle, found.throttled_by) == (SKIN, ThrottleStatus.MODERATE, "X")


def test_currents_and_differences_are_no_temperatures():
    said, dropped = parse_thermalservice(text("thermalservice/skia-pixel-tensor-full"))
    assert not {each.sensor for each in said.temperatures} & {"ocp_tpu", "soc", "neutral_therm", "battery_cycle"}
    assert {each.sensor for each in dropped} >= {"ocp_tpu", "soc", "neutral_therm", "battery_cycle", "FLASH_LED_REDUCE"}


def test_a_status_that_somebody_set_or_that_there_is_not_counts_for_nothing():
    assert parse_thermalservice("IsStatusOverride: true\nThermal Status: 5\n")[0].throttle is None
    assert parse_thermalservice("Thermal Status: 9\n")[0].throttle is None
    assert parse_thermalservice("Thermal Status: 3\nCached:\n")[0].throttle is ThrottleStatus.SEVERE
    sentinel = "Current temperatures from HAL:\n\tTemperature{mValue=0.0, mType=3, mName=SUBBAT, mStatus=4}\n"
    assert parse_thermalservice(sentinel)[0].throttle is None


# --- zones


def test_zones_of_a_phone_without_thermal_service():
    found, dropped = parse_zones(text("thermal_zones/retroid-pocket5-sm8250"))
    assert ("skin-therm-usr", 28.7, SKIN) in [(each.sensor, each.celsius, each.group) for each in found]
    assert {each.group for each in found if each.sensor in ("bms", "battery")} == {BATTERY}
    reasons = {each.sensor: each.reason for each in dropped}
    assert reasons["soc"] == reasons["pm8150b-ibat-lvl0"] == "not a thermometer, by its name"
    assert reasons["camera-therm-usr"] == "no temperature in any unit"
    assert max(found, key=lambda each: each.celsius).sensor == "cpu-1-1-usr"


@pytest.mark.parametrize(
    ("line", "celsius"),
    [
        ("thermal_zone3 tsens_tz_sensor5=309", 30.9),
        ("thermal_zone3 pa_therm1=31", 31.0),
        ("thermal_zone3 pm8953_tz=32636", 32.6),
        ("thermal_zone3 bms: 25000", 25.0),
        ("thermal_zone3 tsens_tz_sensor5=55", 55.0),  # nobody's core is at 5.5 °C
        ("thermal_zone3 tsens_tz_sensor5=110", None),  # 11.0 or 110
        ("thermal_zone3 mystery=31", None),
        ("thermal_zone3 mystery=31000", 31.0),
        ("thermal_zone3 xo_therm=-40", None),
        ("thermal_zone3 xo_therm=-274000", None),
        ("thermal_zone3 mtktswmt=-127000", None),
    ],
)
def test_units_of_zones(line, celsius):
    found, dropped = parse_zones(line)
    assert [each.celsius for each in found] == ([] if celsius is None else [celsius])
    assert [each.source for each in (*found, *dropped)] == ["thermal_zone3"]


zone_names = st.sampled_from(["cpu-0", "pm8150b-ibat-lvl0", "soc", "battery", "vbat"])


@given(st.lists(st.tuples(zone_names, st.integers(-(10**9), 10**9)), max_size=20))
def test_zones_that_are_not_temperatures_never_show(zones):
    found, dropped = parse_zones("\n".join(f"{name}={value}" for name, value in zones))
    assert len(found) + len(dropped) <= len(zones)
    assert all(each.sensor in {"cpu-0", "battery"} and 5 <= each.celsius <= 120 for each in found)


# --- GPU


def test_kgsl():
    gpu, temperatures, dropped = parse_gpu(text("kgsl/galaxy-a90-adreno640"))
    assert (gpu.clock_hz, gpu.min_hz, gpu.max_hz, gpu.hardware_max_hz) == (257e6, 257e6, 585e6, 585e6)
    assert (gpu.governor, gpu.busy_percent, gpu.power_level, gpu.celsius) == ("msm-adreno-tz", 0.0, 4, 43.2)
    assert [(each.celsius, each.group, each.source) for each in temperatures] == [(43.2, GPU, "kgsl")]
    assert dropped == []
    busy, _, _ = parse_gpu(of_files("kgsl/xiaomi-redmi-note-3"))  # "gpubusy" padded with blanks, no percentage
    assert (busy.busy_percent, busy.throttled) == (25.8, False)
    idle, _, _ = parse_gpu(of_files("kgsl/galaxy-c9-pro"))  # "0 0"
    assert idle.busy_percent is None
    # `throttling` says 1: that throttling is on, not that it happens; devfreq knows clocks that this GPU does not have.
    s8, _, _ = parse_gpu(of_files("kgsl/galaxy-s8-us"))
    assert (s8.throttled, s8.busy_percent, s8.hardware_max_hz) == (False, 10.0, 670e6)


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


@pytest.mark.parametrize(
    ("said", "hertz"),
    [
        ("257000000", 257e6),
        ("257000", 257e6),
        ("257", 257e6),
        ("257 MHz", 257e6),
        ("0", None),
        ("-1", None),
        ("9", None),
    ],
)
def test_clocks(said, hertz):
    assert clock_hz(said) == hertz


# --- CPU, memory, boot


def test_clusters_of_old_kernels_count_once():
    clusters, dropped = parse_cpu(of_files("cpufreq/galaxy-s9-us"))
    assert [(each.cores, each.khz, each.max_khz, each.governor) for each in clusters] == [
        ((0, 1, 2, 3), 748_800, 1_766_400, "schedutil"),
        ((4, 5, 6, 7), 825_600, 2_803_200, "schedutil"),
    ]
    assert dropped == []
    clusters, _ = parse_cpu(of_files("cpufreq/nexus5x"))  # two cores offline
    assert [each.cores for each in clusters] == [(0, 1, 2, 3)]


def test_policies():
    root = "/sys/devices/system/cpu/cpufreq/policy4"
    clusters, dropped = parse_cpu(
        f"{root}/related_cpus=4-6,7\n{root}/scaling_cur_freq=12\n{root}/scaling_governor=a b\n"
    )
    assert [(each.cores, each.khz, each.governor) for each in clusters] == [((4, 5, 6, 7), None, "")]
    assert [each.raw for each in dropped] == ["12"]


@pytest.mark.parametrize(
    ("name", "total", "available"),
    [
        ("asus-tf201-ics", 1_006_840, 555_616 + 5_316 + 109_860),
        ("goadb-4gb", 3_681_628, 2_243_756),
        ("wear-1gb-bugreport", 929_940, 288_944),
    ],
)
def test_meminfo(name, total, available):
    assert parse_meminfo(text(f"meminfo/{name}")) == (total << 10, available << 10)


DATA = {
    "asus-tf201-ics-toolbox": (56 << 30, 53 << 30),
    "atv-a9-df-h": (None, None),
    "busybox-mtdblock-wrapped": (int(147.6 * 2**20), int(138.1 * 2**20)),
    "galaxy-android4-toolbox": (27 << 30, 8 << 30),
    "mtk-android14-df-h": (24 << 30, 1 << 30),
    "sony-so02h-android601": (int(21.9 * 2**30), int(9.8 * 2**30)),
    "wear-msm8909-android8": (1_776_480 << 10, 1_295_124 << 10),
}


@pytest.mark.parametrize("path", every("df"), ids=lambda path: path.stem)
def test_space_on_data(path):
    assert parse_data(decode(path.read_bytes())) == DATA[path.stem]


def test_space_where_data_is_a_folder_of_another_mount():
    said = "Filesystem 1K-blocks     Used Available Use% Mounted on\noverlay 263174212 41000000 222174212  16% /\n"
    assert parse_data(said) == (263_174_212 << 10, 222_174_212 << 10)


BOOTS = {
    "loadavg-permission-denied": ("", 8_880.0, 2.38),
    "skia-proc-uptime": ("", 135.7, None),
    "termux-load-32": ("", 76_200.0, 32.12),
    "toolbox-2015-days": ("", 216_412.0, None),
    "toybox-11days-10min": ("", 951_000.0, 50.39),
}


@pytest.mark.parametrize("path", every("uptime"), ids=lambda path: path.stem)
def test_uptime(path):
    assert parse_boot(decode(path.read_bytes())) == BOOTS[path.stem]


def test_boot():
    said = "boot_id=084b1560-70b8\n/proc/uptime=12433.95 6613.43\n/proc/loadavg=6.83 4.51 3.15 15/304 11723\n"
    assert parse_boot(said) == ("084b1560-70b8", 12_433.95, 6.83)


# --- processes, kernel log

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
    path = "/data/local/tmp/farm/bundles/x/tvm_rpc"
    said = f"{text('ps/msm8226-android4-toolbox')}\nshell     1396  244   325048 30552 ffffffff 4022e7fc R {path}\n"
    busiest, server = parse_processes(said)
    assert busiest == ()
    assert [(each.pid, each.state, each.name, each.pgid) for each in server] == [(1396, "R", "tvm_rpc", -1)]


LAST_OF_PS = {
    "msm8226-android4-toolbox": (29, "S", "smd_channel_clo"),
    "mvt-androidqf-ps": (16, "S", "[ksoftirqd/1]"),
    "mvt-ps-samsung": (18, "S", "[ksoftirqd/1]"),
    "redroid-android12-ps-A-wchan": (40, "S", "android.hardware.keymaster@3.0-service"),
    "toolbox-android4-radio": (1396, "S", "com.android.phone"),
    "toybox-ps-l": (1458, "S", "Binder:1458_2"),
    "toybox-ps-p-vold": (1458, "S", "vold"),
}


@pytest.mark.parametrize("path", every("ps"), ids=lambda path: path.stem)
def test_the_columns_of_every_ps_are_told(path):
    last = decode(path.read_bytes()).rstrip().splitlines()[-1]
    pid = next(word for word in last.split() if word.isdigit() and int(word) > 15)
    _, server = parse_processes(f"server={pid}\n{decode(path.read_bytes())}")
    found = {(each.pid, each.state, each.name) for each in server}
    assert LAST_OF_PS[path.stem] in found


def test_gpu_faults():
    lines = text("dmesg/gpu-faults").splitlines()
    noise = [
        "[    1.2] gpu_cc: reset controller registered",
        "[    1.3] kgsl kgsl-3d0: default thermal fault threshold",
        "[    1.4] mali 13000000.mali: ProbeResult as mali0",
    ]
    assert parse_kernel("\n".join([*noise, *lines])) == (tuple(lines), True)
    assert parse_kernel("dmesg: klogctl: Permission denied\n") == ((), False)
    assert parse_kernel("sh: dmesg: inaccessible or not found\n") == ((), False)
    assert parse_kernel("") == ((), True)
