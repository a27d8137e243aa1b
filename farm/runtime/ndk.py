"""An Android NDK and Qualcomm's OpenCL ML SDK on this host: whether they serve an ABI, and where their parts are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farm.bundle.model import Abi
from farm.common.errors import Code, UserError
from farm.compiler.link import NDK_API

OLDEST_NDK = 25  # clang 14: the oldest that is known to compile TVM's C++20
_REVISION = re.compile(r"^Pkg\.Revision\s*=\s*((\d+)[\w.-]*)", re.MULTILINE)
_LIBRARY_FOLDERS = {  # of an ABI, in the NDK's sysroot
    Abi.ARM64: "aarch64-linux-android",
    Abi.ARMV7: "arm-linux-androideabi",
    Abi.X86_64: "x86_64-linux-android",
    Abi.X86: "i686-linux-android",
    Abi.RISCV64: "riscv64-linux-android",
}
_CXX_LIBRARY = "libc++_shared.so"
_FIRST_API = {Abi.RISCV64: 35}  # the first Android with that ABI; the others are as old as NDK_API
_DOWNLOAD = "https://developer.android.com/ndk/downloads"
_CLML_HEADER = "CL/cl_qcom_ml_ops.h"
_CLML_FOLDERS = ("", "include")
_OPENCL_LIBRARY = "libOpenCL.so"

ndk_error = partial(UserError, code=Code.BAD_NDK)
clml_error = partial(UserError, code=Code.BAD_CLML_SDK)


@dataclass(frozen=True, slots=True)
class Ndk:
    """An NDK for one ABI."""

    folder: Path
    revision: str  # 28.0.13004108 is r28
    toolchain_file: Path  # for CMake
    strip: Path
    libraries: Path  # the folder with libc++_shared.so of the ABI
    api: int  # Android's API level that is built for


@dataclass(frozen=True, slots=True)
class ClmlSdk:
    """Qualcomm's SDK for one ABI, which TVM's CLML runtime is built with."""

    folder: Path
    headers: Path  # the folder with CL/
    library: Path  # a phone's libOpenCL.so, to link against

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that decide what is built."""
        return (*sorted((self.headers / "CL").glob("*.h")), self.library)


def find_ndk(folder: Path, abi: Abi) -> Ndk:
    """Check an NDK's folder.

    Raises:
        UserError: it is none, or too old, or not for this host, or without the ABI.
    """
    major, revision = _revision(folder)
    if major < OLDEST_NDK:
        raise ndk_error(f"{folder} is NDK r{major}: TVM needs r{OLDEST_NDK} or newer", hint=_DOWNLOAD)
    toolchain_file = folder / "build/cmake/android.toolchain.cmake"
    tools = next((each.parent for each in sorted(folder.glob("toolchains/llvm/prebuilt/linux-*/bin/clang++"))), None)
    strip = tools / "llvm-strip" if tools else None
    if strip is None or not strip.exists() or not toolchain_file.is_file():
        hint = f"unpack the NDK for Linux as a whole: {_DOWNLOAD}"
        raise ndk_error(f"{folder} is not whole, or not for Linux: it lacks a compiler for this host", hint=hint)
    libraries = strip.parents[1] / "sysroot/usr/lib"
    own = libraries / _LIBRARY_FOLDERS[abi]
    if not (own / _CXX_LIBRARY).is_file():
        there = [each for each, name in _LIBRARY_FOLDERS.items() if (libraries / name / _CXX_LIBRARY).is_file()]
        hint = f"it has: {', '.join(there) or 'none'}; another NDK: {_DOWNLOAD}"
        raise ndk_error(f"NDK r{major} in {folder} has no {abi}", hint=hint)
    return Ndk(folder, revision, toolchain_file, strip, own, _FIRST_API.get(abi, NDK_API))


def find_clml(sdk: Path, abi: Abi) -> ClmlSdk:
    """Check the folder of Qualcomm's SDK.

    Raises:
        UserError: headers, or the library for the ABI, are missing.
    """
    hint = "unpack Qualcomm's OpenCL ML SDK, and give the folder that has CL/ (or include/CL/) and lib64/"
    headers = next((sdk / each for each in _CLML_FOLDERS if (sdk / each / _CLML_HEADER).is_file()), None)
    if headers is None:
        raise clml_error(f"{sdk} is no OpenCL ML SDK: it has no {_CLML_HEADER}", hint=hint)
    library = sdk / ("lib64" if abi.bits == 64 else "lib") / _OPENCL_LIBRARY
    if not library.is_file():
        raise clml_error(f"the OpenCL ML SDK in {sdk} has no {library.relative_to(sdk)} for {abi}", hint=hint)
    return ClmlSdk(sdk, headers, library)


def _revision(folder: Path) -> tuple[int, str]:
    try:
        found = _REVISION.search((folder / "source.properties").read_text("utf-8", "replace"))
    except OSError:
        found = None
    if found is None:
        inside = sorted([*folder.glob("ndk/*/source.properties"), *folder.glob("*/source.properties")])
        hint = f"perhaps {inside[-1].parent}" if inside else f"unpack one and give its folder: {_DOWNLOAD}"
        raise ndk_error(f"{folder} is no Android NDK: it has no source.properties with a revision", hint=hint)
    return int(found[2]), found[1]
