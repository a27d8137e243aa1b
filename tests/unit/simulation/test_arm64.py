"""What an arm64 phone is built from: missing programs and failed downloads are told in a sentence, damage is seen."""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.common.files import hash_file
from farm.simulation import arm64
from farm.simulation.arm64 import Arm64ToolsError, DownloadError, fetch_debian, fetch_wheels, find_tools, is_whole
from farm.simulation.profiles import Choice, choose, load_profile

ON_X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="arm64 phones are emulated on x86-64 hosts")


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@ON_X86_64
def test_all_that_is_missing_is_told_at_once_with_what_to_install():
    with pytest.raises(Arm64ToolsError) as caught:
        find_tools(lambda name: None if "aarch64" in name else f"/usr/bin/{name}")
    assert "qemu-aarch64-static, aarch64-linux-gnu-g++" in caught.value.message
    assert caught.value.hint == "apt install qemu-user-static g++-aarch64-linux-gnu"


@ON_X86_64
def test_a_qemu_that_needs_the_hosts_libraries_is_refused():
    linked = shutil.which("sh")
    with pytest.raises(Arm64ToolsError, match="linked to libraries of the host"):
        find_tools(lambda name: linked if "qemu" in name else f"/usr/bin/{name}")


def test_another_host_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(Arm64ToolsError, match="this one is riscv64"):
        find_tools(lambda name: f"/usr/bin/{name}")


def folder(path):
    (path / "root").mkdir()
    (path / "root/libc").write_bytes(b"as it was")
    contents = {"files": {"root/libc": hash_file(path / "root/libc")}}
    (path / "contents.json").write_text(json.dumps(contents))
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "root/libc").write_bytes(b"as it is"),
        lambda path: (path / "root/libc").unlink(),
        lambda path: (path / "contents.json").unlink(),
        lambda path: (path / "contents.json").write_text('{"files": {'),
        lambda path: (path / "contents.json").write_text("[]"),
        lambda path: (path / "contents.json").write_text('{"files": {}}'),
    ],
)
def test_a_folder_that_is_not_as_it_was_made_is_not_used(tmp_path, damage):
    made = folder(tmp_path)
    assert is_whole(made)
    damage(made)
    assert not is_whole(made)


def test_a_folder_that_is_not_there_is_not_whole(tmp_path):
    assert not is_whole(tmp_path / "nowhere")


def test_what_apt_said_is_the_evidence(tmp_path):
    apt = program(tmp_path / "apt-get", "echo 'Could not resolve deb.debian.org' >&2; exit 100")
    with pytest.raises(DownloadError, match="could not download libc6") as caught:
        fetch_debian(apt, "dpkg-deb", tmp_path, tmp_path / "root", tmp_path / "bundle")
    assert "Could not resolve" in caught.value.evidence
    assert "network" in caught.value.hint


def test_a_package_without_its_library_is_told(tmp_path):
    apt = program(tmp_path / "apt-get", '[ "$4" != download ] || touch libc6.deb')
    with pytest.raises(DownloadError, match=r"have no libc\.so\.6"):
        fetch_debian(apt, program(tmp_path / "dpkg-deb", "true"), tmp_path, tmp_path / "root", tmp_path / "bundle")


BUILDER = """
import sys
from pathlib import Path
from farm.simulation import arm64
folder, run = Path(sys.argv[1]), sys.argv[2]
with arm64._only_builder(folder / "lock"):
    command = ["sh", "-c", f"echo > {folder}/begun; read line < {folder}/end"]
    arm64._compile(command) if run == "compile" else arm64._run(command, folder)
"""


@pytest.mark.parametrize("run", ["compile", "download"])
def test_a_program_that_outlives_its_killed_builder_keeps_the_lock(tmp_path, run):
    """The next builder swept the folder into which that program still wrote: some of it was left for ever."""
    begun, end = tmp_path / "begun", tmp_path / "end"
    for fifo in (begun, end):
        os.mkfifo(fifo)
    with subprocess.Popen([sys.executable, "-c", BUILDER, tmp_path, run]) as builder:
        begun.read_text()
        builder.kill()
    with (tmp_path / "lock").open("a") as lock:
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            end.write_text("\n")
        fcntl.flock(lock, fcntl.LOCK_EX)  # when it has ended


def test_what_pip_said_is_the_evidence(tmp_path, monkeypatch):
    python = program(tmp_path / "python", "echo 'THESE PACKAGES DO NOT MATCH THE HASHES' >&2; exit 1")
    monkeypatch.setattr(arm64.sys, "executable", python)
    with pytest.raises(DownloadError, match="pip could not download apache-tvm") as caught:
        fetch_wheels(tmp_path, tmp_path)
    assert "DO NOT MATCH" in caught.value.evidence


def test_wheels_without_a_library_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(arm64.sys, "executable", program(tmp_path / "python", "true"))
    with pytest.raises(DownloadError, match=r"have no tvm/lib/libtvm_runtime\.so, .*, tvm_ffi/lib/libtvm_ffi\.so"):
        fetch_wheels(tmp_path, tmp_path)


def test_hashes_known_here_are_those_of_the_lock():
    lock = (Path(__file__).parents[3] / "requirements.lock").read_text()
    for (package, version), digest in arm64._KNOWN_SHA256.items():
        assert f"{package}=={version}" in lock
        assert digest in lock


def test_what_stands_behind_a_profiles_name_decides_its_abi():
    assert choose("galaxy-s9+arm64") == Choice("galaxy-s9", arm64=True, rooted=False)
    assert choose("galaxy-s9+root") == Choice("galaxy-s9", arm64=False, rooted=True)
    assert choose("galaxy-s9+toast").profile == "galaxy-s9+toast"
    assert load_profile("galaxy-s9").properties("s", "arm64-v8a")["farm.virtual.abi"] == "arm64-v8a"
