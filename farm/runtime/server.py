"""The host's compiler for programs of an ABI, or Zig of the package index; and `tvm_rpc`, made of tvm_rpc.cc."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from farm.bundle.model import SERVER_PROGRAM, Abi
from farm.common.errors import Code, HostError, UserError
from farm.compiler.link import packaged_zig
from farm.programs.description import PackagedRuntime
from farm.runtime.packages import TvmWheel, architecture_of, host_libraries
from farm.runtime.parts import output_of

SOURCE = Path(__file__).with_name("tvm_rpc.cc")
OPTIONS = ("-std=c++17", "-O2", "-g0", "-s", "-fvisibility=hidden", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed")
_COMPILE_LIMIT_S = 1200.0  # g++ takes seconds; Zig first builds a C++ library, two minutes of processor time
_VERSION_LIMIT_S = 20.0
_OLDEST_GLIBC = "2.28"  # of TVM's wheels (manylinux_2_28)
compile_error = partial(HostError, code=Code.COMPILE_FAILED)
_RUNNERS = Path(__file__).with_name("runners")
_OPTIONS = ("-std=c11", "-O2", "-g0", "-s")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler for an ABI, and the words of its command."""

    name: str
    command: tuple[str, ...]

    def version(self) -> str:
        """What it says of itself."""
        command = [self.command[0], "version" if self.name == "zig" else "--version"]
        return output_of(command, _VERSION_LIMIT_S, partial(self._failed, SERVER_PROGRAM))

    def compile(self, arguments: Sequence[str], out: Path) -> None:
        """Make a program or library."""
        failed = partial(self._failed, out.name)
        output_of([*self.command, *arguments, "-o", str(out)], _COMPILE_LIMIT_S, failed, out.parent)

    def _failed(self, what: str, said: str) -> HostError:
        hint = "are libc6-dev and libstdc++-dev installed? Without g++ on PATH virtual phones use a server in Python"
        return compile_error(f"{self.name} cannot compile {what}", hint=hint, evidence=said)


def find_compiler(
    abi: Abi,
    which: Callable[[str], str | None] = shutil.which,
    zig: Callable[[], str | None] = packaged_zig,
    *,
    language: Literal["c", "c++"] = "c++",
) -> Compiler:
    """The compiler that makes programs of an ABI here: g++ (gcc for C), else Zig."""
    machine = architecture_of(abi)
    gnu, zig_word = ("g++", "c++") if language == "c++" else ("gcc", "cc")
    cross = f"{machine.triple}-{gnu}"
    for name in (gnu, cross) if platform.machine() == machine.name else (cross,):
        if path := which(name):
            return Compiler(name, (path,))
    if path := which("zig") or zig():
        return Compiler("zig", (path, zig_word, "-target", f"{machine.triple}.{_OLDEST_GLIBC}"))
    raise HostError(
        f"this host has no compiler for {abi}",
        Code.NO_COMPILER,
        hint=f"apt install {gnu}-{machine.triple.replace('_', '-')}, or `pip install ziglang` beside farm",
    )


def compile_server(compiler: Compiler, wheel: TvmWheel, out: Path, options: Sequence[str] = ()) -> None:
    """`tvm_rpc`, linked to a wheel's libraries: equal sources and compiler give equal bytes, wherever they lie."""
    includes = [f"-isystem{folder}" for folder in wheel.includes]
    paths = [f"-ffile-prefix-map={folder}=" for folder in (*wheel.includes, SOURCE.parent)]  # messages name files
    libraries = [str(library) for library in wheel.libraries]
    compiler.compile([*OPTIONS, *options, *paths, *includes, str(SOURCE), *libraries, "-ldl"], out)


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
    """Make the program of a runtime that this interpreter has, in a new folder; returns its description. Blocking."""
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
