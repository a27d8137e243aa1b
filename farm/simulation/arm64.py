"""The parts of an arm64 virtual phone, made once per user: qemu, a private arm64 C library, and an AArch64 bundle.

    ~/.cache/farm/arm64-<key>/
      qemu-aarch64      the host's qemu-user program: namespaces hide the host's own
      arm64_exec.so     starts AArch64 programs with it (arm64_exec.c)
      root/             Debian's arm64 C library, nothing else: what a phone brings along
      bundle/           tvm_rpc, cross-compiled, and the libraries it needs: to be given to `farm bundle add`
      contents.json     the SHA-256 of every file

The key is a hash of what goes in: our sources, packages, compiler and qemu. farm.runtime.parts has how it is kept, and
farm.runtime.packages where the libraries come from.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.elf import read_elf
from farm.bundle.model import SERVER_PROGRAM, Abi
from farm.common.errors import HostError
from farm.common.files import hash_file
from farm.common.install import pip_install
from farm.runtime.packages import (
    C_LIBRARY,
    COMPILER_LIBRARIES,
    DownloadError,
    architecture_of,
    check_versions,
    debian_libraries,
    tvm_wheel,
)
from farm.runtime.parts import CONTENTS, default_cache, part
from farm.runtime.server import Compiler, compile_server, find_compiler
from farm.simulation.machine import ARM64_PRELOAD
from farm.simulation.runtime import COMPILER_OPTIONS, SOURCES, cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from farm.runtime.packages import TvmWheel

QEMU = "qemu-aarch64"
_MACHINE = architecture_of(Abi.ARM64)
_EXEC_SOURCE = Path(__file__).with_name("arm64_exec.c")
_PACKAGES = {  # program -> Debian's package
    "qemu": "qemu-user-static",
    "native": "gcc",
    "apt_get": "apt",
    "dpkg_deb": "dpkg",
}


class Arm64ToolsError(HostError):
    """This host lacks programs that an arm64 virtual phone needs."""

    code = "no_arm64_tools"


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs of the host, as absolute paths."""

    qemu: str
    native: str


def find_tools(which: Callable[[str], str | None] = shutil.which) -> Tools:
    """Look for everything at once."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Arm64ToolsError(
            f"arm64 virtual phones are emulated on x86-64 hosts only, this one is {platform.machine()}"
        )
    candidates = {
        "qemu": ("qemu-aarch64-static", "qemu-aarch64"),
        "native": ("gcc", "cc", "clang"),
        "apt_get": ("apt-get",),
        "dpkg_deb": ("dpkg-deb",),
    }
    found = {tool: next(filter(None, map(which, names)), "") for tool, names in candidates.items()}
    missing = [tool for tool in candidates if not found[tool]]
    if missing:
        raise Arm64ToolsError(
            f"an arm64 virtual phone needs {', '.join(candidates[tool][0] for tool in missing)}, which this host lacks",
            hint=f"apt install {' '.join(_PACKAGES[tool] for tool in missing)}",
        )
    if read_elf(Path(found["qemu"])).interpreter:
        raise Arm64ToolsError(
            f"{found['qemu']} is linked to libraries of the host, which a phone does not see",
            hint=f"apt install {_PACKAGES['qemu']}",
        )
    return Tools(found["qemu"], found["native"])


def arm64_folder(report: Callable[[str], None] = lambda _line: None) -> Path:
    """The folder described above, made when it is not there: a minute at most, nearly all of it downloads (100 MB)."""
    tools, compiler = find_tools(), find_compiler(Abi.ARM64)
    wheel = tvm_wheel(default_cache(), Abi.ARM64, installed_versions(), report)
    system = debian_libraries(default_cache(), Abi.ARM64, report)
    native = Compiler("gcc", (tools.native,))
    digest = hashlib.sha256(repr((COMPILER_OPTIONS[0], compiler.version(), native.version())).encode())
    for file in (*SOURCES, _EXEC_SOURCE, Path(__file__), Path(tools.qemu), *wheel.libraries, system / CONTENTS):
        digest.update(hash_file(file).encode())
    make = partial(_put_together, Path(tools.qemu), native, compiler, wheel, system)
    return part(cache_folder().parent, f"arm64-{digest.hexdigest()[:16]}", make)


def installed_versions() -> dict[str, str]:
    """Versions of TVM's packages installed here, since host and phone must have the same TVM."""
    try:
        return check_versions({each: metadata.version(each) for each in ("apache-tvm", "apache-tvm-ffi")}, "TVM here")
    except metadata.PackageNotFoundError as error:
        raise DownloadError(
            f"{error.name} is not installed, so the version an arm64 phone needs is not known",
            hint=pip_install("tvm"),
        ) from error


def _put_together(
    qemu: Path, native: Compiler, cross: Compiler, wheel: TvmWheel, system: Path, made: Path, scratch: Path
) -> dict[str, str]:
    root, bundle = made / "root", made / "bundle"
    libraries = root / "lib" / _MACHINE.triple
    for folder in (libraries, bundle):
        folder.mkdir(parents=True)
    for name in (*C_LIBRARY, _MACHINE.loader):
        shutil.copyfile(system / name, libraries / name)
    shutil.copyfile(system / _MACHINE.loader, root / "lib" / _MACHINE.loader)  # the name in every program
    for library in (*wheel.libraries, *(system / name for name in COMPILER_LIBRARIES)):
        shutil.copyfile(library, bundle / library.name)
    shutil.copyfile(qemu, made / QEMU)
    native.compile(["-O2", "-shared", "-fPIC", str(_EXEC_SOURCE)], scratch / ARM64_PRELOAD)
    compile_server(cross, wheel, scratch / SERVER_PROGRAM, COMPILER_OPTIONS)
    shutil.copyfile(scratch / ARM64_PRELOAD, made / ARM64_PRELOAD)
    shutil.copyfile(scratch / SERVER_PROGRAM, bundle / SERVER_PROGRAM)
    return {_EXEC_SOURCE.name: hash_file(_EXEC_SOURCE)}
