"""lease.sh before and after a person has the phone, run by the shells that run it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.integration.fleet.phone_folder import LIMIT_S, PhoneFolder, alive, end, make_phone, wait_for

MARK = "FARM_BOOT_ID_FILE"  # what a virtual phone's processes have; without it the script kills nothing on this host


@pytest.fixture(params=["mksh", "dash"])
def phone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PhoneFolder]:
    if not shutil.which(request.param) or (request.param == "mksh" and not shutil.which("toybox")):
        pytest.skip(f"{request.param} (with toybox) is not installed")
    made = make_phone(tmp_path / "tmp", request.param)
    yield made
    end(made)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "boot_id").write_text("boot-1\n")


def environment(phone: PhoneFolder, *, marked: bool = True) -> dict[str, str]:
    mark = {MARK: str(phone.root.parent.parent / "boot_id")} if marked else {}
    return {**phone.environment(), **mark}


def lease(phone: PhoneFolder, order: str, *, marked: bool = True) -> tuple[int, str]:
    done = subprocess.run(
        phone.command(order, script="lease.sh"), env=environment(phone, marked=marked), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_S, start_new_session=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


@contextmanager
def running(phone: PhoneFolder, *, marked: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Something that a person started and left, as adbd's child in a session of its own."""
    process = subprocess.Popen(
        ["sleep", "1000"], env=environment(phone, marked=marked), start_new_session=True, stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "farm" not in path.relative_to(folder).parts}


def test_new_files_go_and_old_ones_stay(phone: PhoneFolder) -> None:
    there = phone.root.parent
    (there / "old" / "deep").mkdir(parents=True)
    for name in ("old/a b", "old/deep/c\nd", "-rf", "*"):
        (there / name).write_text("mine")
    before = tree(there)
    assert lease(phone, "begin") == (0, "begun")
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


def test_without_a_note_nothing_is_touched(phone: PhoneFolder) -> None:
    (phone.root.parent / "somebody's").write_text("x")
    with running(phone) as process:
        assert lease(phone, "clean") == (0, "cleaned killed=0 removed=0 left=0")
        assert process.poll() is None
    assert "somebody's" in tree(phone.root.parent)


def test_the_note_of_a_lease_that_was_never_cleaned_holds(phone: PhoneFolder) -> None:
    assert lease(phone, "begin") == (0, "begun")
    (phone.root.parent / "first").write_text("x")
    assert lease(phone, "begin") == (0, "begun before")
    assert lease(phone, "clean") == (0, "cleaned killed=0 removed=1 left=0")


def test_what_people_left_running_ends_and_nothing_else(phone: PhoneFolder) -> None:
    phone.play("session")
    phone.start()
    follower = phone.follow()
    with running(phone) as before, running(phone, marked=False) as elsewhere:
        assert lease(phone, "begin") == (0, "begun")
        with running(phone) as first, running(phone) as second:
            assert lease(phone, "clean") == (0, "cleaned killed=2 removed=0 left=0")
            assert (first.wait(LIMIT_S), second.wait(LIMIT_S)) == (-9, -9)
        assert before.poll() is None
        assert elsewhere.poll() is None
    assert alive(int(phone.state()["pid"]))
    assert alive(int(phone.state()["supervisor"]))
    assert phone.status()["adoptable"] == "yes"
    assert follower.poll() is None
    os.killpg(follower.pid, signal.SIGKILL)
    follower.communicate()


def test_who_follows_the_server_since_after_the_note_goes_on(phone: PhoneFolder) -> None:
    """Chaos: a daemon started anew follows anew; its `flock` was taken for a person's, and the server for dead."""
    phone.play("session")
    phone.start()
    assert lease(phone, "begin") == (0, "begun")
    identifier = phone.state()["id"]
    follower = subprocess.Popen(
        phone.command("follow", identifier), env=environment(phone), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == f"following {identifier}\n"
        wait_for(lambda: psutil.Process(follower.pid).children(), "it does not wait for the lock")
        assert lease(phone, "clean") == (0, "cleaned killed=0 removed=0 left=0")
        assert follower.poll() is None
    finally:
        os.killpg(follower.pid, signal.SIGKILL)
        follower.communicate()


def test_after_a_reboot_numbers_mean_nothing(phone: PhoneFolder) -> None:
    assert lease(phone, "begin") == (0, "begun")
    (phone.root.parent / "new").write_text("x")
    (phone.root.parent.parent / "boot_id").write_text("boot-2\n")
    with running(phone) as process:
        assert lease(phone, "clean") == (0, "cleaned killed=0 removed=1 left=0")
        assert process.poll() is None


@pytest.mark.skipif(os.getuid() == 2000, reason="this user is a phone's shell")
def test_on_a_host_no_process_is_touched(phone: PhoneFolder) -> None:
    assert lease(phone, "begin", marked=False) == (0, "begun")
    with running(phone, marked=False) as process:
        assert lease(phone, "clean", marked=False) == (0, "cleaned killed=0 removed=0 left=0")
        assert process.poll() is None


def test_a_note_that_was_cut_off_counts_for_nothing(phone: PhoneFolder) -> None:
    (phone.root / "lease").mkdir()
    (phone.root / "lease" / "files").write_text("")
    (phone.root.parent / "mine").write_text("x")
    assert lease(phone, "clean")[1].endswith("removed=0 left=0")
    assert lease(phone, "begin") == (0, "begun")
    assert lease(phone, "clean")[1].endswith("removed=0 left=0")
    wait_for(lambda: "mine" in tree(phone.root.parent), "the file is still there")


def test_usage(phone: PhoneFolder) -> None:
    assert lease(phone, "")[0] == 2
