"""charge.sh run by the shells that run it, over a /sys of plain files."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from farm.fleet.phone_paths import scripts_folder
from tests.support.whole_farm import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes a charger's switch")
ENABLED, SUSPEND = "battery/charging_enabled", "battery/input_suspend"


class Phone:
    """The script's folder and a /sys beside it."""

    def __init__(self, shell: str, folder: Path, **nodes: str) -> None:
        self.shell, self.folder = shell, folder
        (folder / "bin").mkdir(parents=True)
        for name in ("charge.sh", "processes.sh"):
            shutil.copy(scripts_folder() / name, folder / "bin")
        self.supply = folder / "sys/class/power_supply"
        (self.supply / "battery").mkdir(parents=True)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        for name, value in nodes.items():
            self.node(name).write_text(f"{value}\n")

    def node(self, name: str) -> Path:
        return self.supply / "battery" / name

    def says(self, name: str) -> str:
        return self.node(name).read_text().strip()

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [self.shell, str(self.folder / "bin/charge.sh"), *words],
            env={**os.environ, "FARM_SYS": str(self.folder / "sys"), "FARM_BOOT_ID_FILE": str(self.folder / "boot_id")},
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.strip()


@pytest.fixture(params=["mksh", "dash"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_charging_is_held_and_allowed(shell: str, tmp_path: Path) -> None:
    phone = Phone(shell, tmp_path / "p", charging_enabled="1", input_suspend="0")
    assert phone.run("hold", "0").startswith("held ")
    until(lambda: phone.says("charging_enabled") == "1")  # its time was over at once
    assert phone.run("allow") == "nothing"
    said = phone.run("hold", "1")
    assert said == f"held {phone.node('charging_enabled')}"
    assert (phone.says("charging_enabled"), phone.says("input_suspend")) == ("0", "0")
    assert phone.run("allow") == f"allowed {phone.node('charging_enabled')}"
    assert phone.says("charging_enabled") == "1"


def test_the_only_switch_is_taken_with_its_own_words(shell: str, tmp_path: Path) -> None:
    phone = Phone(shell, tmp_path / "p", input_suspend="0")
    assert phone.run("hold", "1") == f"held {phone.node('input_suspend')}"
    assert phone.says("input_suspend") == "1"
    phone.run("allow")
    assert phone.says("input_suspend") == "0"


def test_a_phone_without_a_switch_says_so(shell: str, tmp_path: Path) -> None:
    phone = Phone(shell, tmp_path / "p", charging_enabled="what")
    assert phone.run("hold", "1") == "no-switch"
    assert phone.says("charging_enabled") == "what"


def test_after_a_reboot_nothing_is_written(shell: str, tmp_path: Path) -> None:
    phone = Phone(shell, tmp_path / "p", charging_enabled="1")
    phone.run("hold", "1")
    (phone.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    phone.node("charging_enabled").write_text("7\n")
    assert phone.run("allow").startswith("allowed")
    assert phone.says("charging_enabled") == "7"
