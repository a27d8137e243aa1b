"""A bundle's folder for phones, from TVM's own wheels: no NDK, no TVM checkout.

    tvm_rpc                       compiled here (farm.runtime.server)
    libtvm_*.so                   out of TVM's wheel of the toolchain's version; OpenCL's compiled (farm.runtime.opencl)
    ld-linux-*, libc.so.6 ...     out of Debian's packages
    libc.so, libm.so, libdl.so    empty libraries that need the ones above
    bundle.toml                   says which system it is for

`tvm_rpc` is started by the loader that lies beside it and uses the C library there, so that the phone's own, bionic,
is not needed. Models and golden kernels for Android name bionic's libraries (farm.compiler.link): they find the empty
ones of these names, and behind them glibc's functions.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from typing import TYPE_CHECKING

from farm.bundle.folder import DESCRIPTION, description_text
from farm.bundle.model import SERVER_PROGRAM, Abi, FolderDescription, Platform
from farm.bundle.versions import of_packages
from farm.common.errors import UserError
from farm.common.files import hash_file
from farm.runtime.checkout import check_whole
from farm.runtime.opencl import build_opencl, opencl_headers
from farm.runtime.packages import C_LIBRARY, COMPILER_LIBRARIES, architecture_of, check_apt, debian_libraries, tvm_wheel
from farm.runtime.parts import CONTENTS, part
from farm.runtime.server import OPTIONS, SOURCE, Compiler, compile_server, find_compiler

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from farm.runtime.packages import Report, TvmWheel

BUNDLE = "bundle"  # the folder to add, inside its part
_BIONIC_NAMES = {"libc.so": "libc.so.6", "libm.so": "libm.so.6", "libdl.so": "libdl.so.2"}


def build_from_wheels(
    cache: Path, abi: Abi, platform: Platform, versions: Mapping[str, str], report: Report, opencl: Path | None = None
) -> Path:
    """The folder for `farm bundle add`: under a minute, nearly all of it downloads (100 MB); from the cache at once.

    Args:
        cache: where the parts are kept (`default_cache`).
        abi: of the phones.
        platform: of the phones: whether they are virtual.
        versions: of TVM's packages in the toolchain (`check_versions`).
        report: called with each step.
        opencl: a checkout of TVM, for OpenCL too (virtual phones only); None: for CPUs.

    Raises:
        UserError: TVM has no wheel for that ABI, or the phones' OpenCL cannot be used, or that is no checkout.
        DownloadError: a package could not be had.
        HostError: there is no compiler, or it failed, or the cache cannot be written.
    """
    compiler = check_host(cache, abi, platform, opencl)
    wheel = tvm_wheel(cache, abi, versions, report)
    system = debian_libraries(cache, abi, report)
    libraries = (*wheel.libraries, *([build_opencl(cache, opencl, compiler, wheel, report)] if opencl else []))
    description = description_text(FolderDescription(abi, platform, of_packages(versions)))
    digest = hashlib.sha256(repr((compiler.version(), OPTIONS, description, hash_file(SOURCE))).encode())
    for file in (*libraries, system / CONTENTS):
        digest.update(hash_file(file).encode())
    make = partial(_put_together, abi, description, compiler, wheel, libraries, system, report)
    return part(cache, f"bundle-{abi}-{digest.hexdigest()[:16]}", make, report) / BUNDLE


def check_host(cache: Path, abi: Abi, platform: Platform, opencl: Path | None = None) -> Compiler:
    """Refuse what cannot be built here, whatever the toolchain's TVM and the network; returns the compiler.

    What the user gave is checked first, then what the host has: its compiler, then apt, which a filled cache replaces.

    Raises:
        UserError, HostError: as `build_from_wheels`.
    """
    if opencl:
        check_opencl(platform)
        check_whole(opencl)
        opencl_headers(opencl)
    compiler = find_compiler(abi)
    check_apt(cache, abi)
    return compiler


def check_opencl(platform: Platform) -> None:
    """Refuse OpenCL for phones whose driver cannot be used.

    Raises:
        UserError: they are no virtual ones.
    """
    if platform is Platform.ANDROID:
        raise UserError(
            "a phone's OpenCL driver needs Android's C library, with which this runtime is not started",
            hint="build with the NDK for it: docs/bundles.md; for virtual phones: --platform linux-glibc",
        )


def _put_together(
    abi: Abi, description: str, compiler: Compiler, wheel: TvmWheel, libraries: tuple[Path, ...], system: Path,
    report: Report, made: Path, scratch: Path,
) -> dict[str, str]:  # fmt: skip
    report(f"compiling {SERVER_PROGRAM} with {compiler.name}")
    bundle = made / BUNDLE
    bundle.mkdir()
    beside = [system / name for name in (architecture_of(abi).loader, *C_LIBRARY, *COMPILER_LIBRARIES)]
    for library in (*libraries, *beside):
        shutil.copyfile(library, bundle / library.name)
    compile_server(compiler, wheel, scratch / SERVER_PROGRAM)
    for name, real in _BIONIC_NAMES.items():
        options = ("-shared", "-nostdlib", "-s", "-Wl,--no-as-needed", f"-Wl,-soname,{name}")
        compiler.compile([*options, "-x", "c", "/dev/null", "-x", "none", str(system / real)], scratch / name)
    for name in (SERVER_PROGRAM, *_BIONIC_NAMES):
        shutil.copyfile(scratch / name, bundle / name)
    (bundle / DESCRIPTION).write_text(description, "utf-8")
    return {SOURCE.name: hash_file(SOURCE)}
