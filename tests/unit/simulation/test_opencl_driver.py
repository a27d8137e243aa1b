"""The host's OpenCL driver for virtual phones: the one that .icd files name, with libraries that a phone can see."""

import shutil
import subprocess

import pytest

from farm.simulation.opencl import OpenclDriverError, find_driver
from tests.support.needs import needs


def library(path, *needed):
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ["-shared", "-x", "c", "/dev/null", "-x", "none", f"-Wl,-soname,{path.name}.1", "-Wl,--no-as-needed"]
    folders = [f"-Wl,-rpath,{each.parent}" for each in needed]
    subprocess.run(["gcc", *options, *folders, *needed, "-o", path], check=True)
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    return path


def vendors(folder, **icds):
    folder.mkdir()
    for name, named in icds.items():
        (folder / f"{name}.icd").write_text(f"{named}\n")
    return folder


@needs("gcc")
def test_a_driver_outside_usr_is_seen_by_its_folder(tmp_path):
    inner = library(tmp_path / "driver/libinner.so")
    outer = library(tmp_path / "driver/libouter.so", inner)
    folder = vendors(tmp_path / "vendors", mine=outer)
    found = find_driver(folder)
    assert (found.icd, found.library, found.soname, found.folder) == (
        "mine.icd", outer, "libouter.so.1", tmp_path / "driver",
    )  # fmt: skip
    assert found.needed == (inner.with_name("libinner.so.1"),)
    assert find_driver(folder / "mine.icd") == found

    assert find_driver(vendors(tmp_path / "more", nvidia="/no.so", pocl=outer)).icd == "pocl.icd"


@needs("gcc")
def test_a_library_that_no_phone_sees_is_named(tmp_path):
    hidden = library(tmp_path / "elsewhere/libinner.so")
    outer = library(tmp_path / "driver/libouter.so", hidden)
    with pytest.raises(OpenclDriverError, match=f"libouter.so needs {hidden}.1, which a phone does not see"):
        find_driver(vendors(tmp_path / "vendors", mine=outer))


def test_a_host_without_a_driver_or_its_library(tmp_path):
    with pytest.raises(OpenclDriverError, match="this host has no OpenCL driver") as caught:
        find_driver(tmp_path)
    assert "pocl-opencl-icd" in caught.value.hint
    with pytest.raises(OpenclDriverError, match=r"gone\.icd names /gone/libgone\.so, which is not there"):
        find_driver(vendors(tmp_path / "vendors", gone="/gone/libgone.so"))
