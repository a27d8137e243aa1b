"""A whole probe: the script in the shells that phones have, what is cut, garbled or hangs; which sensors count."""

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farm.adb.errors import AdbLinkLost, AdbTimeout
from farm.common.phone_text import SECTION
from farm.devices.health.probe.parse import SECTIONS, parse_probe, probe_command
from farm.devices.health.probe.thermal import SensorPolicy, counted, one_temperature
from farm.devices.health.probe_round import MOMENT_SECTIONS, condition_of, probe
from farm.model.health import Battery, Health, SensorGroup, Temperature, ThrottleStatus
from tests.support.fake_phone import FakeClient, for_ever
from tests.support.phone_script import SHELLS, ScriptFolder, run
from tests.support.waiting import HANG_S
from tests.unit.devices.captures import PHONES, capture, first_lines, probe_answer

MEMORY = b"MemTotal: 100 kB\nMemAvailable: 50 kB\n"
FULL = probe_answer(
    boot=b"boot_id=b1\n/proc/uptime=135.70 523.80\n/proc/loadavg=1.50 1.00 0.50 1/2 3",
    memory=MEMORY,
    cpu="\n".join(f"{path}={line}" for path, line in first_lines(capture("cpufreq/galaxy-s9-us")).items()).encode(),
    data=capture("df/wear-msm8909-android8"),
    battery=capture("dumpsys_battery/honor-alt-nx1-magicos"),
    thermal=capture("thermalservice/xiaomi13tpro-android16"),
    processes=b"self=9\nserver=none\n PID PPID PGID S %CPU RSS NAME\n 12 1 12 S 3.0 40 system_server",
    kernel=capture("dmesg/gpu-faults"),
    supply=b"battery/POWER_SUPPLY_CYCLE_COUNT=312",
    zones=capture("thermal_zones/retroid-pocket5-sm8250"),
    gpu=capture("kgsl/galaxy-a90-adreno640"),
)


def test_a_whole_probe():
    health = parse_probe(FULL)
    assert health.missing == ()
    assert (health.boot_id, health.uptime_s, health.load_1min) == ("b1", 135.7, 1.5)
    assert health.battery == Battery(54, 22.0, 3906, None, "good", "discharging", cycles=312)
    assert (health.throttle, health.throttled_by) == (ThrottleStatus.SEVERE, "SKIN")
    assert {each.source for each in health.temperatures} == {"thermalservice", "thermal_zones", "kgsl", "battery"}
    assert {each.group for each in health.temperatures} == set(SensorGroup)
    assert (health.memory_total_bytes, health.memory_available_bytes) == (102_400, 51_200)
    assert (health.data_total_bytes, health.data_free_bytes) == (1_819_115_520, 1_326_206_976)
    assert [each.name for each in health.busiest] == ["system_server"]
    assert len(health.gpu_faults) == 5
    assert len(health.cpu) == 2
    assert health.gpu.max_hz == 585_000_000


@pytest.mark.parametrize(
    "garbled",
    [
        FULL.replace(b"\n", b"\r\n"),
        FULL.replace(b"\n", b"\r\r\n"),
        FULL.decode().encode("utf-16"),
        FULL.decode().encode("utf-16-le"),
        FULL.decode().encode("utf-16-be"),
        b"\xef\xbb\xbf" + FULL,
        b"some vendor's banner\n" + FULL,
    ],
    ids=["crlf", "crcrlf", "utf-16-bom", "utf-16-le", "utf-16-be", "utf-8-bom", "banner"],
)
def test_line_ends_and_encodings_change_nothing(garbled):
    assert parse_probe(garbled) == parse_probe(FULL)


def test_a_phone_that_says_nothing_misses_everything():
    assert parse_probe(b"") == Health(missing=SECTIONS)
    assert parse_probe(b"", ("battery", "gpu")).missing == ("battery", "gpu")
    denied = probe_answer(kernel=b"dmesg: klogctl: Permission denied", memory=MEMORY)
    assert set(parse_probe(denied).missing) == set(SECTIONS) - {"memory"}


def test_a_probe_that_was_cut_keeps_what_came_and_no_half_number():
    cut = FULL[: FULL.index(b"temperature: 220") + len(b"temperature: 22")]
    health = parse_probe(cut)
    assert (health.boot_id, health.memory_total_bytes, health.battery.percent) == ("b1", 102_400, 54)
    assert health.battery.celsius is None
    assert set(health.missing) == {"battery", "thermal", "processes", "kernel", "supply", "zones", "gpu"}


@settings(deadline=None)
@given(st.integers(0, len(FULL)))
@example(FULL.index(b"==farm:processes") - 200)
@example(FULL.index(b"/dev/block/platform/soc/7824900.sdhci/by-name/userdata") - 3)
def test_no_cut_makes_a_reading_that_the_whole_does_not_have(length):
    whole, part = parse_probe(FULL), parse_probe(FULL[:length])
    assert set(part.temperatures) <= set(whole.temperatures)
    assert set(part.gpu_faults) <= set(whole.gpu_faults)
    assert part.battery.celsius in (None, whole.battery.celsius)
    assert part.gpu.clock_hz in (None, whole.gpu.clock_hz)
    assert part.data_free_bytes in (None, whole.data_free_bytes)
    assert part.memory_available_bytes in (None, whole.memory_available_bytes)
    assert part.throttle in (None, whole.throttle)


SOME_LINES = st.sampled_from(sorted({*FULL.splitlines(keepends=True), b"==farm:zones", b"\xff\xfe", b"\0\n"}))


@given(st.binary(max_size=300) | st.lists(SOME_LINES | st.binary(max_size=40), max_size=80).map(b"".join))
def test_any_bytes_are_a_health_within_reason(output):
    for said in (output, *(probe_answer(**{name: output}) for name in SECTIONS)):
        health = parse_probe(said)
        assert all(5 <= each.celsius <= 120 for each in health.temperatures)
        assert health.battery.percent is None or 0 <= health.battery.percent <= 100
        assert health.gpu.busy_percent is None or 0 <= health.gpu.busy_percent <= 100
        assert len(health.busiest) <= 10
        assert set(health.missing) <= set(SECTIONS)


# --- the script


@pytest.fixture(params=SHELLS)
def phone(request, tmp_path):
    return ScriptFolder(request.param, tmp_path / "phone")


def probed(phone, *sections, **options):
    """What the script prints for these sections; all, if there are none."""
    return run(
        [shutil.which(phone.shell), "-c", probe_command(sections or SECTIONS)], phone.environment, **options
    ).stdout


def test_the_script_in_a_posix_shell(phone, tmp_path):
    phone.tool(
        "dumpsys",
        f'case "$1" in battery) cat {PHONES}/dumpsys_battery/honor-alt-nx1-magicos.txt;;'
        f" thermalservice) cat {PHONES}/thermalservice/pixel8a-android17.txt;; esac",
    )
    phone.tool("dmesg", f"cat {PHONES}/dmesg/gpu-faults.txt")
    phone.tool("df", f"cat {PHONES}/df/mtk-android14-df-h.txt")
    (empty := tmp_path / "cwd").mkdir()
    said = probed(phone, cwd=empty)
    assert list(empty.iterdir()) == []
    assert [line for line in said.decode().splitlines() if line.startswith(SECTION)] == [
        f"{SECTION}{name}" for name in (*SECTIONS, "end")
    ]
    health = parse_probe(said)
    assert (health.battery.percent, health.battery.celsius) == (54, 22.0)
    assert max(health.temperatures, key=lambda each: each.celsius).sensor == "LITTLE"
    assert (health.data_free_bytes, len(health.gpu_faults)) == (1 << 30, 5)
    assert health.boot_id
    assert health.memory_available_bytes
    assert health.load_1min is not None


def test_the_script_where_every_program_is_missing(phone, tmp_path):
    phone.environment = {"PATH": str(tmp_path)}
    said = probed(phone)
    health = parse_probe(said)
    assert {"data", "battery", "thermal", "processes", "kernel"} <= set(health.missing)
    assert health.memory_total_bytes
    assert said.endswith(f"{SECTION}end\n".encode())


def test_the_kernel_log_is_sifted_on_the_phone(phone):
    phone.tool("dmesg", "seq -f '[    1.0] gpu_cc: step %g' 99999; echo '[ 9.0] dmesg: kgsl fault'")
    said = probed(phone, "kernel")
    assert parse_probe(said).gpu_faults == ("[ 9.0] dmesg: kgsl fault",)
    assert len(said) < 200


@pytest.mark.parametrize(("boot", "named"), [("", True), ("of-last-week", False)])
def test_the_server_of_another_boot_is_not_looked_for(phone, boot, named):
    now = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (phone.folder / "run/state").write_text(f"version=1\nboot={boot or now}\npid=4711\nsupervisor=4712\n")
    phone.tool("ps", ":")
    command = probe_command(("boot", "processes")).replace("/data/local/tmp/farm", str(phone.folder))
    said = run([phone.shell, "-c", command], phone.environment).stdout.decode()
    assert ("server=4711\nsupervisor=4712" in said) == named
    assert ("server=none\nsupervisor=none" in said) == (not named)


@pytest.mark.parametrize("unknown", ["-A*", "*-k*"], ids=["toolbox of Android 6 and 7", "one that cannot sort"])
def test_processes_are_what_ps_answers_whichever_it_is(phone, unknown):
    row = "shell     4711  1     325048 30552 ffffffff 4022e7fc S /data/local/tmp/farm/bundles/x/tvm_rpc"
    (phone.folder / "old").write_text(f"{capture('ps/msm8226-android4-toolbox').decode()}\n{row}\n")
    phone.tool("ps", f"""case "$*" in {unknown}) echo "bad pid '-A'" ;; *) cat {phone.folder}/old ;; esac""")
    health = parse_probe(probed(phone, "processes"), ("processes",))
    assert health.missing == ()
    assert [(each.pid, each.name) for each in health.server] == [(4711, "tvm_rpc")]


def test_a_service_that_hangs_costs_its_own_section_only(phone):
    phone.tool("dumpsys", "sleep 60")
    phone.tool("timeout", '[ "$1" -lt 15 ] && exit 124')
    said = probed(phone, "battery", "memory", "thermal")
    assert parse_probe(said, ("memory", "battery", "thermal")).missing == ("battery", "thermal")


def test_the_sections_of_a_command():
    assert probe_command(("gpu", "boot")) == f"SECTIONS='boot gpu'\n{probe_command()}"
    with pytest.raises(ValueError, match="no section x"):
        probe_command(("x",))


# --- asking


async def test_one_round_trip():
    phone = FakeClient((FULL[:100], FULL[100:]))
    assert (await probe(phone, "S1"))[0] == parse_probe(FULL)
    assert phone.commands == [probe_command()]


async def test_what_came_before_the_phone_got_stuck_is_kept():
    upto_gpu = FULL[: FULL.index(f"{SECTION}gpu".encode())] + f"{SECTION}gpu\n".encode()
    health, stuck_in = await probe(FakeClient((upto_gpu, AdbTimeout("late"))), "S1", SECTIONS)
    assert (stuck_in, health.missing, health.battery.percent) == ("gpu", ("gpu",), 54)


@pytest.mark.parametrize("error", [AdbTimeout("late"), AdbLinkLost("gone")])
async def test_a_phone_that_says_nothing_is_an_error(error):
    with pytest.raises(type(error)):
        await probe(FakeClient((error,)), "S1")


async def test_a_phone_that_talks_without_end_is_cut():
    async with asyncio.timeout(HANG_S):
        health, _ = await probe(FakeClient((*[b"x" * (1 << 18)] * 100, for_ever)), "S1")
    assert health.missing == SECTIONS


CPU = Temperature("cpu-0", 61.0, SensorGroup.CPU, "thermal_zone1")
HAL_CPU = Temperature("CPU", 55.0, SensorGroup.CPU, "thermalservice")
SKIN = Temperature("SKIN", 39.0, SensorGroup.SKIN, "thermalservice")
QUIET = Temperature("quiet-therm", 37.0, SensorGroup.OTHER, "thermal_zone7")
BATTERY = Temperature("battery", 33.0, SensorGroup.BATTERY, "battery")
HEALTH = Health(temperatures=(CPU, HAL_CPU, SKIN, QUIET, BATTERY), throttle=ThrottleStatus.SEVERE, throttled_by="SKIN")


def test_without_a_policy_all_count():
    assert counted(HEALTH, SensorPolicy()) is HEALTH


def test_ignored_sensors_are_dropped_with_what_they_claimed():
    found = counted(HEALTH, SensorPolicy(ignore=("SK*", "cpu-0")))
    assert found.temperatures == (HAL_CPU, QUIET, BATTERY)
    assert (found.throttle, found.throttled_by) == (None, "")
    assert [(each.sensor, each.raw, each.source) for each in found.dropped] == [
        ("cpu-0", "61 °C", "thermal_zone1"),
        ("SKIN", "39 °C", "thermalservice"),
    ]


def test_one_sensor_is_the_skin():
    found = counted(HEALTH, SensorPolicy(skin="quiet-therm"))
    assert [each.sensor for each in found.temperatures if each.group is SensorGroup.SKIN] == ["quiet-therm"]
    assert found.throttle is ThrottleStatus.SEVERE


def test_the_one_temperature_is_the_thermal_services_then_the_zones_then_the_batterys():
    assert one_temperature(HEALTH) == HAL_CPU
    assert one_temperature(Health(temperatures=(QUIET, CPU, BATTERY))) == CPU
    assert one_temperature(Health(temperatures=(BATTERY,))) == BATTERY
    assert one_temperature(Health()) is None


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
