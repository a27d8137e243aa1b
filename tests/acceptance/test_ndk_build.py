"""Runtimes by CMake, with the host's clang in an NDK's folder and a small project in a checkout's."""

import os
import subprocess
from dataclasses import replace
from errno import ENOSPC

import pytest

from farm.bundle.elf import read_elf
from farm.bundle.folder import read_folder
from farm.bundle.model import LARGE_PAGE_BYTES, Abi, Platform
from farm.bundle.versions import installed_versions
from farm.common.errors import Code, HostError
from farm.common.files import hash_file
from farm.runtime import ndk_build, parts
from farm.runtime.ndk_build import NdkRecipe, build_with_ndk
from tests.support.errors import raises_code
from tests.support.ndk import CMAKE_MAKERS, HOST_LIBRARIES, installed_tvm, small_checkout, stand_in_ndk, stub_clml_sdk
from tests.support.needs import needs

pytestmark = needs(*CMAKE_MAKERS, "clang", "llvm-strip")
CPU_FILES = {"tvm_rpc", "libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_ffi.so", *HOST_LIBRARIES}
OPENCL_LIBRARY = "libtvm_runtime_opencl.so"


@pytest.fixture(scope="module")
def host():
    return installed_tvm()


@pytest.fixture(scope="module")
def ndk(tmp_path_factory):
    return stand_in_ndk(tmp_path_factory.mktemp("ndk") / "r28")


@pytest.fixture
def small_server(monkeypatch, tmp_path):
    """A server that is compiled at once."""
    source = tmp_path / "source/tvm_rpc.cc"
    source.parent.mkdir()
    source.write_text("int main() { return 0; }\n")
    monkeypatch.setattr(ndk_build, "SOURCE", source)


@pytest.fixture
def recipe(ndk, host, tmp_path):
    return NdkRecipe(Abi.X86_64, ndk, small_checkout(tmp_path / "tvm", host), opencl=True)


def hashes(folder):
    return {path.name: hash_file(path) for path in folder.iterdir()}


def test_a_runtime_is_a_bundle_that_starts(ndk, host, tmp_path):
    steps = []
    recipe = NdkRecipe(Abi.X86_64, ndk, small_checkout(tmp_path / "tvm", host))
    folder = build_with_ndk(tmp_path / "cache", recipe, host, steps.append)
    found = read_folder(folder)
    assert {each.name for each in found.files} == CPU_FILES
    assert (found.abi, found.platform) == (Abi.X86_64, Platform.LINUX)
    assert found.versions == installed_versions()
    elf = next(each.elf for each in found.files if each.name == "tvm_rpc")
    assert elf.page_alignment_bytes == LARGE_PAGE_BYTES
    assert {"libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_ffi.so"} <= {*elf.needed}
    symbols = subprocess.run(["llvm-nm", folder / "tvm_rpc"], capture_output=True, text=True, check=False)
    assert "no symbols" in symbols.stderr
    done = subprocess.run([folder / "tvm_rpc"], capture_output=True, text=True, timeout=60, check=False)
    assert "server" in done.stdout + done.stderr
    assert steps[0] == "comparing the checkout with the toolchain's TVM"
    assert steps[1].startswith("preparing the build with CMake and Ninja")
    assert steps[-1] == "compiling TVM: 2 of 2 files"
    assert [*(tmp_path / "cache").glob("build-*")] == []
    again = []
    assert build_with_ndk(tmp_path / "cache", recipe, host, again.append) == folder
    assert again == steps[:1]


def test_the_same_inputs_give_the_same_files_in_another_place(recipe, host, small_server, tmp_path):
    here = build_with_ndk(tmp_path / "cache", recipe, host, lambda _: None)
    moved = NdkRecipe(
        Abi.X86_64, stand_in_ndk(tmp_path / "other ndk"), small_checkout(tmp_path / "other/tvm", host), opencl=True
    )
    there = build_with_ndk(tmp_path / "other/cache", moved, host, lambda _: None)
    assert {*hashes(here)} == {*CPU_FILES, OPENCL_LIBRARY, "bundle.toml"}
    assert hashes(here) == hashes(there)
    assert here.parent.name == there.parent.name
    assert b"tvm/first.cc" in (here / OPENCL_LIBRARY).read_bytes()
    for place in (tmp_path, host.tvm_ffi):  # of the build, and of a library that is linked
        assert os.fsencode(place) not in (here / OPENCL_LIBRARY).read_bytes()


def test_clml_links_to_the_library_of_the_sdk(recipe, host, small_server, tmp_path):
    with_clml = replace(recipe, opencl=False, clml=stub_clml_sdk(tmp_path / "sdk"))
    folder = build_with_ndk(tmp_path / "cache", with_clml, host, lambda _: None)
    assert "libOpenCL.so" in read_elf(folder / OPENCL_LIBRARY).needed
    assert os.fsencode(tmp_path) not in (folder / OPENCL_LIBRARY).read_bytes()
    assert not (folder / "libOpenCL.so").exists()  # the phone has its vendor's
    warnings = [each.message for each in read_folder(folder).findings]
    assert any("libOpenCL.so" in each for each in warnings), warnings


def test_an_interrupted_build_goes_on_where_it_was(recipe, host, small_server, tmp_path):
    def interrupt(step):
        if step.startswith("compiling TVM: 1 of"):
            raise KeyboardInterrupt

    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        build_with_ndk(cache, recipe, host, interrupt)
    assert len([*cache.glob("build-*")]) == 1
    assert [*cache.glob("bundle-*"), *cache.glob(".making-*")] == []
    steps = []
    folder = build_with_ndk(cache, recipe, host, steps.append)
    assert OPENCL_LIBRARY in hashes(folder)
    total = [int(step.split()[-2]) for step in steps if "files" in step][-1]
    assert total < 5  # of three sources and two links
    assert sorted(path.name for path in cache.iterdir()) == [folder.parent.name, "lock"]


def test_what_cmake_found_out_on_a_full_disk_is_forgotten(recipe, host, small_server, tmp_path, monkeypatch):
    """CMake keeps the answer of a check whose program could not be written: no."""

    def full(_cmake, _project, build, _options):
        (build / "CMakeCache.txt").write_text("USE_OPENCL:BOOL=OFF\nCMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n")
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(ndk_build, "configure", full)
    with pytest.raises(HostError, match="No space left on device"):
        build_with_ndk(tmp_path / "cache", recipe, host, lambda _: None)
    monkeypatch.undo()
    monkeypatch.setattr(ndk_build, "SOURCE", tmp_path / "source/tvm_rpc.cc")
    assert OPENCL_LIBRARY in hashes(build_with_ndk(tmp_path / "cache", recipe, host, lambda _: None))


def test_a_checkout_that_changes_while_it_is_compiled_makes_no_bundle(recipe, host, small_server, tmp_path):
    def change(step):
        if step.startswith("compiling TVM: 1 of"):
            (recipe.checkout / "cmake").mkdir()
            (recipe.checkout / "cmake/options.cmake").write_text("set(USE_SORT OFF)\n")

    with raises_code(Code.BAD_CHECKOUT, match="was changed while it was compiled"):
        build_with_ndk(tmp_path / "cache", recipe, host, change)
    assert [*(tmp_path / "cache").glob("bundle-*")] == []
    assert OPENCL_LIBRARY in hashes(build_with_ndk(tmp_path / "cache", recipe, host, lambda _: None))


def test_a_disk_that_is_full_when_the_bundle_is_kept_costs_no_compiling(
    recipe, host, small_server, tmp_path, monkeypatch
):
    def full(_file):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(parts, "hash_file", full)
    with pytest.raises(HostError, match="No space left on device"):
        build_with_ndk(tmp_path / "cache", recipe, host, lambda _: None)
    monkeypatch.setattr(parts, "hash_file", hash_file)
    steps = []
    build_with_ndk(tmp_path / "cache", recipe, host, steps.append)
    assert [step for step in steps if step.startswith("compiling")] == []


def test_what_does_not_compile_is_one_line(recipe, host, small_server, tmp_path):
    (recipe.checkout / "second.cc").write_text("int second = missing;\n")
    said = r"TVM does not compile: .*second\.cc:1:14: error: use of undeclared identifier 'missing'"
    with raises_code(Code.BUILD_FAILED, match=said) as caught:
        build_with_ndk(tmp_path / "cache", recipe, host, lambda _: None)
    assert "int second = missing;" in caught.value.evidence
    assert [*(tmp_path / "cache").glob("bundle-*")] == []


def test_a_compiler_that_does_not_run_is_one_line(recipe, host, small_server, tmp_path):
    broken = stand_in_ndk(tmp_path / "broken")
    for name in ("clang", "clang++"):
        path = broken / "toolchains/llvm/prebuilt/linux-x86_64/bin" / name
        path.unlink()
        path.write_text("#!/bin/sh\necho 'cannot execute: required file not found' >&2\nexit 127\n")
        path.chmod(0o755)
    with raises_code(Code.BUILD_FAILED, match="CMake refused TVM: CMake Error at .*: The C compiler"):
        build_with_ndk(tmp_path / "cache", NdkRecipe(Abi.X86_64, broken, recipe.checkout), host, lambda _: None)
