"""OpenCL on virtual phones with `+opencl`: the host's driver for CPUs as the phone's, and a TVM runtime that uses it.

    ~/.cache/farm/opencl-driver-<key>/
      lib64/libOpenCL.so        what a phone's vendor puts there (opencl_driver.c)
      etc/OpenCL/vendors/*.icd  names pocl's library
      bin/ld                    starts the host's linker, which pocl calls for each kernel

A phone gets a copy of the folder at /vendor, and the host's /usr at /vendor/host, where only this driver looks for
libraries.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.common.errors import HostError
from farm.common.files import hash_file
from farm.runtime.opencl import LIBRARY_OPTIONS, OPENCL_LIBRARY, compile_opencl, opencl_headers
from farm.runtime.parts import part
from farm.runtime.server import Compiler
from farm.simulation.machine import VENDOR_HOST, VENDOR_OPENCL
from farm.simulation.runtime import cache_folder, find_wheel
from farm.simulation.system_image import C_LIBRARY, linked_libraries

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = Path(__file__).with_name("opencl_driver.c")
_DEVICE = Path(__file__).with_name("opencl_device.cc")
_HOST = Path("/usr/lib/x86_64-linux-gnu")
_ICD_LOADER = _HOST / "libOpenCL.so.1"
_LOADER = "ld-linux-x86-64.so.2"
_ICD = Path("/etc/OpenCL/vendors/pocl.icd")
_PACKAGES = "pocl-opencl-icd ocl-icd-libopencl1 opencl-headers"
_LINKER_PROGRAM = Path("/usr/bin/ld")
_LINKER = """\
#!/system/bin/sh
# pocl wants the host's start files and libraries in every kernel. A kernel needs none: the functions it calls are in
# the process already.
out='' objects=''
while [ $# -gt 0 ]; do
    case $1 in
    -o) out=$2; shift ;;
    /usr/*) ;;
    *.o) objects="$objects $1" ;;
    esac
    shift
done
host=@HOST@
# shellcheck disable=SC2086
exec "$host/ld-linux-x86-64.so.2" --library-path "$host" /vendor/host/bin/ld -shared -o "$out" $objects
"""


class OpenclDriverError(HostError):
    """This host has no OpenCL that a virtual phone could use."""

    code = "no_opencl_driver"


def opencl_folder(report: Callable[[str], None] = lambda _line: None) -> Path:
    """The driver's folder (module docstring), made when it is not there.

    Raises:
        OpenclDriverError: there is no driver, or something that it needs.
        HostError: the compiler failed, or the cache cannot be written.
    """
    compiler = shutil.which("gcc") or shutil.which("g++")
    if platform.machine() != "x86_64" or not (_ICD_LOADER.exists() and _ICD.exists()):
        raise OpenclDriverError("this host has no OpenCL driver for its CPU", hint=f"apt install {_PACKAGES}")
    if compiler is None or not _LINKER_PROGRAM.exists():
        raise OpenclDriverError(
            "the OpenCL driver of virtual phones needs a compiler and a linker", hint="apt install gcc"
        )
    native = Compiler("gcc", (compiler,))
    headers = opencl_headers()
    digest = hashlib.sha256(repr((native.version(), str(headers))).encode())
    for file in (Path(__file__), _SOURCE, _ICD_LOADER, _ICD):
        digest.update(hash_file(file).encode())
    make = partial(_put_together, native, headers, report)
    return part(cache_folder().parent, f"opencl-driver-{digest.hexdigest()[:16]}", make)


def opencl_runtime(report: Callable[[str], None] = lambda _line: None) -> Path:
    """The library of TVM's OpenCL runtime from opencl_device.cc, for bundles of virtual phones without a TVM checkout.

    Raises:
        OpenclDriverError: there is no compiler.
        HostError: TVM or OpenCL's headers are not installed, or the compiler failed, or the cache cannot be written.
    """
    path = shutil.which("g++")
    if path is None:
        raise OpenclDriverError("the OpenCL runtime of virtual phones needs a compiler", hint="apt install g++")
    compiler, wheel, headers = Compiler("g++", (path,)), find_wheel(), opencl_headers()
    digest = hashlib.sha256(repr((compiler.version(), LIBRARY_OPTIONS, str(headers))).encode())
    for file in (_DEVICE, *wheel.libraries):
        digest.update(hash_file(file).encode())
    make = partial(compile_opencl, [_DEVICE], (), headers, compiler, wheel, report)
    return part(cache_folder().parent, f"opencl-device-{digest.hexdigest()[:16]}", make) / OPENCL_LIBRARY


def _put_together(
    native: Compiler, headers: Path, report: Callable[[str], None], made: Path, scratch: Path
) -> dict[str, str]:
    report("compiling the OpenCL driver of virtual phones")
    host = f"/vendor/{VENDOR_HOST}/{_HOST.relative_to('/usr')}"
    library, vendors, programs = made / VENDOR_OPENCL, made / "etc/OpenCL/vendors", made / "bin"
    for folder in (library.parent, vendors, programs):
        folder.mkdir(parents=True)
    # All that the driver needs is found by this RPATH (RUNPATH would not count here), and so found before anything on
    # the phone asks for it by name.
    pocl = _HOST / _ICD.read_text("utf-8").strip()
    closure = [path for name, path in linked_libraries([pocl]).items() if name not in (*C_LIBRARY, _LOADER)]
    needed = (_ICD_LOADER, pocl, *closure)
    options = ["-O2", "-shared", "-fPIC", f"-idirafter{headers}", "-Wl,--disable-new-dtags", f"-Wl,-rpath,{host}"]
    built = scratch / library.name
    native.compile([*options, str(_SOURCE), "-Wl,--no-as-needed", *map(str, needed), "-ldl"], built)
    shutil.copyfile(built, library)
    shutil.copyfile(_ICD, vendors / _ICD.name)
    (programs / "ld").write_text(_LINKER.replace("@HOST@", host), "utf-8")
    return {_SOURCE.name: hash_file(_SOURCE)}
