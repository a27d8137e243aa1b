"""Clocks in sysfs: one folder per policy, what heat and root allow, what the load asks for."""

from dataclasses import replace

import pytest

from farm.simulation.clocks import KGSL, clock_files, constant_files, is_settable, links, policies
from farm.simulation.profiles import list_profiles, load_profile
from farm.simulation.state import PhoneState

FAST = "/sys/devices/system/cpu/cpufreq/policy7"
SYSFS = load_profile("oneplus-12").sysfs
MALI = "/sys/class/misc/mali0/device/devfreq/13000000.mali"


def files(**changes):
    return {path: text.strip() for path, text in clock_files(SYSFS, replace(PhoneState(), **changes))}


def number(path, **changes):
    return int(files(**changes)[path])


@pytest.mark.parametrize("name", list_profiles())
def test_every_core_has_its_policy(name):
    sysfs = load_profile(name).sysfs
    leaders = policies(sysfs)
    assert len(leaders) == 8
    for core, leader in leaders.items():
        assert links(sysfs)[f"/sys/devices/system/cpu/cpu{core}/cpufreq"] == f"../cpufreq/policy{leader}"
        related = constant_files(sysfs)[f"/sys/devices/system/cpu/cpufreq/policy{leader}/related_cpus"]
        assert str(core) in related.split()
    assert not any("/cpu0/cpufreq/" in path for path in constant_files(sysfs))


def test_the_clock_follows_the_load_between_its_limits():
    seen = [number(f"{FAST}/scaling_cur_freq", cpu_busy=busy / 10) for busy in range(11)]
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (480000, 3302400)
    assert number(f"{FAST}/scaling_cur_freq") == 480000  # an unmeasured load leaves the captured clock


def test_heat_and_root_both_limit():
    hot = number(f"{FAST}/scaling_max_freq", clock_scale=0.7)
    assert hot < 3302400 * 0.7
    asked = {f"{FAST}/scaling_max_freq": "902400"}
    assert number(f"{FAST}/scaling_max_freq", knobs=asked) == 902400
    assert number(f"{FAST}/scaling_max_freq", knobs=asked, clock_scale=0.7) == 902400
    assert number(f"{FAST}/scaling_cur_freq", knobs=asked, cpu_busy=1.0) == 902400


def test_governors():
    fast, now = {f"{FAST}/scaling_governor": "performance"}, f"{FAST}/scaling_cur_freq"
    assert number(now, knobs=fast, cpu_busy=0.0) == 3302400
    assert number(now, knobs=fast, clock_scale=0.5) == number(f"{FAST}/scaling_max_freq", clock_scale=0.5)
    slow = {f"{FAST}/scaling_governor": "powersave"}
    assert number(now, knobs=slow, cpu_busy=1.0) == 480000


def test_adreno_power_levels_pin_its_clock():
    levels = [int(word) for word in SYSFS[f"{KGSL}/gpu_available_frequencies"].split()]
    pinned = {f"{KGSL}/min_pwrlevel": "2", f"{KGSL}/max_pwrlevel": "2"}
    for busy in (0.0, 1.0):
        assert number(f"{KGSL}/gpuclk", knobs=pinned, gpu_busy=busy) == levels[2]
    hot = files(knobs=pinned, clock_scale=0.4)
    assert int(hot[f"{KGSL}/gpuclk"]) == int(hot[f"{KGSL}/max_gpuclk"]) <= 0.4 * levels[0]
    assert int(hot[f"{KGSL}/thermal_pwrlevel"]) > 2


def test_gpubusy_is_padded_as_kgsl_pads_it():
    assert dict(clock_files(SYSFS, PhoneState(gpu_busy=0.25)))[f"{KGSL}/gpubusy"] == "  25000  100000\n"
    assert dict(clock_files(SYSFS, PhoneState()))[f"{KGSL}/gpubusy"] == "      0       0\n"


def test_mali_has_clocks_too():
    sysfs = load_profile("realme-gt-neo3").sysfs
    cool, hot = (dict(clock_files(sysfs, PhoneState(gpu_busy=1.0, clock_scale=scale))) for scale in (1.0, 0.5))
    assert int(cool[f"{MALI}/cur_freq"]) == int(cool[f"{MALI}/max_freq"]) == 860000000
    assert int(hot[f"{MALI}/cur_freq"]) == int(hot[f"{MALI}/max_freq"]) <= 430000000


def test_what_root_can_set():
    assert all(map(is_settable, (f"{FAST}/scaling_governor", f"{KGSL}/min_pwrlevel", f"{MALI}/min_freq")))
    assert not any(map(is_settable, (f"{FAST}/scaling_cur_freq", f"{KGSL}/gpuclk")))
