"""gauge.sh, memory.sh, cores.sh and untethered.sh by the shells that run them; and what is made of their words."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from farm.common.errors import Code, PhoneError
from farm.devices.server.session_cores import check_placed
from farm.kinds.memory.phases import read_lines
from farm.kinds.untethered.executor import read_marks
from farm.measure.gauge import gauge_line
from tests.support.errors import raises_code
from tests.support.needs import needs
from tests.support.phone_script import SHELLS, ScriptFolder
from tests.support.waiting import HANG_S, until
from tests.unit.devices.captures import capture

MIB = 1 << 20


@pytest.fixture(params=SHELLS)
def phone(request, tmp_path):
    return ScriptFolder(
        request.param, tmp_path, "gauge.sh", "memory.sh", "cores.sh", "untethered.sh",
        FARM_CPUSET=str(tmp_path / "cpuset"), FARM_BOOT_ID_FILE=str(tmp_path / "boot_id"),
    )  # fmt: skip


# --- gauge.sh


def gauge(phone):
    """The name and the values of two readings; then nobody listens, and the script ends."""
    words = phone.words("gauge.sh", "0.01", os.getpid())
    with subprocess.Popen(words, env=phone.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ran:
        name, *lines = (ran.stdout.readline().decode().strip() for _ in range(3))
        ran.stdout.close()
        ran.wait(HANG_S)
    read = [gauge_line(each) for each in lines]
    assert all(each.uptime_s > 0 for each in read)
    return name, [(each.current, each.voltage, each.counter, each.status) for each in read]


BATTERY = {"type": "Battery", "voltage_now": 3_900_000, "status": "Discharging"}


@pytest.mark.parametrize(
    ("supplies", "name", "reading"),
    [
        (
            {
                "usb": {"type": "USB", "voltage_now": 5_000_000, "current_now": 1},
                "battery": BATTERY | {"current_now": -450_000, "charge_counter": 7, "status": "Not charging"},
            },
            *("battery", (-450_000, 3_900_000, 7, "Not charging")),
        ),
        (
            {"battery": BATTERY, "bms": {"type": "BMS", "voltage_now": 3_850_000, "current_now": 450_000}},
            *("bms", (450_000, 3_850_000, None, "Discharging")),
        ),
        (
            {"max170xx_battery": BATTERY | {"charge_counter": 99}},
            *("max170xx_battery", (None, 3_900_000, 99, "Discharging")),
        ),
    ],
    ids=["battery", "gauge beside it", "charge counter only"],
)
def test_the_battery_of_the_kernel(phone, supplies, name, reading):
    for supply, texts in supplies.items():
        phone.supply(supply, **texts)
    assert gauge(phone) == (f"gauge {name}", [reading] * 2)


@pytest.mark.parametrize(
    ("dump", "voltage", "status"),
    [
        ("samsung-2018-usb-full", 4312, "5"),
        ("android10-full-li-ion", 4352, "5"),
        ("updates-stopped-short", None, "set-by-hand"),
    ],
)
def test_the_service_where_files_are_closed(phone, dump, voltage, status):
    (phone.folder / "dump").write_bytes(capture(f"dumpsys_battery/{dump}"))
    phone.tool("dumpsys", f'[ "$*" = battery ] && cat {phone.folder}/dump')
    name, readings = gauge(phone)
    assert name == "gauge dumpsys"
    assert {(told_voltage, told_status) for _, told_voltage, _, told_status in readings} == {(voltage, status)}


def test_it_ends_with_the_process_that_listens(phone):
    phone.supply("battery", **BATTERY, current_now=1)
    with (
        subprocess.Popen(["sleep", "60"]) as listener,
        (phone.folder / "said").open("wb") as said,
        subprocess.Popen(phone.words("gauge.sh", "0.01", listener.pid), env=phone.environment, stdout=said) as ran,
    ):
        while not (phone.folder / "said").stat().st_size:
            assert ran.poll() is None
        listener.kill()
        listener.wait()
        ran.wait(HANG_S)


# --- memory.sh

HOLDS_48_MIB_AND_HAD_80 = (
    f"kept = bytearray(48 * {MIB}); gone = bytearray(32 * {MIB}); del gone; print('up', flush=True); import sys;"
    "sys.stdin.read()"
)
LOGCAT = """[ "$*" = "-d -v epoch -T 1764266000.000 -s lowmemorykiller" ] || exit 1
echo "--------- beginning of main"
echo "1764266001.123   400   400 I lowmemorykiller: Kill 'com.a' (8123), uid 1000, oom_score_adj 900"
echo "1764266001.124   400   400 I lowmemorykiller: Reclaimed 3 kB"
"""


def memory(phone, *words, pid=0):
    return read_lines(phone.run("memory.sh", *words, SESSION_PID=str(pid)))


def test_the_session_alone_is_read_and_its_peak_begins_anew(phone):
    with phone.server(HOLDS_48_MIB_AND_HAD_80):
        first, second = memory(phone, "cpu"), memory(phone, "cpu")
    assert (first.processes, first.reset, first.kills, first.gpu) == (1, True, (), None)
    assert 48 * MIB < first.rss < 70 * MIB
    assert first.pss is not None
    assert first.peak_rss > first.rss + 25 * MIB
    assert second.peak_rss == pytest.approx(second.rss, abs=2 * MIB)


def test_the_gpus_memory_and_apps_that_were_ended(phone):
    with phone.server(HOLDS_48_MIB_AND_HAD_80) as pid:
        phone.tool("dumpsys", '[ "$*" = "gpu --gpumem" ] && echo "Proc $SESSION_PID total: 777"')
        phone.tool("logcat", LOGCAT)
        plain = memory(phone, "gpu", pid=pid)
        phone.files(f"class/kgsl/kgsl/proc/{pid}", gpumem_mapped=4096, gpumem_unmapped=8192, kernel_max=20480)
        found = memory(phone, "gpu", "1764266000", pid=pid)
    assert (plain.gpu, plain.gpu_peak, plain.kills) == (777, None, ())
    assert (found.gpu, found.gpu_peak) == (12288, 20480)
    assert found.kills == ("Kill 'com.a' (8123), uid 1000, oom_score_adj 900",)


def test_without_a_server_there_is_no_process(phone):
    (phone.folder / "run/state").write_text("version=1\n")
    assert memory(phone, "cpu").processes == 0


# --- cores.sh

HAS_A_SECOND_THREAD = """
import sys, threading
over = threading.Event()
threading.Thread(target=over.wait, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


@needs("taskset")
def test_every_thread_of_the_session_is_put_on_the_cores(phone):
    core = max(os.sched_getaffinity(0))
    (phone.folder / "cpuset/top-app").mkdir(parents=True)
    with phone.server(HAS_A_SECOND_THREAD) as pid:
        said = phone.run("cores.sh", f"{1 << core:x}", "top-app")
        assert said == f"process {pid} {1 << core:x}\n"
        check_placed(said, 1 << core)
        threads = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
        assert [os.sched_getaffinity(each) for each in threads] == [{core}] * 2
    assert (phone.folder / "cpuset/top-app/cgroup.procs").read_text() == f"{pid}\n"


@needs("taskset")
def test_what_the_phone_refuses_is_said(phone):
    with phone.server(HAS_A_SECOND_THREAD) as pid:
        said = phone.run("cores.sh", "-", "top-app")
        assert said.startswith("refused top-app ")
        with raises_code(Code.PLACEMENT_REFUSED, match="group top-app: .*(nonexist|No such)") as raised:
            check_placed(said, 0)
        assert "leave out --top-app" in raised.value.hint
        said = phone.run("cores.sh", f"{1 << 40:x}")
        with raises_code(Code.PLACEMENT_REFUSED, match="does not let the session have cores 40: Invalid"):
            check_placed(said, 1 << 40)
        assert f"process {pid} " in said


def test_cores_that_a_cpuset_takes_away_are_missed_and_no_session_is_no_success():
    with raises_code(Code.PLACEMENT_REFUSED, match="keeps the session off cores 4-7"):
        check_placed("process 12 f\n", 0xFF)
    with pytest.raises(PhoneError, match="found no process"):
        check_placed("", 1)


# --- untethered.sh


async def untethered(phone, call, window="0.20"):
    """What two cycles of that call leave behind: the marks, the gauge's lines."""
    phone.supply("battery", **BATTERY, current_now=-450_000)
    (phone.folder / "boot_id").write_text("one\n")
    (phone.folder / "tools/sh").symlink_to(shutil.which(phone.shell))  # the background's own
    work = phone.folder / "work"
    work.mkdir()
    (work / "call").write_text(f"{call}\n")
    assert phone.run("untethered.sh", "start", work, "2", window, "0.1", "0.02") == "started\n"

    def text(name):
        return (work / name).read_text() if (work / name).exists() else ""

    await until(lambda: read_marks(text("marks")).ended)
    return read_marks(text("marks")), text("gauge").splitlines()


async def test_cycles_are_marked_while_the_gauge_is_written_down(phone):
    record, (name, *readings) = await untethered(phone, "sleep 0.05")
    assert (record.boot, record.ended, len(record.cycles), name) == ("one", "done", 2, "gauge battery")
    for (idle_s, busy_s, rest_s, end_s), calls in record.cycles:
        assert idle_s < busy_s < rest_s < end_s
        assert calls >= 1
    found = [line for each in readings if (line := gauge_line(each)) is not None]
    assert found[0].uptime_s <= record.cycles[0][0][0]
    assert found[-1].uptime_s >= record.cycles[-1][0][1]


@pytest.mark.parametrize(
    ("call", "window", "ended", "cycles"),
    [
        ("true", "0.08", "done", 2),  # a window shorter than a tenth of a second is decimal
        ("echo no such model; exit 7", "0.20", "the program ended with exit code 7: no such model", 0),
    ],
)
async def test_how_a_run_ends(phone, call, window, ended, cycles):
    record, _ = await untethered(phone, call, window)
    assert (record.ended, len(record.cycles)) == (ended, cycles)
