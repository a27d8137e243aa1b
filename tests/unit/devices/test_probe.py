"""A whole probe: the script in the shells that phones have, what is cut, what is garbled, what hangs."""

import asyncio
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farm.adb.errors import AdbLinkLost, AdbTimeout
from farm.common.phone_text import SECTION
from farm.devices.health.probe.parse import SECTIONS, parse_probe, probe_command
from farm.devices.health.probe_round import probe
from farm.model.health import Battery, Health, SensorGroup, ThrottleStatus
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
