"""OpenCL on virtual phones with `+opencl`: the host's driver for CPUs as the phone's, and a TVM runtime that uses it.

    ~/.cache/farm/opencl-driver-<key>/
      lib64/libOpenCL.so        what a phone's vendor puts there (opencl_driver.c)
      etc/OpenCL/vendors/*.icd  names the library of the host's driver
      bin/ld                    starts the host's linker, which pocl calls for each kernel
      driver.txt                the folder of the host's driver, where that is not below /usr

A phone gets a copy of the folder at /vendor, the host's /usr at /vendor/host, and that folder at /vendor/driver: only
this driver looks for libraries there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.elf import read_elf
from farm.common.errors import HostError
from farm.common.files import hash_file
from farm.runtime.build import LIBRARY_OPTIONS, OPENCL_LIBRARY, compile_opencl, opencl_headers
from farm.runtime.parts import part
from farm.runtime.server import Compiler
from farm.simulation.machine import DRIVER_FOLDER, VENDOR_DRIVER, VENDOR_HOST, VENDOR_OPENCL
from farm.simulation.runtime import cache_folder, find_wheel
from farm.simulation.system_image import C_LIBRARY, linked_libraries

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = Path(__file__).with_name("opencl_driver.c")
_DEVICE = Path(__file__).with_name("opencl_device.cc")
_USR = Path("/usr")
_HOST = _USR / "lib/x86_64-linux-gnu"
_ICD_LOADER = _HOST / "libOpenCL.so.1"
_LOADER = "ld-linux-x86-64.so.2"
VENDORS_VARIABLE = "OCL_ICD_VENDORS"  # as of the host's ICD loader: a folder of .icd files, or one of them
_VENDORS = "/etc/OpenCL/vendors"
_PREFERRED = "pocl.icd"  # among several: drivers of GPUs find none on a virtual phone
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


@dataclass(frozen=True, slots=True)
class HostDriver:
    """The host's OpenCL driver for CPUs."""

    icd: str  # the name of the file that names it
    library: Path
    soname: str  # by which the ICD loader finds it among the loaded libraries
    needed: tuple[Path, ...]  # the libraries that it needs, without the C library's

    @property
    def folder(self) -> Path | None:
        """Its folder, which a phone must see besides /usr; None: it is there."""
        place = self.library.parent.resolve()
        return None if place.is_relative_to(_USR) else place


def find_driver(vendors: Path) -> HostDriver:
    """The driver that .icd files name.

    Args:
        vendors: a folder of such files, or one of them.
    """
    files = [vendors] if vendors.is_file() else sorted(vendors.glob("*.icd"), key=lambda each: each.name != _PREFERRED)
    if not files:
        raise OpenclDriverError("this host has no OpenCL driver for its CPU", hint=f"apt install {_PACKAGES}")
    library = _HOST / files[0].read_text("utf-8", "replace").strip()
    if not library.is_file():
        raise OpenclDriverError(f"{files[0]} names {library}, which is not there", hint="install the driver again")
    linked = linked_libraries([library])
    needed = tuple(path for name, path in linked.items() if name not in (*C_LIBRARY, _LOADER))
    driver = HostDriver(files[0].name, library, read_elf(library).soname or library.name, needed)
    seen = (_USR, driver.folder or _USR)
    if hidden := [str(path) for path in needed if not any(map(path.parent.resolve().is_relative_to, seen))]:
        raise OpenclDriverError(
            f"{library} needs {', '.join(hidden)}, which a phone does not see",
            hint=f"what is below /usr or in {library.parent} it sees",
        )
    return driver


def opencl_folder(report: Callable[[str], None] = lambda _line: None) -> Path:
    """The driver's folder (module docstring), made when it is not there."""
    compiler = shutil.which("gcc") or shutil.which("g++")
    if platform.machine() != "x86_64" or not _ICD_LOADER.exists():
        raise OpenclDriverError("this host has no OpenCL for its CPU", hint=f"apt install {_PACKAGES}")
    driver = find_driver(Path(os.environ.get(VENDORS_VARIABLE) or _VENDORS))
    if compiler is None or not _LINKER_PROGRAM.exists():
        raise OpenclDriverError(
            "the OpenCL driver of virtual phones needs a compiler and a linker", hint="apt install gcc"
        )
    native = Compiler("gcc", (compiler,))
    headers = opencl_headers()
    digest = hashlib.sha256(repr((native.version(), str(headers), driver)).encode())
    for file in (Path(__file__), _SOURCE, _ICD_LOADER):
        digest.update(hash_file(file).encode())
    make = partial(_put_together, native, headers, driver, report)
    return part(cache_folder().parent, f"opencl-driver-{digest.hexdigest()[:16]}", make)


def opencl_runtime(report: Callable[[str], None] = lambda _line: None) -> Path:
    """TVM's OpenCL runtime from opencl_device.cc, for bundles of virtual phones without a TVM checkout."""
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
    native: Compiler, headers: Path, driver: HostDriver, report: Callable[[str], None], made: Path, scratch: Path
) -> dict[str, str]:
    report("compiling the OpenCL driver of virtual phones")
    library, vendors, programs = made / VENDOR_OPENCL, made / "etc/OpenCL/vendors", made / "bin"
    for folder in (library.parent, vendors, programs):
        folder.mkdir(parents=True)
    # All that the driver needs is found by this RPATH (RUNPATH would not count here), and so found before anything on
    # the phone asks for it by name.
    needed = (_ICD_LOADER, driver.library, *driver.needed)
    folders = dict.fromkeys(_on_phone(path.parent.resolve(), driver.folder) for path in needed)
    options = ["-O2", "-shared", "-fPIC", f"-idirafter{headers}", "-Wl,--disable-new-dtags"]
    options += [f"-Wl,-rpath,{folder}" for folder in folders]
    built = scratch / library.name
    native.compile([*options, str(_SOURCE), "-Wl,--no-as-needed", *map(str, needed), "-ldl"], built)
    shutil.copyfile(built, library)
    (vendors / driver.icd).write_text(f"{driver.soname}\n", "utf-8")
    if driver.folder:
        (made / DRIVER_FOLDER).write_text(str(driver.folder), "utf-8")
    (programs / "ld").write_text(_LINKER.replace("@HOST@", _on_phone(_HOST, None)), "utf-8")
    return {_SOURCE.name: hash_file(_SOURCE)}


def _on_phone(place: Path, driver: Path | None) -> str:
    """Where a phone has a folder of the host: below /usr, or the driver's."""
    root, shown = (driver, VENDOR_DRIVER) if driver and place.is_relative_to(driver) else (_USR, VENDOR_HOST)
    return str("/vendor" / Path(shown) / place.relative_to(root))
