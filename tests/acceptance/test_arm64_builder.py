"""The cache of arm64 phones' programs: two at once, a builder that is killed, damage, a pip that gives another file."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from farm.bundle.elf import read_elf
from farm.runtime import packages
from farm.runtime.packages import DownloadError
from farm.runtime.parts import is_whole
from farm.simulation.arm64 import Arm64ToolsError, arm64_folder, find_tools
from tests.support.whole_farm import until

BUILD = "from farm.simulation.arm64 import arm64_folder; print(arm64_folder())"
END_LIMIT_S = 120.0


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of our own, filled by two builders at once, after a third was killed."""
    try:
        find_tools()
    except Arm64ToolsError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    home = tmp_path_factory.mktemp("cache")
    folder = home / "farm"
    with builder(home) as killed:
        until(lambda: list(folder.glob("runtime/.making-*/scratch/*")) or killed.poll() is not None)
        killed.send_signal(signal.SIGKILL)
    assert list(folder.glob("runtime/.making-*")) != []
    assert list(folder.glob("arm64-*/")) == []
    with builder(home) as one, builder(home) as two:
        told = [child.communicate(timeout=END_LIMIT_S) for child in (one, two)]
        if "DownloadError" in told[0][1]:
            pytest.skip(told[0][1])
    assert [(one.returncode, two.returncode), *told] == [(0, 0), told[0], told[0]]
    assert list(folder.glob("**/.making-*")) == []
    return home


def builder(home):
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def folder(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return arm64_folder()


def test_it_holds_aarch64_programs_and_nothing_is_left_of_what_was_killed(cache, folder):
    assert is_whole(folder)
    assert sorted(path.name for path in (cache / "farm").iterdir()) == [folder.name, "lock", "runtime"]
    programs = [*(folder / "bundle").iterdir(), *(folder / "root").rglob("*.so*")]
    assert {read_elf(path).machine for path in programs} == {"AARCH64"}


def test_a_damaged_folder_is_made_anew_and_the_host_knows_no_arm64(folder):
    foreign = subprocess.run(["dpkg", "--print-foreign-architectures"], capture_output=True, text=True, check=True)
    (folder / "root/lib/aarch64-linux-gnu/libc.so.6").write_bytes(b"")
    shutil.rmtree(folder / "bundle")
    told = []
    assert arm64_folder(told.append) == folder
    assert told == []  # nothing is downloaded again
    assert is_whole(folder)
    after = subprocess.run(["dpkg", "--print-foreign-architectures"], capture_output=True, text=True, check=True)
    assert after.stdout == foreign.stdout


def test_a_wheel_with_another_hash_is_refused_and_nothing_is_kept(cache, folder, monkeypatch):
    monkeypatch.setattr(packages, "_KNOWN_SHA256", dict.fromkeys(packages._KNOWN_SHA256, "0" * 64))
    [wheel] = (cache / "farm/runtime").glob("apache-tvm-ffi-*")
    shutil.rmtree(wheel)
    with pytest.raises(DownloadError, match="another hash than this farm knows") as caught:
        arm64_folder()
    assert "HASHES" in caught.value.evidence
    assert not wheel.exists()
    assert list((cache / "farm/runtime").glob(".making-*")) == []
