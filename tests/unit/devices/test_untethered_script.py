"""untethered.sh run by the shells that run it, with a battery of plain files."""

import os
import shutil
import subprocess
import time

import pytest

from farm.devices.server.phone_paths import scripts_folder
from farm.kinds.untethered.record import read_marks
from farm.measure.gauge import gauge_line
from tests.support.waiting import HANG_S

SHELLS = [shell for shell in ("mksh", "dash", "bash") if shutil.which(shell)]

pytestmark = pytest.mark.parametrize("shell", SHELLS)


def recorded(shell, folder, call, window="0.20"):
    """What two cycles of that call leave behind: the marks, the gauge's lines."""
    battery = folder / "sys/class/power_supply/battery"
    battery.mkdir(parents=True)
    for name, text in {
        "type": "Battery", "voltage_now": "3900000", "current_now": "-450000", "status": "Discharging"
    }.items():  # fmt: skip
        (battery / name).write_text(f"{text}\n")
    (folder / "bin").mkdir()
    work = folder / "work"
    work.mkdir()
    (work / "call").write_text(f"{call}\n")
    for name in ("untethered.sh", "gauge.sh", "processes.sh"):
        shutil.copy(scripts_folder() / name, folder / "bin")
    tools = folder / "tools"  # the background's own `sh`
    tools.mkdir()
    (tools / "sh").symlink_to(shutil.which(shell) or "")
    boot_id = folder / "boot_id"
    boot_id.write_text("one\n")
    environment = {
        **os.environ, "FARM_SYS": str(folder / "sys"), "FARM_BOOT_ID_FILE": str(boot_id),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }  # fmt: skip
    words = [shell, str(folder / "bin/untethered.sh"), "start", str(work), "2", window, "0.1", "0.02"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout == "started\n"
    deadline = time.monotonic() + HANG_S
    while not (record := read_marks(_text(work / "marks"))).ended and time.monotonic() < deadline:
        time.sleep(0.02)
    return record, _text(work / "gauge").splitlines()


def _text(path):
    return path.read_text() if path.exists() else ""


def test_cycles_are_marked_while_the_gauge_is_written_down(shell, tmp_path):
    record, lines = recorded(shell, tmp_path, "sleep 0.05")
    assert (record.boot, record.ended, len(record.cycles)) == ("one", "done", 2)
    for (idle_s, busy_s, rest_s, end_s), calls in record.cycles:
        assert idle_s < busy_s < rest_s < end_s
        assert calls >= 1
    name, *readings = lines
    assert name == "gauge battery"
    found = [line for each in readings if (line := gauge_line(each)) is not None]
    assert found[0].uptime_s <= record.cycles[0][0][0]
    assert found[-1].uptime_s >= record.cycles[-1][0][2]


def test_windows_shorter_than_a_tenth_of_a_second_are_decimal(shell, tmp_path):
    record, _ = recorded(shell, tmp_path, "true", window="0.08")
    assert (record.ended, len(record.cycles)) == ("done", 2)


def test_a_program_that_fails_ends_the_run(shell, tmp_path):
    record, _ = recorded(shell, tmp_path, "echo no such model; exit 7")
    assert record.ended == "the program ended with exit code 7: no such model"
    assert record.cycles == []
