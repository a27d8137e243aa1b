"""Makes programs of the runtimes that Python packages bring: the shared library, and a small runner for it in C."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from farm.bundle.model import Abi
from farm.common.errors import Code, UserError
from farm.programs.description import PackagedRuntime
from farm.runtime.packages import host_libraries
from farm.runtime.server import find_compiler

_RUNNERS = Path(__file__).with_name("runners")
_OPTIONS = ("-std=c11", "-O2", "-g0", "-s")


@dataclass(frozen=True, slots=True)
class RuntimePackage:
    """Where a package has the library of its runtime."""

    project: str  # as pip names it
    package: str  # as Python imports it
    library: str  # its shared library as programs call it
    place: str  # of the library in the package; it may carry a version behind its name


PACKAGES: dict[PackagedRuntime, RuntimePackage] = {
    "ort": RuntimePackage("onnxruntime", "onnxruntime", "libonnxruntime.so", "capi"),
    "litert": RuntimePackage("ai-edge-litert", "ai_edge_litert", "libLiteRt.so", "."),
}


def make_program(name: PackagedRuntime, folder: Path) -> Path:
    """Make the program of a runtime that this interpreter has, in a new folder; returns its description. Blocking.

    Raises:
        UserError: the package is not installed, or the folder is there already.
        HostError: there is no compiler, or it failed.
        OSError: the folder cannot be made, or the disk is full.
    """
    package, runner = PACKAGES[name], f"{name}_runner"
    library = packaged_library(package)
    if library is None:
        raise UserError(
            f"this interpreter has no {package.project}", Code.BAD_PROGRAM, hint=f"pip install {package.project}"
        )
    compiler = find_compiler(Abi.X86_64 if platform.machine() == "x86_64" else Abi.ARM64, language="c")
    if folder.exists():
        raise UserError(f"{folder} is there already", hint="name a new folder")
    files, description = folder / name, folder / f"{runner}.toml"
    try:
        files.mkdir(parents=True)
        compiler.compile([*_OPTIONS, str(_RUNNERS / f"{runner}.c"), "-ldl"], files.absolute() / runner)
        shutil.copyfile(library, files / package.library)
        for each in host_libraries(library):
            shutil.copyfile(each, files / each.name)
        text = (_RUNNERS / description.name).read_text()
        description.write_text(text.replace('version = ""', f'version = "{version(package.project)}"'))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return description


def packaged_library(package: RuntimePackage) -> Path | None:
    """The shared library of an installed package."""
    found = find_spec(package.package)
    folder = Path(found.origin).parent if found is not None and found.origin else None
    return next(iter(sorted(folder.glob(f"{package.place}/{package.library}*"))), None) if folder else None
