"""The host's compiler for programs of an ABI, or Zig of the package index; and `tvm_rpc`, made of tvm_rpc.cc."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from farm.bundle.model import SERVER_PROGRAM, Abi
from farm.common.errors import Code, HostError
from farm.compiler.link import packaged_zig
from farm.runtime.packages import TvmWheel, architecture_of
from farm.runtime.parts import output_of

SOURCE = Path(__file__).with_name("tvm_rpc.cc")
OPTIONS = ("-std=c++17", "-O2", "-g0", "-s", "-fvisibility=hidden", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed")
_COMPILE_LIMIT_S = 1200.0  # g++ takes seconds; Zig first builds a C++ library, two minutes of processor time
_VERSION_LIMIT_S = 20.0
_OLDEST_GLIBC = "2.28"  # of TVM's wheels (manylinux_2_28)

compile_error = partial(HostError, code=Code.COMPILE_FAILED)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler for an ABI, and the words of its command."""

    name: str
    command: tuple[str, ...]

    def version(self) -> str:
        """What it says of itself.

        Raises:
            HostError: it does not run.
        """
        command = [self.command[0], "version" if self.name == "zig" else "--version"]
        return output_of(command, _VERSION_LIMIT_S, partial(self._failed, SERVER_PROGRAM))

    def compile(self, arguments: Sequence[str], out: Path) -> None:
        """Make a program or library.

        Raises:
            HostError: it failed; the evidence is its output.
            OSError: the disk is full.
        """
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
    """The compiler that makes programs of an ABI here: g++ (gcc for C), else Zig.

    Raises:
        UserError: TVM has no wheel for that ABI.
        HostError: there is no compiler for it.
    """
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
    """`tvm_rpc`, linked to a wheel's libraries: the same sources and compiler give the same bytes, wherever they lie.

    Raises:
        HostError, OSError: as `Compiler.compile`.
    """
    includes = [f"-isystem{folder}" for folder in wheel.includes]
    paths = [f"-ffile-prefix-map={folder}=" for folder in (*wheel.includes, SOURCE.parent)]  # messages name files
    libraries = [str(library) for library in wheel.libraries]
    compiler.compile([*OPTIONS, *options, *paths, *includes, str(SOURCE), *libraries, "-ldl"], out)
