"""A bundle's folder for phones, from TVM's own wheels: no NDK, no TVM checkout.

    tvm_rpc                       compiled here (farm.runtime.server)
    libtvm_*.so                   out of TVM's wheel of the toolchain's version; OpenCL's compiled (farm.runtime.build)
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
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.folder import DESCRIPTION, description_text
from farm.bundle.model import SERVER_PROGRAM, Abi, FolderDescription, Platform
from farm.bundle.versions import of_packages
from farm.common.errors import HostError, UserError
from farm.common.files import hash_file
from farm.runtime.checkout import OPENCL_HEADERS, check_whole
from farm.runtime.packages import C_LIBRARY, COMPILER_LIBRARIES, architecture_of, check_apt, debian_libraries, tvm_wheel
from farm.runtime.parts import CONTENTS, part
from farm.runtime.server import OPTIONS, SOURCE, Compiler, compile_server, find_compiler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from farm.runtime.packages import Report, TvmWheel

BUNDLE = "bundle"  # the folder to add, inside its part
_BIONIC_NAMES = {"libc.so": "libc.so.6", "libm.so": "libm.so.6", "libdl.so": "libdl.so.2"}
OPENCL_LIBRARY = "libtvm_runtime_opencl.so"
_FOLDER = "src/backend/opencl/runtime"
_SOURCES = ("opencl_device_api.cc", "opencl_module.cc", "opencl_wrapper/opencl_wrapper.cc")
_READ = (_FOLDER, "src/runtime", "src/support", "include/tvm/support")  # folders of the checkout that the sources name
_SYSTEM_HEADERS = Path("/usr/include")
LIBRARY_OPTIONS = (
    "-std=c++17", "-O2", "-g0", "-s", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{OPENCL_LIBRARY}",
    "-Wl,-rpath,$ORIGIN", "-DCL_TARGET_OPENCL_VERSION=120", "-Wno-attributes",
)  # fmt: skip


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
    """
    if opencl:
        check_opencl(platform)
        check_whole(opencl)
        opencl_headers(opencl)
    compiler = find_compiler(abi)
    check_apt(cache, abi)
    return compiler


def check_opencl(platform: Platform) -> None:
    """Refuse OpenCL for phones whose driver cannot be used."""
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


def build_opencl(cache: Path, checkout: Path, compiler: Compiler, wheel: TvmWheel, report: Report) -> Path:
    """The library for the machine of a wheel: about 20 s with g++, from the cache at once.

    Args:
        cache: where the parts are kept (`default_cache`).
        checkout: TVM's sources of the wheel's version (`check_checkout`).
        compiler: for the machine of the wheel (`find_compiler`).
        wheel: TVM's headers and libraries.
        report: called with each step.
    """
    headers = opencl_headers(checkout)
    digest = hashlib.sha256(repr((compiler.version(), compiler.command[1:], LIBRARY_OPTIONS)).encode())
    for file in (*_sources_of(checkout), *sorted((headers / "CL").glob("*.h")), *wheel.libraries):
        digest.update(hash_file(file).encode())
    sources = [checkout / _FOLDER / name for name in _SOURCES]
    make = partial(compile_opencl, sources, (checkout,), headers, compiler, wheel, report)
    return part(cache, f"opencl-{digest.hexdigest()[:16]}", make, report) / OPENCL_LIBRARY


def opencl_headers(checkout: Path | None = None) -> Path:
    """The folder above CL/cl.h: of the checkout's submodule, else of the system."""
    for folder in (*([checkout / OPENCL_HEADERS] if checkout else []), _SYSTEM_HEADERS):
        if (folder / "CL/cl_ext.h").is_file():
            return folder
    raise HostError("this host has no OpenCL headers (CL/cl.h)", hint="apt install opencl-headers")


def _sources_of(checkout: Path) -> list[Path]:
    return sorted(file for name in _READ for file in (checkout / name).rglob("*") if file.suffix in {".h", ".cc"})


def compile_opencl(
    sources: Sequence[Path], checkouts: Sequence[Path], headers: Path, compiler: Compiler, wheel: TvmWheel,
    report: Report, made: Path, scratch: Path,
) -> dict[str, str]:  # fmt: skip
    """Make a part (farm.runtime.parts) with OPENCL_LIBRARY.

    The sources find the headers of a wheel, then those of checkouts of TVM, then OpenCL's (the folder above CL/cl.h).
    """
    report(f"compiling {OPENCL_LIBRARY} with {compiler.name}")
    # The wheel's headers first: so are TVM's libraries. The system's last: a compiler for another machine has its own.
    includes = (*wheel.includes, *(checkout / "include" for checkout in checkouts))
    folders = (*(f"-isystem{folder}" for folder in includes), f"-idirafter{headers}")
    paths = [f"-ffile-prefix-map={folder}=" for folder in (*wheel.includes, *checkouts)]
    libraries = [str(library) for library in wheel.libraries]
    library = scratch / OPENCL_LIBRARY
    compiler.compile([*LIBRARY_OPTIONS, *paths, *folders, *map(str, sources), *libraries, "-ldl"], library)
    shutil.copyfile(library, made / OPENCL_LIBRARY)
    return {file.name: hash_file(file) for file in sources}
