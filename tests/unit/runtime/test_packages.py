"""Packages that cannot be had are told in a sentence, with what to do and what apt or pip said."""

import re
import zipfile
from functools import partial
from pathlib import Path

import pytest

from farm.bundle.model import Abi
from farm.common.errors import UserError
from farm.runtime import packages
from farm.runtime.packages import DownloadError, architecture_of, check_versions, debian_libraries, tvm_wheel

VERSIONS = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}
fetch_debian = partial(debian_libraries, abi=Abi.ARM64, report=lambda _: None)
fetch_wheels = partial(tvm_wheel, abi=Abi.ARM64, versions=VERSIONS, report=lambda _: None)


def program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def apt(monkeypatch, tmp_path):
    """Puts programs named apt-get and dpkg-deb in front of the host's."""

    def put(apt_get, dpkg_deb="true"):
        program(tmp_path / "bin/apt-get", apt_get)
        program(tmp_path / "bin/dpkg-deb", dpkg_deb)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    return put


def test_an_archive_that_cannot_be_reached(apt, tmp_path):
    apt("echo 'Could not resolve deb.debian.org' >&2; exit 100")
    said = r"libc6, .* for arm64 could not be downloaded: the archive cannot"
    with pytest.raises(DownloadError, match=said) as caught:
        fetch_debian(tmp_path / "cache")
    assert "Could not resolve" in caught.value.evidence
    assert "network" in caught.value.hint


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("InRelease  Clearsigned file isn't valid, got 'NOSPLIT' (does", "Clearsigned file isn't valid"),
        ("InRelease  502  Bad Gateway [IP: 127.0.0.1 3128]", "502  Bad Gateway"),
        ("Packages.xz  Hash Sum mismatch", "Hash Sum mismatch"),
    ],
)
def test_a_proxy_that_answers_for_the_archive(apt, tmp_path, said, reason):
    fetch = f"E: Failed to fetch http://deb/{said}"
    apt(f'[ "$4" != update ] || echo "{fetch}" >&2; echo "E: Unable to locate package libc6" >&2; exit 100')
    with pytest.raises(DownloadError, match=re.escape(f"something else answers for the archive ({reason})")) as caught:
        fetch_debian(tmp_path / "cache")
    assert "login page" in caught.value.hint


def test_debian_packages_without_a_library(apt, tmp_path):
    apt('[ "$4" != download ] || touch libc6.deb')
    with pytest.raises(DownloadError, match=r"for arm64 have no ld-linux-aarch64\.so\.1"):
        fetch_debian(tmp_path / "cache")


def test_a_host_without_apt(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadError, match="this host has no apt-get and dpkg-deb"):
        fetch_debian(tmp_path / "cache")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "another hash than this farm knows"),
        ("Failed to establish a new connection: [Errno -3]\nERROR: No matching distribution", "cannot be reached"),
        ("ERROR: No matching distribution found for apache-tvm==9", "no such wheel for aarch64"),
        ("ERROR: No (from versions: none)\nERROR: No matching distribution", "what answers as the package index"),
        ("ERROR: Wheel located at /tmp/a.whl is invalid.", "what came is no wheel"),
        ("/usr/bin/python3: No module named pip", "has no pip"),
        ("WARNING: a\nERROR: something else", "pip failed: something else"),
    ],
)
def test_a_wheel_that_cannot_be_had(tmp_path, monkeypatch, said, reason):
    python = program(tmp_path / "bin/python", f"echo '{said}' >&2; exit 1")
    monkeypatch.setattr(packages.sys, "executable", python)
    with pytest.raises(DownloadError, match=r"apache-tvm 0.27.0.post1 for aarch64 could not be downloaded: ") as caught:
        fetch_wheels(tmp_path / "cache")
    assert reason in caught.value.message
    assert said in caught.value.evidence
    assert caught.value.hint


@pytest.mark.parametrize(
    ("wheel", "problem"),
    [
        (None, "pip ended well and downloaded no wheel"),
        (b"<html>Please log in</html>", "a.whl is damaged: File is not a zip file"),
        ("flip", "a.whl is damaged: Bad CRC-32"),
        ("other", "a.whl has no tvm/lib/libtvm_runtime.so"),
    ],
)
def test_a_wheel_that_is_none(tmp_path, monkeypatch, wheel, problem):
    """A proxy that answers with a page of its own, and an index that states no hashes."""
    served = tmp_path / "a.whl"
    if isinstance(wheel, bytes):
        served.write_bytes(wheel)
    elif wheel:
        with zipfile.ZipFile(served, "w") as archive:
            for name in packages._WHEELS["apache-tvm"] if wheel == "flip" else ("README",):
                archive.writestr(name, "as it was")
        served.write_bytes(served.read_bytes().replace(b"as it was", b"as it is ", 1))
    python = program(tmp_path / "bin/python", f"for folder; do :; done; [ ! -e {served} ] || cp {served} $folder")
    monkeypatch.setattr(packages.sys, "executable", python)
    with pytest.raises(DownloadError, match=problem) as caught:
        fetch_wheels(tmp_path / "cache")
    assert caught.value.hint
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_an_abi_that_tvm_has_no_wheel_for():
    with pytest.raises(UserError, match="TVM has no wheel for armeabi-v7a") as caught:
        architecture_of(Abi.ARMV7)
    assert "NDK" in caught.value.hint


def test_a_toolchain_whose_tvm_is_no_wheel():
    with pytest.raises(DownloadError, match="toolchain own has no package apache-tvm-ffi"):
        check_versions({"apache-tvm": "0.27.0"}, "toolchain own")
    assert check_versions({"python": "3.11", **VERSIONS}, "toolchain own") == VERSIONS


def test_hashes_known_here_are_those_of_the_lock():
    lock = (Path(__file__).parents[3] / "requirements.lock").read_text()
    for (package, version, _), digest in packages._KNOWN_SHA256.items():
        assert f"{package}=={version}" in lock
        assert digest in lock
