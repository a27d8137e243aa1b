"""A phone's condition around a measurement, from what real phones print."""

import pytest

from farm.devices.health.probe.parse import parse_probe
from farm.devices.health.probe_round import MOMENT_SECTIONS, condition_of
from tests.unit.devices.captures import capture, probe_answer

UNKNOWN = dict.fromkeys(
    ("temperature_c", "throttle_status", "battery_percent", "charging", "clock_hz", "gpu_clock_hz", "governors")
)
POLICY = "/sys/devices/system/cpu/cpufreq/policy"
KGSL = "/sys/class/kgsl/kgsl-3d0"


def moment(**sections):
    return condition_of(parse_probe(probe_answer(**sections), MOMENT_SECTIONS))


def test_a_throttling_phone_on_a_cable_whose_headline_says_that_all_is_well():
    found = moment(
        battery=capture("dumpsys_battery/xiaomi-hyperos-usb-500mA"),
        thermal=capture("thermalservice/xiaomi13tpro-android16"),
    )
    known = {"temperature_c": 30.7, "throttle_status": 3, "battery_percent": 96, "charging": True}
    assert found == UNKNOWN | known


@pytest.mark.parametrize("name", ["nvidia-shield-tv-pro-2019", "bort-samsungoutput"])
def test_the_status_stands_on_a_line_of_its_own(name):
    assert moment(thermal=capture(f"thermalservice/{name}"))["throttle_status"] == 0


def test_the_clock_is_what_the_fastest_cluster_is_allowed():
    cpu = (
        f"{POLICY}0/related_cpus=0 1 2 3\n{POLICY}0/scaling_cur_freq=300000\n{POLICY}0/scaling_max_freq=1800000\n"
        f"{POLICY}0/scaling_governor=schedutil\n{POLICY}4/related_cpus=4 5 6 7\n{POLICY}4/scaling_cur_freq=710000\n"
        f"{POLICY}4/scaling_max_freq=2400000\n{POLICY}4/scaling_governor=schedutil\n"
    )
    gpu = f"{KGSL}/gpuclk=231000000\n{KGSL}/max_gpuclk=680000000\n{KGSL}/devfreq/governor=msm-adreno-tz\n"
    found = moment(cpu=cpu.encode(), gpu=gpu.encode())
    assert found == UNKNOWN | {"clock_hz": 2.4e9, "gpu_clock_hz": 680e6, "governors": "schedutil, gpu msm-adreno-tz"}
    pinned = cpu.replace("schedutil", "userspace")
    assert moment(cpu=pinned.encode())["clock_hz"] == 710e6


def test_what_is_not_there_is_unknown():
    assert moment() == UNKNOWN
    assert moment(battery=capture("dumpsys_battery/updates-stopped-short"))["charging"] is None
    assert moment(battery=capture("dumpsys_battery/honor-alt-nx1-magicos"))["charging"] is False
