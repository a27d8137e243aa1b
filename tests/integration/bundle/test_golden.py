"""Golden kernels with the real TVM: compiled for every ABI, run by a real RPC server, told right from wrong.

What needs no toolchain of its own is compiled in this process, which has TVM anyway.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from farm.bundle.closure import identify, provided_libraries
from farm.bundle.elf import read_elf
from farm.bundle.golden import compile_golden, read_golden
from farm.bundle.library import BundleLibrary
from farm.bundle.model import Abi, Platform
from farm.common.errors import HostError
from farm.compiler.link import linkers
from farm.worker.golden import compile_golden as compile_here
from farm.worker.golden import run_golden
from tests.support.needs import need
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="TVM is not installed")

PYTHON = Path(sys.executable)
KEY = "secret-of-this-start"


@pytest.mark.parametrize("abi", list(Abi))
def test_for_phones_of_every_abi(tmp_path, abi):
    if not linkers(abi, Platform.ANDROID):
        pytest.skip(f"this host has no linker for {abi}")
    compile_here(abi, Platform.ANDROID, ("cpu", "opencl"), tmp_path)
    made = read_golden(tmp_path)
    assert sorted(made.kernels) == ["cpu", "opencl"]
    assert made.tvm_version
    assert made.linker == linkers(abi, Platform.ANDROID)[0].name
    for kernels in made.kernels.values():
        info = read_elf(tmp_path / kernels.library)
        assert identify(info, kernels.library) == (abi, Platform.ANDROID)
        # bionic resolves TVM's symbols only through the library's own needs.
        assert "libtvm_ffi.so" in info.needed
        assert set(info.needed) - {"libtvm_ffi.so"} <= provided_libraries(Platform.ANDROID)
        assert info.page_alignment_bytes >= 16_384 or abi.bits == 32
    assert b"__kernel" in (tmp_path / "opencl.so").read_bytes()


WANTED = (Abi.X86_64, Platform.LINUX, ("cpu",))


@pytest.mark.parametrize(
    ("script", "said", "hint"),
    [
        # -S: the standard library only, as in a fresh environment
        (f'exec {sys.executable} -S "$@"', "cannot import TVM", "toolchain"),
        ("echo 'Illegal instruction' >&2\nexit 132", "failed: Illegal instruction", ""),
        ("exec sleep 60", r"took more than 0\.2 s", ""),
        # a module that stands before the package ziglang, and has no program
        (f'PATH=$PWD/bin PYTHONPATH=$PWD exec {sys.executable} "$@"', "no linker for x86_64", "apt install lld"),
    ],
    ids=["no TVM", "crash", "hang", "no linker"],
)
def test_a_toolchain_that_compiles_nothing_says_why(tmp_path, script, said, hint):
    (tmp_path / "bin").mkdir()
    (tmp_path / "ziglang.py").touch()
    limit = {"timeout_s": 0.2} if "sleep" in script else {}
    with pytest.raises(HostError, match=said) as caught:
        compile_golden(python_that(tmp_path, script), *WANTED, tmp_path, **limit)
    assert hint in caught.value.hint
    with pytest.raises(HostError, match="does not run: No such file"):
        compile_golden(tmp_path / "absent", *WANTED, tmp_path)


def python_that(folder, script):
    path = folder / "python"
    path.write_text("#!/bin/sh\n" + script.replace("$PWD", str(folder)) + "\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("abi", "platform"), [(Abi.ARM64, Platform.ANDROID), (Abi.X86_64, Platform.LINUX)])
def test_ziglang_links_where_nothing_else_does_and_no_folder_is_writable(tmp_path, abi, platform, monkeypatch):
    pytest.importorskip("ziglang")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", "/proc/nonexistent")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    compile_here(abi, platform, ("cpu",), tmp_path)
    made = read_golden(tmp_path)
    assert made.linker == "ziglang (PyPI)"
    info = read_elf(tmp_path / made.kernels["cpu"].library)
    assert identify(info, "cpu.so")[0] is abi
    assert ("libtvm_ffi.so" in info.needed) == (platform is Platform.ANDROID)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    runtime = pytest.importorskip("farm.simulation.runtime", reason="the virtual phone's runtime is not there")
    need("g++")
    place = tmp_path_factory.mktemp("virtual")
    folder = runtime.build_bundle_folder(place / "folder")
    return BundleLibrary(place / "bundles").add(folder, name="virtual", compile_golden=partial(compile_golden, PYTHON))


def test_the_virtual_phones_bundle_is_complete(bundle):
    assert (bundle.abi, bundle.platform) == (Abi.X86_64, Platform.LINUX)
    assert bundle.warnings == ()
    assert bundle.has_random_fill
    assert bundle.tvm_version.startswith("0.")
    names = {file.name for file in bundle.files}
    for file in bundle.files:
        assert set(read_elf(bundle.path / file.name).needed) <= names | provided_libraries(Platform.LINUX)


def test_the_same_kernels_come_out_twice(bundle, tmp_path):
    compile_golden(PYTHON, bundle.abi, bundle.platform, ("cpu",), tmp_path)
    for name in ("cpu.npz", "golden.json"):
        assert (tmp_path / name).read_bytes() == (bundle.golden_dir / name).read_bytes()


@pytest.fixture
def session(bundle, tmp_path):
    """A session with the bundle's own server, running from the stored files alone."""
    from tvm import rpc

    server = subprocess.Popen(
        [bundle.path / "tvm_rpc", "server", "--host=127.0.0.1", "--port=0", "--port-end=1", f"--key={KEY}",
         f"--work-dir={tmp_path}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={"LD_LIBRARY_PATH": str(bundle.path), "PATH": os.environ["PATH"]}, start_new_session=True,
    )  # fmt: skip
    try:
        opened = rpc.connect("127.0.0.1", bound_port(server.stderr), key=KEY, session_timeout=60)
        yield opened
        opened._sess.get_function("CloseRPCConnection")()
    finally:
        os.killpg(server.pid, 9)
        server.wait(HANG_S)
        server.stderr.close()


def bound_port(log):
    for line in log:
        if match := re.search(r"Bind to \S+:(\d+)", line):
            return int(match[1])
    raise AssertionError("the server ended without binding a port")


def test_a_healthy_server_passes(bundle, session):
    result = run_golden(session, bundle.golden_dir)
    assert result.ok, result.detail
    error = re.fullmatch(r"3 golden kernels right on cpu, largest error (\S+)", result.detail)
    assert error
    assert 0 < float(error[1]) < 1e-3
    assert 0 < result.fastest_s["cpu"] < 1


@pytest.mark.parametrize(
    ("array", "change", "said"),
    [
        ("matmul_relu.out", 0.05, r"matmul_relu is off by 0\.0(4|5)\d*; "),
        ("matmul_int8.out", 1, "matmul_int8 is off by 1; "),
        ("exp_sum.out", 0.05, r"exp_sum is off by 0\.0(4|5)\d*; "),
        ("exp_sum.in0", np.nan, "exp_sum is off by inf"),
    ],
)
def test_wrong_numbers_are_told_with_the_kernels_name(bundle, session, tmp_path, array, change, said):
    """One number off by a little: what a wrong kernel looks like from here."""
    folder = tmp_path / "golden"
    shutil.copytree(bundle.golden_dir, folder)
    with np.load(folder / "cpu.npz") as archive:
        arrays = dict(archive)
    arrays[array].flat[5] += change
    np.savez(folder / "cpu.npz", **arrays)
    result = run_golden(session, folder)
    assert not result.ok
    assert re.match(f"wrong numbers on cpu: {said}", result.detail), result.detail


def test_kernels_that_are_not_there_are_an_error_of_the_host(bundle, session, tmp_path):
    with pytest.raises(HostError, match="no golden kernels for opencl"):
        run_golden(session, bundle.golden_dir, "opencl")
    with pytest.raises(HostError, match="are damaged"):
        run_golden(session, tmp_path)
    (tmp_path / "golden.json").write_text(json.dumps({"kernels": {"cpu": {"expected": "cpu.npz"}}}))
    with pytest.raises(HostError, match="are damaged"):
        run_golden(session, tmp_path)


def test_kernels_linked_without_any_compiler_run_too(session, tmp_path):
    need("ld.lld")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ld.lld").symlink_to(str(shutil.which("ld.lld")))
    out = tmp_path / "golden"
    out.mkdir()
    compile_golden(python_that(tmp_path, f'PATH=$PWD/bin exec {sys.executable} "$@"'), *WANTED, out)
    assert read_golden(out).linker == "ld.lld"
    assert read_elf(out / "cpu.so").needed == ()
    result = run_golden(session, out)
    assert result.ok, result.detail
