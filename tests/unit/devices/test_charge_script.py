"""charge.sh run by the shells that run it, over a /sys of plain files."""

import contextlib
import os
import shutil
import subprocess
import uuid

import psutil
import pytest

from farm.devices.server.phone_paths import scripts_folder
from tests.support.needs import need
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes a charger's switch")
ENABLED, SUSPEND = "battery/charging_enabled", "battery/input_suspend"
RETRY_S = "0.05"
HOLD_S = "600"  # longer than any test takes


class Phone:
    """The script's folder and a /sys beside it."""

    def __init__(self, shell, folder, **nodes):
        self.shell, self.folder = shell, folder
        (folder / "bin").mkdir(parents=True)
        for name in ("charge.sh", "processes.sh", "rpc_supervise.sh"):
            shutil.copy(scripts_folder() / name, folder / "bin")
        self.sys = folder.with_name(f"{folder.name}-sys")  # not ours to remove
        self.supply = self.sys / "class/power_supply"
        (self.supply / "battery").mkdir(parents=True)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        for name, value in nodes.items():
            self.node(name).write_text(f"{value}\n")

    def node(self, name):
        return self.supply / "battery" / name

    def stuck(self, name, *, stuck):
        """Whether the driver takes no other value: what is written to a folder goes nowhere."""
        if stuck:
            self.node(name).rename(self.node(f"{name}.was"))
            self.node(name).mkdir()
        else:
            self.node(name).rmdir()
            self.node(f"{name}.was").rename(self.node(name))

    def says(self, name):
        return self.node(name).read_text().strip()

    def run(self, *words, script="charge.sh"):
        own = {"FARM_SYS": self.sys, "FARM_BOOT_ID_FILE": self.folder / "boot_id", "FARM_RETRY_S": RETRY_S}
        done = subprocess.run(
            [self.shell, str(self.folder / "bin" / script), *words],
            env={**os.environ, **{name: str(value) for name, value in own.items()}},
            capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.strip()


def timers(folder):
    """Those of phones in that folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "expire" in words and any(word.startswith(str(folder)) for word in words):
                found.append(process)
    return found


def naps(phone):
    """The sleeping processes of the phone's timers by what they wait for, in seconds."""
    found = {}
    for timer in timers(phone.folder):
        with contextlib.suppress(psutil.Error):
            for child in timer.children():
                words = child.cmdline()
                if words and words[0].endswith("sleep"):
                    found[words[1]] = child
    return found


def expire(phone):
    """Let the time of its last hold be over now."""
    until(lambda: HOLD_S in naps(phone))
    naps(phone)[HOLD_S].kill()


@pytest.fixture(params=["mksh", "dash"])
def shell(request, tmp_path):
    need(request.param)
    yield str(request.param)
    for timer in timers(tmp_path):
        for process in (timer, *timer.children()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_charging_is_held_and_allowed(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1", input_suspend="0")
    assert phone.run("hold", "0").startswith("held ")
    until(lambda: phone.run("state") == "nothing")  # its time was over at once
    assert phone.says("charging_enabled") == "1"
    assert phone.run("allow") == "nothing"
    said = phone.run("hold", HOLD_S)
    assert said == f"held {phone.node('charging_enabled')}"
    assert (phone.says("charging_enabled"), phone.says("input_suspend")) == ("0", "0")
    assert phone.run("allow") == f"allowed {phone.node('charging_enabled')}"
    assert phone.says("charging_enabled") == "1"


def test_the_only_switch_is_taken_with_its_own_words(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", input_suspend="0")
    assert phone.run("hold", HOLD_S) == f"held {phone.node('input_suspend')}"
    assert phone.says("input_suspend") == "1"
    phone.run("allow")
    assert phone.says("input_suspend") == "0"


def test_a_phone_without_a_switch_says_so(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="what")
    assert phone.run("hold", HOLD_S) == "no-switch"
    assert phone.says("charging_enabled") == "what"


def test_after_a_reboot_nothing_is_written(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1")
    phone.run("hold", HOLD_S)
    (phone.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    phone.node("charging_enabled").write_text("7\n")
    assert phone.run("allow").startswith("allowed")
    assert phone.says("charging_enabled") == "7"


def test_what_is_held_is_told_until_the_phone_reboots(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1")
    assert phone.run("state") == "nothing"
    phone.run("hold", HOLD_S)
    assert phone.run("state") == f"held {phone.node('charging_enabled')}"
    (phone.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    assert phone.run("state") == "nothing"


def test_a_timer_goes_on_until_the_phone_charges(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1")
    phone.run("hold", HOLD_S)
    phone.stuck("charging_enabled", stuck=True)
    assert phone.run("allow").startswith("failed")
    expire(phone)
    until(lambda: RETRY_S in naps(phone))  # a try has failed
    phone.stuck("charging_enabled", stuck=False)
    until(lambda: phone.says("charging_enabled") == "1")
    until(lambda: phone.run("state") == "nothing")


def test_a_timer_needs_no_folder(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1")
    phone.run("hold", HOLD_S)
    until(lambda: HOLD_S in naps(phone))
    (phone.folder / "charge").unlink()
    shutil.rmtree(phone.folder / "bin")
    expire(phone)
    until(lambda: phone.says("charging_enabled") == "1")


def test_a_timer_leaves_a_later_hold_alone(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1", input_suspend="0")
    phone.run("hold", HOLD_S)
    phone.run("hold", f"{HOLD_S}.5")
    expire(phone)
    until(lambda: naps(phone).keys() == {f"{HOLD_S}.5"})
    assert phone.says("charging_enabled") == "0"


def test_clean_lets_the_phone_charge_first(shell, tmp_path):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1")
    phone.run("hold", HOLD_S)
    phone.stuck("charging_enabled", stuck=True)
    assert "charging is still held back: failed" in phone.run("clean", script="rpc_supervise.sh")
    assert phone.folder.exists()
    phone.stuck("charging_enabled", stuck=False)
    assert phone.run("clean", script="rpc_supervise.sh") == "cleaned"
    assert phone.says("charging_enabled") == "1"
    assert not phone.folder.exists()


@pytest.mark.parametrize("node", ["/{0}/x;touch\t{0}/done", "$(touch${{IFS}}{0}/done)", "{0}/boot_id", "*"])
def test_a_note_that_names_no_switch_reaches_no_shell(shell, tmp_path, node):
    phone = Phone(shell, tmp_path / "p", charging_enabled="1")
    (tmp_path / "p/charge").write_text(f"{(tmp_path / 'p/boot_id').read_text().strip()} {node.format(tmp_path)} 1 t\n")
    assert phone.run("state") == phone.run("allow") == "nothing"
    assert not (tmp_path / "done").exists()
