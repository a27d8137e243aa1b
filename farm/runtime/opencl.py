"""TVM's OpenCL runtime as a library of its own: TVM's wheels lack it, so its sources come from a checkout of TVM.

It looks for the phone's libOpenCL.so when a session first asks for an OpenCL device, so `tvm_rpc` also starts on phones
without one. Headers and libraries of TVM are the wheel's: host and phone keep one TVM.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.common.errors import HostError
from farm.common.files import hash_file
from farm.runtime.checkout import OPENCL_HEADERS
from farm.runtime.parts import part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.runtime.packages import Report, TvmWheel
    from farm.runtime.server import Compiler

OPENCL_LIBRARY = "libtvm_runtime_opencl.so"
_FOLDER = "src/backend/opencl/runtime"
_SOURCES = ("opencl_device_api.cc", "opencl_module.cc", "opencl_wrapper/opencl_wrapper.cc")
_READ = (_FOLDER, "src/runtime", "src/support", "include/tvm/support")  # folders of the checkout that the sources name
_SYSTEM_HEADERS = Path("/usr/include")
LIBRARY_OPTIONS = (
    "-std=c++17", "-O2", "-g0", "-s", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{OPENCL_LIBRARY}",
    "-Wl,-rpath,$ORIGIN", "-DCL_TARGET_OPENCL_VERSION=120", "-Wno-attributes",
)  # fmt: skip


def build_opencl(cache: Path, checkout: Path, compiler: Compiler, wheel: TvmWheel, report: Report) -> Path:
    """The library for the machine of a wheel: about 20 s with g++, from the cache at once.

    Args:
        cache: where the parts are kept (`default_cache`).
        checkout: TVM's sources of the wheel's version (`check_checkout`).
        compiler: for the machine of the wheel (`find_compiler`).
        wheel: TVM's headers and libraries.
        report: called with each step.

    Raises:
        HostError: there are no OpenCL headers, or the compiler failed, or the cache cannot be written.
    """
    headers = opencl_headers(checkout)
    digest = hashlib.sha256(repr((compiler.version(), compiler.command[1:], LIBRARY_OPTIONS)).encode())
    for file in (*_sources_of(checkout), *sorted((headers / "CL").glob("*.h")), *wheel.libraries):
        digest.update(hash_file(file).encode())
    sources = [checkout / _FOLDER / name for name in _SOURCES]
    make = partial(compile_opencl, sources, (checkout,), headers, compiler, wheel, report)
    return part(cache, f"opencl-{digest.hexdigest()[:16]}", make, report) / OPENCL_LIBRARY


def opencl_headers(checkout: Path | None = None) -> Path:
    """The folder above CL/cl.h: of the checkout's submodule, else of the system.

    Raises:
        HostError: there is none.
    """
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

    Raises:
        HostError, OSError: as `Compiler.compile`.
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
