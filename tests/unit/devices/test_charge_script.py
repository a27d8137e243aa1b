"""charge.sh run by the shells that run it, over a /sys of plain files."""

import contextlib
import os
import shutil
import uuid

import psutil
import pytest

from tests.support.needs import need
from tests.support.phone_script import ScriptFolder
from tests.support.whole_farm import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root writes a charger's switch")
RETRY_S = "0.05"
HOLD_S = "600"  # longer than any test takes


class Phone(ScriptFolder):
    """The script's folder, and a /sys beside it that is not ours to remove."""

    def __init__(self, shell, folder, **nodes):
        super().__init__(
            shell, folder / "p", "charge.sh", "rpc_supervise.sh",
            FARM_SYS=str(folder / "sys"), FARM_BOOT_ID_FILE=str(folder / "p/boot_id"), FARM_RETRY_S=RETRY_S,
        )  # fmt: skip
        self.sys = folder / "sys"
        self.supply("battery", **nodes)
        self.reboot()

    def node(self, name="charging_enabled"):
        return self.sys / "class/power_supply/battery" / name

    def reboot(self):
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")

    def stuck(self, *, stuck):
        """Whether the driver takes no other value: what is written to a folder goes nowhere.

        The node changes in one step: a write to a name that is free for a moment would make a file.
        """
        node, kept, link = self.node(), self.node("kept"), self.node("link")
        if stuck:
            shutil.copy(node, kept)
        link.symlink_to(self.sys if stuck else kept)
        link.replace(node)

    def says(self, name="charging_enabled"):
        return self.node(name).read_text().strip()

    def charge(self, *words, code=0):
        return self.run("charge.sh", *words, code=code).strip()

    def naps(self):
        """The sleeping processes of its timers by what they wait for, in seconds."""
        found = {}
        for timer in timers(self.folder):
            with contextlib.suppress(psutil.Error):
                found |= {child.cmdline()[1]: child for child in timer.children() if "sleep" in child.name()}
        return found

    def expire(self):
        """Let the time of its last hold be over now."""
        until(lambda: HOLD_S in self.naps())
        self.naps()[HOLD_S].kill()


def timers(folder):
    """Those of phones in that folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "expire" in words and any(word.startswith(str(folder)) for word in words):
                found.append(process)
    return found


@pytest.fixture(params=["mksh", "dash"])
def phone(request, tmp_path):
    """A function that makes a phone with those nodes; its default: one switch that is on."""
    need(request.param)
    yield lambda **nodes: Phone(request.param, tmp_path, **(nodes or {"charging_enabled": "1"}))
    for timer in timers(tmp_path):
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end by itself meanwhile
            for process in (*timer.children(), timer):
                process.kill()


@pytest.fixture
def held(phone):
    """A phone whose charging is held back."""
    phone = phone()
    phone.charge("hold", HOLD_S)
    return phone


def test_charging_is_held_and_allowed(phone):
    phone = phone(charging_enabled="1", input_suspend="0")
    assert phone.charge("hold", "0").startswith("held ")
    until(lambda: phone.charge("state") == "nothing")  # its time was over at once
    assert phone.says() == "1"
    assert phone.charge("allow") == "nothing"
    assert phone.charge("hold", HOLD_S) == phone.charge("state") == f"held {phone.node()}"
    assert (phone.says(), phone.says("input_suspend")) == ("0", "0")
    assert phone.charge("allow") == f"allowed {phone.node()}"
    assert phone.says() == "1"


def test_the_only_switch_is_taken_with_its_own_words(phone):
    phone = phone(input_suspend="0")
    assert phone.charge("hold", HOLD_S) == f"held {phone.node('input_suspend')}"
    assert phone.says("input_suspend") == "1"
    phone.charge("allow")
    assert phone.says("input_suspend") == "0"


def test_a_phone_without_a_switch_says_so(phone):
    phone = phone(charging_enabled="what")
    assert (phone.charge("hold", HOLD_S), phone.says()) == ("no-switch", "what")


def test_after_a_reboot_nothing_is_held_or_written(held):
    held.reboot()
    assert held.charge("state") == "nothing"
    held.node().write_text("7\n")
    assert held.charge("allow").startswith("allowed")
    assert held.says() == "7"


def test_a_timer_goes_on_until_the_phone_charges(held):
    held.stuck(stuck=True)
    assert held.charge("allow", code=1).startswith("failed")
    held.expire()
    until(lambda: RETRY_S in held.naps())  # a try has failed
    held.stuck(stuck=False)
    until(lambda: held.says() == "1")
    until(lambda: held.charge("state") == "nothing")


def test_a_timer_needs_no_folder(held):
    until(lambda: HOLD_S in held.naps())
    (held.folder / "charge").unlink()
    shutil.rmtree(held.folder / "bin")
    held.expire()
    until(lambda: held.says() == "1")


def test_a_timer_leaves_a_later_hold_alone(held):
    held.charge("hold", f"{HOLD_S}.5")
    held.expire()
    until(lambda: held.naps().keys() == {f"{HOLD_S}.5"})
    assert held.says() == "0"


def test_clean_lets_the_phone_charge_first(held):
    held.stuck(stuck=True)
    assert "charging is still held back: failed" in held.run("rpc_supervise.sh", "clean", code=1)
    assert held.folder.exists()
    held.stuck(stuck=False)
    assert held.run("rpc_supervise.sh", "clean") == "cleaned\n"
    assert held.says() == "1"
    assert not held.folder.exists()


@pytest.mark.parametrize("node", ["/{0}/x;touch\t{0}/done", "$(touch${{IFS}}{0}/done)", "{0}/boot_id", "*"])
def test_a_note_that_names_no_switch_reaches_no_shell(phone, node, tmp_path):
    phone = phone()
    boot = (phone.folder / "boot_id").read_text().strip()
    (phone.folder / "charge").write_text(f"{boot} {node.format(tmp_path)} 1 t\n")
    assert phone.charge("state") == phone.charge("allow") == "nothing"
    assert not (tmp_path / "done").exists()
