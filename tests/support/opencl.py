"""OpenCL in tests: C that TVM generated, checked by clang; TVM's runtime for it, and the host's driver for CPUs."""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from farm.bundle.model import Abi
from farm.common.errors import FarmError
from farm.common.install import TVM_SOURCE_VARIABLE
from farm.runtime.build import build_opencl
from farm.runtime.parts import default_cache
from farm.runtime.server import find_compiler
from farm.simulation.opencl import opencl_folder, opencl_runtime
from farm.simulation.runtime import find_wheel
from tests.support.needs import need

_ANY_DEVICE, _EXTENSIONS = 0xFFFFFFFF, 0x1030  # CL_DEVICE_TYPE_ALL, CL_DEVICE_EXTENSIONS
_TEXT_BYTES = 1 << 16
# An OpenCL device of 64 bits, with the built-in functions of the standard declared as clang ships them.
CLANG = ("clang", "-x", "cl", "-cl-std=CL2.0", "-target", "spir64", "-Xclang", "-finclude-default-header")


def opencl_source(executable: Any) -> str:
    """The source of every kernel in what `compile_model` returns."""
    found: list[str] = []

    def walk(module: Any) -> None:
        if module.kind == "opencl":
            found.append(module.inspect_source())
        for imported in module.imports:
            walk(imported)

    walk(executable.mod)
    return "\n".join(found)


def syntax_errors(source: str) -> str:
    """What clang says against it; "" when nothing."""
    need("clang")
    command = [*CLANG, "-fsyntax-only", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=120, check=False)
    return done.stderr if done.returncode else ""


def need_driver() -> None:
    """Skip where the host has no OpenCL driver for its CPU."""
    need("g++", "mksh", "toybox")
    try:
        opencl_folder()
    except FarmError as error:
        pytest.skip(f"{error.message}: {error.hint}")


@cache
def opencl_library() -> Path:
    """libtvm_runtime_opencl.so for this host: TVM's own where FARM_TVM_SOURCE names its sources, else farm's."""
    checkout = os.environ.get(TVM_SOURCE_VARIABLE)
    if not checkout:
        return opencl_runtime()
    return build_opencl(default_cache(), Path(checkout), find_compiler(Abi.X86_64), find_wheel(), lambda _: None)


def has_float16() -> bool:
    """Whether the host's OpenCL driver states that it computes with float16."""
    loader, platform, device = ctypes.CDLL("libOpenCL.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    assert loader.clGetPlatformIDs(1, ctypes.byref(platform), None) == 0
    assert loader.clGetDeviceIDs(platform, ctypes.c_uint64(_ANY_DEVICE), 1, ctypes.byref(device), None) == 0
    assert loader.clGetDeviceInfo(device, _EXTENSIONS, ctypes.c_size_t(_TEXT_BYTES), text, None) == 0
    return b"cl_khr_fp16" in text.value


def load_opencl() -> Any:
    """TVM's OpenCL device of this very process, on the host's driver; skips where there is none."""
    import tvm

    need_driver()
    ctypes.CDLL(os.fspath(opencl_library()), ctypes.RTLD_GLOBAL)
    device = tvm.opencl(0)
    if not device.exist:
        pytest.skip("the host's loader finds no libOpenCL.so: apt install ocl-icd-opencl-dev")
    return device
