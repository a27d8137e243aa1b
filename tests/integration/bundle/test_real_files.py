"""Real ELF files: this host's, the wheel's, and what its compilers make."""

import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from farm.bundle.closure import identify
from farm.bundle.elf import read_elf
from farm.bundle.model import Abi, Platform
from farm.bundle.versions import installed_versions, known_builds
from farm.compiler.link import link_shared, linkers
from tests.support.needs import lacks, need, needs

C_SOURCE = "int add(int a, int b) { return a + b; }\n"
CLANG_TARGETS = {
    Abi.ARM64: "aarch64-linux-android",
    Abi.ARMV7: "armv7a-linux-androideabi",
    Abi.X86_64: "x86_64-linux-android",
    Abi.X86: "i686-linux-android",
    Abi.RISCV64: "riscv64-linux-android",
}

needs_readelf = needs("readelf")
needs_gcc = pytest.mark.skipif(
    bool(lacks("gcc")) or platform.machine() != "x86_64", reason=lacks("gcc") or "this host is no x86-64"
)


def run(*command):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True, timeout=60).stdout


def wheel_libraries():
    found = []
    for package in ("tvm", "tvm_ffi"):
        spec = importlib.util.find_spec(package)
        for place in spec.submodule_search_locations or () if spec else ():
            found += sorted((Path(place) / "lib").glob("*.so"))
    return found


def as_readelf_says(path):
    """DT_NEEDED, SONAME and interpreter from binutils, the second opinion."""
    needed, soname, interpreter = [], "", ""
    for line in run("readelf", "-Wdl", path).splitlines():
        value = line.rpartition("[")[2].rstrip("]")
        if "(NEEDED)" in line:
            needed.append(value)
        elif "(SONAME)" in line:
            soname = value
        elif "Requesting program interpreter" in line:
            interpreter = value.rpartition(": ")[2]
    return needed, soname, interpreter


def test_the_wheels_libraries_say_which_they_are():
    known, here = known_builds(), installed_versions()
    for name, version in (("libtvm_runtime", here.tvm), ("libtvm_runtime_extra", here.tvm), ("libtvm_ffi", here.ffi)):
        library = next(path for path in wheel_libraries() if path.stem == name)
        build = known[read_elf(library).build_id]
        assert build.library == library.name
        assert version in build.versions


@needs_gcc
def test_a_stripped_library_still_says_which_it_is(tmp_path):
    (tmp_path / "lib.c").write_text(C_SOURCE)
    library, stripped = tmp_path / "lib.so", tmp_path / "stripped.so"
    run("gcc", "-g", "-shared", "-fPIC", "-Wl,--build-id", tmp_path / "lib.c", "-o", library)
    run("strip", library, "-o", stripped)
    assert stripped.stat().st_size < library.stat().st_size
    assert read_elf(stripped).build_id == read_elf(library).build_id != ""


@needs_readelf
def test_agrees_with_readelf_on_every_elf_file_at_hand():
    files = [
        *wheel_libraries(),
        Path(sys.executable).resolve(),
        *sorted(Path("/usr/lib/x86_64-linux-gnu").glob("*.so.*")),
    ]
    files = [file for file in files if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"][:60]
    assert files
    for file in files:
        info = read_elf(file)
        assert ([*info.needed], info.soname, info.interpreter) == as_readelf_says(file), file


def object_file(folder, abi):
    need("clang")
    (folder / "code.c").write_text(C_SOURCE)
    run("clang", f"--target={CLANG_TARGETS[abi]}", "-c", "-fPIC", folder / "code.c", "-o", folder / "code.o")
    return folder / "code.o"


def linked(folder, linker, code, needed):
    output = folder / f"out-{linker.name.replace(' ', '-')}.so"
    link_shared(linker, output, [code], needed=needed)
    return read_elf(output)


@pytest.mark.parametrize("abi", list(Abi))
def test_every_linker_of_this_host_makes_what_the_phone_expects(tmp_path, abi):
    code = object_file(tmp_path, abi)
    ways = linkers(abi, Platform.ANDROID, environ={})
    if not ways:
        pytest.skip(f"this host has no linker for {abi}")
    for linker in ways:
        needed = ("libtvm_ffi.so", "libm.so", "libc.so")
        info = linked(tmp_path, linker, code, needed)
        assert identify(info, linker.name)[0] is abi, linker.name
        assert info.needed == needed, linker.name
        assert info.soname == "", linker.name
        assert info.page_alignment_bytes >= 16_384, linker.name


@needs_gcc
def test_every_native_linker_of_this_host_makes_a_library_that_loads(tmp_path):
    (tmp_path / "code.c").write_text(C_SOURCE)
    run("gcc", "-c", "-fPIC", tmp_path / "code.c", "-o", tmp_path / "code.o")
    ways = linkers(Abi.X86_64, Platform.LINUX, environ={})
    assert {way.is_driver for way in ways} == {True, False}, "gcc and its ld are both there"
    for linker in ways:
        output = tmp_path / "out.so"
        link_shared(linker, output, [tmp_path / "code.o"])
        assert identify(read_elf(output), linker.name)[0] is Abi.X86_64
        added = run(sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(output)!r}).add(20, 22))")
        assert added.strip() == "42", linker.name
