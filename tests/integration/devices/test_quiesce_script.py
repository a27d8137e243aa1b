"""quiesce.sh run by the shells that run it, beside the programs of a virtual phone and a /sys of plain files."""

import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from farm.devices.quiesce import parse_begun, parse_restored
from farm.devices.quiesce_policy import Level
from tests.integration.devices.phone_folder import PhoneFolder, alive, end, make_phone, shell_here
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until

PROGRAMS = Path(__file__).resolve().parents[3] / "farm/simulation/programs"
SCALES = ("window_animation_scale", "transition_animation_scale", "animator_duration_scale")


@dataclass(frozen=True)
class Quiet:
    """The folder, and what Android has around it."""

    phone: PhoneFolder
    android: Path

    def run(self, *arguments, code=0):
        done = subprocess.run(
            self.phone.command(*arguments, script="quiesce.sh"), env=self.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=HANG_S, start_new_session=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (code, ""), done.stdout + done.stderr
        return done.stdout

    def begin(self, level="gentle", link="usb", seconds=300):
        return self.run("begin", level, link, "bench-1", str(seconds))

    def environment(self):
        return {**self.phone.environment(), "FARM_BOOT_ID_FILE": str(self.android / "boot_id")}

    def say(self, *words):
        return subprocess.run(words, env=self.environment(), capture_output=True, text=True, check=True).stdout.strip()

    def setting(self, key, namespace="global"):
        return self.say(str(self.android / "system/bin/settings"), "get", namespace, key)

    def put(self, key, value, namespace="global"):
        self.say(str(self.android / "system/bin/settings"), "put", namespace, key, value)

    def everything(self):
        """All that a measurement might change."""
        files = {str(each): each.read_text() for each in self.android.glob("sys/**/*") if each.is_file()}
        settings = {str(each): each.read_text() for each in self.android.glob("data/**/*") if each.is_file()}
        screen = (self.android / "dev/farm/run/screen").read_text()
        return files | settings | {"screen": screen, "doze": self.doze()}

    def doze(self):
        return (self.android / "dev/farm/run/doze").read_text()

    def sysfs(self, name):
        return self.android / "sys" / name

    @property
    def folder(self):
        return self.phone.root / "quiesce"

    def be_root(self):
        (self.android / "uid").write_text("0\n")


@pytest.fixture
def quiet(tmp_path):
    (tmp_path / "tmp").mkdir()
    phone = make_phone(tmp_path / "tmp", shell_here())
    android = tmp_path / "android"
    for folder in ("system/bin", "dev/farm/run", "dev/farm/dumpsys", "dev/__properties__/set", "data"):
        (android / folder).mkdir(parents=True)
    for folder in ("class/power_supply/usb", "class/power_supply/battery", "power", "class/kgsl/kgsl-3d0"):
        (android / "sys" / folder).mkdir(parents=True)
    programs = Path(phone.path)
    for source in PROGRAMS.iterdir():
        if source.name == "__init__.py" or not source.is_file():
            continue
        text = source.read_text().replace("@ROOT@", str(android)).replace("@SHELL@", phone.shell[0])
        (android / "system/bin" / source.name).write_text(text)
        (android / "system/bin" / source.name).chmod(0o755)
        (programs / source.name).unlink(missing_ok=True)
        (programs / source.name).symlink_to(android / "system/bin" / source.name)
    (programs / "id").unlink()
    (programs / "id").write_text(f"#!{phone.shell[0]}\ncat {android}/uid\n")
    (programs / "id").chmod(0o755)
    # All of this host's disks would be written out by the real ones.
    for name in ("sync", "fsync"):
        (programs / name).unlink(missing_ok=True)
        (programs / name).write_text(f"#!{phone.shell[0]}\n")
        (programs / name).chmod(0o755)
    for name in ("timeout",):
        if not (programs / name).exists():
            (programs / name).symlink_to(shutil.which(name) or "")
    for name, text in {
        "uid": "2000", "boot_id": "boot-1", "dev/farm/run/screen": "Asleep", "dev/farm/run/airplane": "0",
        "dev/__properties__/all": "[ro.build.version.sdk]: [33]", "sys/class/power_supply/usb/online": "1",
        "sys/class/power_supply/battery/capacity": "80", "dev/farm/run/doze": "false",
    }.items():  # fmt: skip
        (android / name).write_text(f"{text}\n")
    for core, governor in ((0, "schedutil"), (4, "walt")):
        policy = android / f"sys/devices/system/cpu/cpufreq/policy{core}"
        policy.mkdir(parents=True)
        (policy / "scaling_governor").write_text(f"{governor}\n")
        (policy / "related_cpus").write_text(f"{core} {core + 1}\n")
    (android / "sys/class/kgsl/kgsl-3d0/min_pwrlevel").write_text("8\n")
    (android / "sys/class/kgsl/kgsl-3d0/max_pwrlevel").write_text("0\n")
    script = phone.root / "bin/quiesce.sh"
    script.write_text(script.read_text().replace("SYS=/sys\n", f"SYS={android}/sys\n"))
    made = Quiet(phone, android)
    made.put("window_animation_scale", "1.0")
    made.put("screen_brightness", "180", "system")
    made.say(str(android / "system/bin/settings"), "get", "secure", "none")
    yield made
    made.run("end")
    end(phone)


def test_gentle_is_in_force_and_goes_without_a_trace(quiet):
    before = quiet.everything()
    begun = parse_begun(quiet.begin())
    assert begun.level is Level.GENTLE
    assert begun.took == {"animations", "awake", "screen"}
    assert [quiet.setting(each) for each in SCALES] == ["0", "0", "0"]
    assert quiet.setting("stay_on_while_plugged_in") == "7"
    assert quiet.setting("screen_brightness", "system") == "10"
    assert quiet.setting("screen_brightness_mode", "system") == "0"
    assert (quiet.android / "dev/farm/run/screen").read_text() == "Awake\n"
    assert quiet.setting("airplane_mode_on") == "0"
    restored = parse_restored(quiet.run("end"))
    assert restored.complete
    assert len(restored.restored) == 8
    after = {name: text for name, text in quiet.everything().items() if name in before}
    assert after == before
    assert quiet.setting("transition_animation_scale") == "null"
    assert not quiet.folder.exists()


def test_begun_twice_is_ended_once(quiet):
    quiet.begin()
    ledger = (quiet.folder / "ledger").read_text()
    quiet.begin()
    assert (quiet.folder / "ledger").read_text() == ledger
    assert parse_restored(quiet.run("end")).complete
    assert quiet.setting("window_animation_scale") == "1.0"
    assert quiet.run("end") == "ended\n"


def test_full_takes_the_radios_but_never_those_that_farm_comes_through(quiet):
    begun = parse_begun(quiet.begin("full", "network"))
    assert {"airplane", "background"} <= begun.refused
    assert quiet.setting("airplane_mode_on") == "0"
    assert quiet.doze() == "false\n"
    begun = parse_begun(quiet.begin("full", "usb"))
    assert {"airplane", "background"} <= begun.took
    assert (quiet.android / "dev/farm/run/airplane").read_text() == "1\n"
    assert quiet.doze() == "true\n"
    assert quiet.setting("wifi_scan_always_enabled") == "0"
    quiet.run("end")
    assert (quiet.android / "dev/farm/run/airplane").read_text() == "0\n"
    assert quiet.doze() == "false\n"
    assert quiet.setting("wifi_scan_always_enabled") == "null"


def test_a_release_without_the_command_keeps_its_radios(quiet):
    (quiet.android / "dev/__properties__/all").write_text("[ro.build.version.sdk]: [28]\n")
    begun = parse_begun(quiet.begin("full"))
    assert "airplane" in begun.refused
    assert quiet.setting("airplane_mode_on") == "0"
    assert quiet.run("end").endswith("ended\n")


def test_root_pins_clocks_and_holds_a_wake_lock_in_place_of_the_screen(quiet):
    quiet.be_root()
    lock = quiet.sysfs("power/wake_lock")
    lock.write_text("\n")
    quiet.sysfs("power/wake_unlock").write_text("\n")
    (quiet.android / "dev/farm/run/screen").write_text("Awake\n")
    begun = parse_begun(quiet.begin("full"))
    assert {"awake", "screen", "cpu", "gpu"} <= begun.took
    assert lock.read_text() == "farm_quiesce\n"
    assert (quiet.android / "dev/farm/run/screen").read_text() == "Asleep\n"
    assert quiet.setting("stay_on_while_plugged_in") == "0"
    governor = quiet.sysfs("devices/system/cpu/cpufreq/policy4/scaling_governor")
    assert governor.read_text() == "performance\n"
    assert quiet.sysfs("class/kgsl/kgsl-3d0/min_pwrlevel").read_text() == "0\n"
    lock.write_text("\n")  # what a kernel does once the unlock is written
    quiet.run("end")
    assert governor.read_text() == "walt\n"
    assert quiet.sysfs("class/kgsl/kgsl-3d0/min_pwrlevel").read_text() == "8\n"
    assert (quiet.android / "dev/farm/run/screen").read_text() == "Awake\n"


def test_what_somebody_changed_meanwhile_is_left(quiet):
    quiet.begin()
    quiet.put("screen_brightness", "77", "system")
    restored = parse_restored(quiet.run("end"))
    assert restored.complete
    assert restored.left == ("screen_brightness=77 (farm made it 10, before it was 180)",)
    assert quiet.setting("screen_brightness", "system") == "77"
    assert quiet.setting("window_animation_scale") == "1.0"


def test_a_begin_that_was_cut_anywhere_ends_as_it_was(quiet):
    """The ledger names all changes before the first: whichever of them were made are undone."""
    before = quiet.everything()
    settings = quiet.android / "system/bin/settings"
    whole = settings.read_text()
    for after in range(0, 7, 2):
        # From then on the phone does not take a change any more: begin dies in the middle of the changes.
        count = quiet.android / "count"
        count.write_text("0\n")
        settings.write_text(
            whole.replace("put) printf", f'put) read -r n <{count}; echo $((n + 1)) >{count}; [ "$n" -lt {after} ] ||'
                          " kill -9 $(cat " + str(quiet.android / "victim") + "); printf")
        )  # fmt: skip
        cut = subprocess.Popen(
            quiet.phone.command("begin", "gentle", "usb", "bench-1", "300", script="quiesce.sh"),
            env=quiet.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        (quiet.android / "victim").write_text(f"{cut.pid}\n")
        cut.wait(HANG_S)
        assert cut.returncode == -signal.SIGKILL
        settings.write_text(whole)
        assert parse_restored(quiet.run("end")).complete
        after_all = {name: text for name, text in quiet.everything().items() if name in before}
        assert after_all == before


def test_after_a_reboot_only_what_outlived_it_is_changed_back(quiet):
    quiet.be_root()
    quiet.begin("full")
    (quiet.android / "boot_id").write_text("boot-2\n")
    governor = quiet.sysfs("devices/system/cpu/cpufreq/policy0/scaling_governor")
    governor.write_text("interactive\n")  # as this boot has it
    (quiet.android / "dev/farm/run/doze").write_text("true\n")  # forced again by another user, after that boot
    restored = parse_restored(quiet.run("end"))
    assert restored.complete
    assert str(governor) in {each.partition("=")[0] for each in restored.rebooted}
    assert governor.read_text() == "interactive\n"
    assert quiet.doze() == "true\n"
    assert quiet.setting("airplane_mode_on") == "0"
    assert quiet.setting("window_animation_scale") == "1.0"


def test_what_cannot_be_changed_back_is_kept_for_another_try(quiet):
    quiet.begin()
    settings = quiet.android / "system/bin/settings"
    whole = settings.read_text()
    settings.write_text(
        whole.replace("case $1 in\nget)", '[ "${3-}" != screen_brightness ] || exit 1\ncase $1 in\nget)')
    )
    restored = parse_restored(quiet.run("end", code=1))
    assert not restored.complete
    assert restored.failed == ("screen_brightness (it was 180)",)
    settings.write_text(whole)
    assert parse_restored(quiet.run("end")).complete
    assert quiet.setting("screen_brightness", "system") == "180"
    assert not quiet.folder.exists()


def test_lines_of_the_ledger_that_are_not_farms_are_told_and_dropped(quiet):
    quiet.be_root()
    quiet.begin("gentle")
    trap = quiet.folder.parent / "trap"
    with (quiet.folder / "ledger").open("a") as ledger:
        ledger.write("bogus a b c\nglobal x 1 $(touch trap)\nfile relative 1 2\n")
        ledger.write(f"file {quiet.android}/../x;touch>{trap} 1 2\nglobal half")
    restored = parse_restored(quiet.run("end"))
    assert restored.complete
    assert [line.split()[0] for line in restored.unknown] == ["bogus", "global", "file", "file"]
    assert quiet.setting("window_animation_scale") == "1.0"
    assert not trap.exists()
    assert not quiet.folder.exists()


def test_nobody_renews_it_and_it_ends_by_itself(quiet):
    quiet.begin("gentle", "usb", 1)
    until(lambda: not quiet.folder.exists())
    assert quiet.setting("window_animation_scale") == "1.0"


def test_renewed_it_waits_longer_and_its_watch_ends_with_it(quiet):
    quiet.begin("gentle", "usb", 60)
    assert quiet.run("renew", "500") == "renewed\n"
    deadline = int((quiet.folder / "deadline").read_text())
    assert deadline - float(Path("/proc/uptime").read_text().split()[0]) > 450
    watch = int((quiet.folder / "watch").read_text().split()[0])
    assert alive(watch)
    quiet.run("end")
    assert not alive(watch)
    assert quiet.run("renew", "500") == "ended\n"
    assert not quiet.folder.exists()


def test_a_phone_given_back_clean_has_its_values_again(quiet):
    quiet.begin()
    done = subprocess.run(
        quiet.phone.command("clean"), env=quiet.environment(), capture_output=True, text=True, timeout=HANG_S
    )
    assert (done.returncode, done.stdout) == (0, "cleaned\n")
    assert not quiet.phone.root.exists()
    assert quiet.setting("window_animation_scale") == "1.0"
    quiet.phone.root.joinpath("bin").mkdir(parents=True)  # the fixture ends what is there
    for script in (Path(__file__).resolve().parents[3] / "device_scripts").glob("*.sh"):
        shutil.copy(script, quiet.phone.root / "bin")


@pytest.mark.parametrize(
    "arguments", [(), ("begin",), ("begin", "loud", "usb", "me", "60"), ("renew", "soon"), ("sleep",)]
)
def test_wrong_words_are_refused(quiet, arguments):
    assert quiet.run(*arguments, code=2).startswith("failed usage:")
    assert not quiet.folder.exists()
