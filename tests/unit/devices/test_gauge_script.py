"""gauge.sh run by the shells that run it, over a /sys of plain files."""

import os
import shutil
import subprocess

import pytest

from farm.devices.server.phone_paths import scripts_folder
from farm.measure.gauge import gauge_line
from tests.support.pages import ROOT
from tests.support.waiting import HANG_S

SHELLS = [shell for shell in ("mksh", "dash", "bash") if shutil.which(shell)]
DUMPS = ROOT / "tests" / "data" / "phones" / "dumpsys_battery"

pytestmark = pytest.mark.parametrize("shell", SHELLS)


def supply(folder, name, **files):
    place = folder / "sys/class/power_supply" / name
    place.mkdir(parents=True)
    for each, text in files.items():
        (place / each).write_text(f"{text}\n")


def first_lines(shell, folder, dumpsys=""):
    """The name and two readings; then nobody listens, and the script ends."""
    (folder / "tools").mkdir()
    (folder / "bin").mkdir()
    (folder / "dump").write_text(dumpsys)
    program = folder / "tools/dumpsys"
    program.write_text(f'#!/bin/sh\n[ "$*" = battery ] && cat {folder}/dump\n')
    program.chmod(0o755)
    for name in ("gauge.sh", "processes.sh"):
        shutil.copy(scripts_folder() / name, folder / "bin")
    environment = {**os.environ, "FARM_SYS": str(folder / "sys"), "PATH": f"{folder}/tools:{os.environ['PATH']}"}
    words = [shell, str(folder / "bin/gauge.sh"), "0.01", str(os.getpid())]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as ran:
        assert ran.stdout is not None
        lines = [ran.stdout.readline().strip() for _ in range(3)]
        ran.stdout.close()
        ran.wait(HANG_S)
    return lines


def told(text):
    line = gauge_line(text)
    assert line is not None, text
    assert line.uptime_s > 0
    return line.current, line.voltage, line.counter, line.status


def test_the_battery_of_the_kernel(shell, tmp_path):
    supply(tmp_path, "usb", type="USB", voltage_now=5_000_000, current_now=1)
    supply(
        tmp_path, "battery", type="Battery", voltage_now=3_900_000, current_now=-450_000, charge_counter=7,
        status="Not charging",
    )  # fmt: skip
    name, *lines = first_lines(shell, tmp_path)
    assert name == "gauge battery"
    assert [told(each) for each in lines] == [(-450_000, 3_900_000, 7, "Not charging")] * 2


def test_the_gauge_beside_a_battery_without_current(shell, tmp_path):
    supply(tmp_path, "battery", type="Battery", voltage_now=3_900_000, status="Discharging")
    supply(tmp_path, "bms", type="BMS", voltage_now=3_850_000, current_now=450_000)
    name, line, _ = first_lines(shell, tmp_path)
    assert name == "gauge bms"
    assert told(line) == (450_000, 3_850_000, None, "Discharging")


def test_it_ends_with_the_process_that_listens(shell, tmp_path):
    supply(tmp_path, "battery", type="Battery", voltage_now=3_900_000, current_now=1, status="Discharging")
    script, environment = str(scripts_folder() / "gauge.sh"), {**os.environ, "FARM_SYS": str(tmp_path / "sys")}
    with (
        subprocess.Popen(["sleep", "60"]) as listener,
        (tmp_path / "said").open("wb") as said,
        subprocess.Popen([shell, script, "0.01", str(listener.pid)], env=environment, stdout=said) as ran,
    ):
        while not (tmp_path / "said").stat().st_size:
            assert ran.poll() is None
        listener.kill()
        listener.wait()
        ran.wait(HANG_S)


def test_only_a_charge_counter(shell, tmp_path):
    supply(tmp_path, "max170xx_battery", type="Battery", voltage_now=3_900_000, charge_counter=99, status="Discharging")
    name, line, _ = first_lines(shell, tmp_path)
    assert name == "gauge max170xx_battery"
    assert told(line) == (None, 3_900_000, 99, "Discharging")


@pytest.mark.parametrize(
    ("dump", "wanted"),
    [
        ("samsung-2018-usb-full.txt", None),
        ("android10-full-li-ion.txt", None),
        ("updates-stopped-short.txt", "set-by-hand"),
    ],
)
def test_the_service_where_files_are_closed(shell, tmp_path, dump, wanted):
    text = (DUMPS / dump).read_text()
    name, line, _ = first_lines(shell, tmp_path, text)
    assert name == "gauge dumpsys"
    status = next((row.split(": ")[1] for row in text.splitlines() if row.startswith("  status: ")), "-")
    assert told(line)[3] == (wanted or status)
    voltage = next((row.split(": ")[1] for row in text.splitlines() if row.startswith("  voltage: ")), None)
    assert told(line)[1] == (int(voltage) if voltage else None)
