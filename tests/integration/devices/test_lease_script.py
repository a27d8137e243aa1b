"""lease.sh before and after a person has the phone, run by the shells that run it."""

import hashlib
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.devices.phone_folder import end, make_phone, shell_here
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until

MARK = "FARM_BOOT_ID_FILE"  # what a virtual phone's processes have; without it the script kills nothing on this host


@pytest.fixture
def phone(tmp_path):
    made = make_phone(tmp_path / "tmp", shell_here())
    yield made
    end(made)


@pytest.fixture(autouse=True)
def _folder(tmp_path):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "boot_id").write_text("boot-1\n")


def environment(phone, *, marked=True):
    mark = {MARK: str(phone.root.parent.parent / "boot_id")} if marked else {}
    return {**phone.environment(), **mark}


def lease(phone, *order, marked=True):
    done = subprocess.run(
        phone.command(*order, script="lease.sh"), env=environment(phone, marked=marked), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=HANG_S, start_new_session=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def begun(phone, *, marked=True):
    """The hash of what a lease's begin noted of processes."""
    code, said = lease(phone, "begin", marked=marked)
    assert (code, said[:6]) == (0, "begun ")
    noted = (phone.root / "lease" / "processes").read_bytes()
    assert said.split()[-1] == hashlib.sha256(noted).hexdigest()
    return said.split()[-1]


@contextmanager
def running(phone, name="sleep", *, marked=True):
    """Something that a person started and left, as adbd's child in a session of its own."""
    process = subprocess.Popen(
        [name, "1000"], executable=shutil.which("sleep"), env=environment(phone, marked=marked),
        start_new_session=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def tree(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "farm" not in path.relative_to(folder).parts}


def test_new_files_go_and_old_ones_stay(phone):
    there = phone.root.parent
    (there / "old" / "deep").mkdir(parents=True)
    for name in ("old/a b", "old/deep/c\nd", "-rf", "*"):
        (there / name).write_text("mine")
    before = tree(there)
    begun(phone)
    (there / "old" / "deep" / "new\nline").write_text("x")
    (there / "new dir" / "below").mkdir(parents=True)
    (there / "new dir" / "below" / "file").write_text("x")
    (there / "-new").write_text("x")
    (there / "farm" / "bundles" / "b2").mkdir()
    (there / "link").symlink_to(there / "old")
    (there / "old" / "a b").write_text("changed")
    assert lease(phone, "clean") == (0, "cleaned killed=0 removed=6 left=0")
    assert tree(there) == before
    assert (there / "farm" / "bundles" / "b2").is_dir()
    assert lease(phone, "clean") == (0, "cleaned killed=0 removed=0 left=0")


def test_without_a_note_no_file_is_touched_and_no_process_spared(phone):
    """Whoever has the phone can remove the note."""
    (phone.root.parent / "somebody's").write_text("x")
    begun(phone)
    shutil.rmtree(phone.root / "lease")
    with running(phone) as process:
        assert lease(phone, "clean") == (0, "cleaned killed=1 removed=0 left=0")
        assert process.wait(HANG_S) == -9
    assert "somebody's" in tree(phone.root.parent)


def test_what_is_beside_farms_own_goes_whatever_its_name(phone):
    own = {path.name for path in phone.root.iterdir()}
    for name in ("plain", ".hidden", "..evil", "...", "-rf", "a b", "*"):
        (phone.root / name).write_text("x")
    begun(phone)
    assert lease(phone, "clean") == (0, "cleaned killed=0 removed=0 left=0")
    assert {path.name for path in phone.root.iterdir()} == own


def test_what_programs_wrote_goes_and_their_files_stay(phone):
    for name in ("work0", "work1", 16 * "a"):
        (phone.root / "programs" / name).mkdir(parents=True)
        (phone.root / "programs" / name / "output.raw").write_text("x")
    assert lease(phone, "clean") == (0, "cleaned killed=0 removed=0 left=0")
    assert tree(phone.root / "programs") == {16 * "a", f"{16 * 'a'}/output.raw"}


def test_the_note_of_a_lease_that_was_never_cleaned_holds(phone):
    begun(phone)
    (phone.root.parent / "first").write_text("x")
    assert lease(phone, "begin")[1].startswith("begun before ")
    assert lease(phone, "clean") == (0, "cleaned killed=0 removed=1 left=0")


def test_what_people_left_running_ends_and_nothing_else(phone):
    phone.play("session")
    phone.start()
    follower = phone.follow()
    with running(phone) as before, running(phone, marked=False) as elsewhere:
        noted = begun(phone)
        with running(phone) as first, running(phone) as second:
            assert lease(phone, "clean", noted) == (0, "cleaned killed=2 removed=0 left=0")
            assert (first.wait(HANG_S), second.wait(HANG_S)) == (-9, -9)
        assert before.poll() is None
        assert elsewhere.poll() is None
    assert follower.poll() is None
    os.killpg(follower.pid, signal.SIGKILL)
    follower.communicate()


def test_no_process_is_spared_for_its_name_or_a_changed_note(phone):
    noted = begun(phone)
    name = str(phone.root / "bin" / "rpc_supervise.sh")
    with running(phone, name) as named, running(phone) as forged:
        (phone.root / "run").mkdir()
        (phone.root / "run" / "state").write_text(f"id=x\nstarted=1\npid={forged.pid}\nsupervisor={forged.pid}\n")
        ticks = Path(f"/proc/{forged.pid}/stat").read_text().rpartition(")")[2].split()[19]
        with (phone.root / "lease" / "processes").open("a") as note:
            note.write(f"{forged.pid}:{ticks}\n")
        assert lease(phone, "clean", noted)[1] == "cleaned killed=1 removed=0 left=0"  # nobody counts who says farm
        assert (named.wait(HANG_S), forged.wait(HANG_S)) == (-9, -9)


def test_without_the_hash_of_the_note_no_process_is_spared(phone):
    """The daemon was started again meanwhile: what is there may be of the holder's making."""
    with running(phone) as before:
        begun(phone)
        assert lease(phone, "clean") == (0, "cleaned killed=1 removed=0 left=0")
        assert before.wait(HANG_S) == -9


def test_after_a_reboot_numbers_mean_nothing(phone):
    begun(phone)
    (phone.root.parent / "new").write_text("x")
    (phone.root.parent.parent / "boot_id").write_text("boot-2\n")
    with running(phone) as process:
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        (phone.root / "lease" / "processes").write_text(f"none\n{process.pid}:{ticks}\n")
        assert lease(phone, "clean") == (0, "cleaned killed=1 removed=1 left=0")
        assert process.wait(HANG_S) == -9


@pytest.mark.skipif(os.getuid() == 2000, reason="this user is a phone's shell")
def test_on_a_host_no_process_is_touched(phone):
    begun(phone, marked=False)
    with running(phone, marked=False) as process:
        assert lease(phone, "clean", marked=False) == (0, "cleaned killed=0 removed=0 left=0")
        assert process.poll() is None


def test_a_note_that_was_cut_off_counts_for_nothing(phone):
    (phone.root / "lease").mkdir()
    (phone.root / "lease" / "files").write_text("")
    (phone.root.parent / "mine").write_text("x")
    assert lease(phone, "clean")[1].endswith("removed=0 left=0")
    begun(phone)
    assert lease(phone, "clean")[1].endswith("removed=0 left=0")
    until(lambda: "mine" in tree(phone.root.parent))


def test_usage(phone):
    assert lease(phone, "")[0] == 2
