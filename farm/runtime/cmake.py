"""Runs CMake on the host: finds it and a program that builds, shows progress, keeps what a failure said."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.common.errors import Code, HostError
from farm.runtime.parts import check_room, output_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_GENERATORS = {"ninja": "Ninja", "make": "Unix Makefiles"}  # by program, the better first
_NEEDED = re.compile(r"^\s*cmake_minimum_required\s*\(\s*VERSION\s+(\d+(?:\.\d+)*)", re.MULTILINE | re.IGNORECASE)
_VERSION_LINE = re.compile(r"version (\d+(?:\.\d+)*)")
_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\] (?:Building|Linking|Built) ")  # of Ninja and of make
# The linker's own words come before the compiler driver's "linker command failed".
_CAUSE = re.compile(r": (?:fatal )?error: |^CMake Error|undefined reference|: command not found", re.MULTILINE)
_FROM_OUTSIDE = {  # variables that would change what is built
    "CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH", "COMPILER_PATH", "CMAKE_GENERATOR", "CMAKE_TOOLCHAIN_FILE", "CMAKE_PREFIX_PATH",
    "CMAKE_INCLUDE_PATH", "CMAKE_LIBRARY_PATH", "CMAKE_PROGRAM_PATH",
}  # fmt: skip
_KEPT_LINES = 60  # of the output, for the evidence
_REPORTED_PERCENT = 10  # progress is reported in steps of this size
_VERSION_LIMIT_S = 20.0
_END_LIMIT_S = 10.0  # of a build that got a signal to end
_INSTALL = "apt install cmake ninja-build, or `pip install cmake ninja` beside farm"

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CMake:
    """CMake, and what it builds with."""

    program: str
    generator: str
    maker: str  # the program of the generator


def needed_version(texts: Iterable[str]) -> Version:
    """The CMake that CMakeLists.txt files ask for."""
    return max((_numbers(found[1]) for text in texts if (found := _NEEDED.search(text))), default=(0,))


def find_cmake(needed: Version, which: Callable[[str], str | None] | None = None) -> CMake:
    """The first CMake that is new enough, on PATH or beside this Python, with Ninja, else make.

    Raises:
        HostError: there is none, or none that is new enough, or nothing that it could build with.
    """
    which = which or _which
    programs = [path for path in (which("cmake"), str(Path(sys.executable).with_name("cmake"))) if path]
    old = ""
    for program in (path for path in programs if Path(path).exists()):
        version = _version_of(program)
        if version >= needed:
            break
        old = f"CMake {_dotted(version)} is too old: this TVM needs {_dotted(needed)}"
    else:
        hint = f"pip install 'cmake>={_dotted(needed)}' beside farm" if old else _INSTALL
        raise HostError(old or "this host has no CMake, which builds TVM", Code.NO_BUILD_TOOL, hint=hint)
    for name, generator in _GENERATORS.items():
        if maker := which(name):
            return CMake(program, generator, maker)
    raise HostError("this host has neither Ninja nor make, which CMake needs", Code.NO_BUILD_TOOL, hint=_INSTALL)


def configure(cmake: CMake, source: Path, build: Path, options: Iterable[tuple[str, str]]) -> None:
    """Prepare a build folder, or continue with one.

    Raises:
        HostError: CMake refused; the evidence is its output.
        OSError: the disk is full.
    """
    words = [cmake.program, "-S", str(source), "-B", str(build), "-G", cmake.generator]
    words += [f"-DCMAKE_MAKE_PROGRAM={cmake.maker}", *(f"-D{name}={value}" for name, value in options)]
    _run(words, build, "CMake refused TVM", lambda _: None)


def build_target(cmake: CMake, build: Path, target: str, report: Callable[[str], None]) -> None:
    """Build a target and what it needs; what is built already is left as it is.

    Raises:
        HostError: the compiler failed; the evidence is its output.
        OSError: the disk is full.
    """
    command = [cmake.program, "--build", str(build), "--target", target, "--parallel", str(os.cpu_count() or 1)]
    _run(command, build, "TVM does not compile", report)


def progress_of(lines: Iterable[str]) -> Iterator[str]:
    """Steps of a build for people, from lines such as `[12/231] Building ...` and `[ 12%] Building ...`."""
    reported = -1
    for line in lines:
        if found := _STEP.match(line):
            done, of = int(found[1]), int(found[2] or 100)
            if (percent := 100 * done // max(of, 1) // _REPORTED_PERCENT) > reported:
                reported = percent
                yield f"compiling TVM: {done} of {of} files" if found[2] else f"compiling TVM: {done} %"


def cause_of(output: str) -> str:
    """The first line of a failed build's output that says why; "" where none does."""
    found = _CAUSE.search(output)
    if found is None:
        return ""
    begin = output.rfind("\n", 0, found.start()) + 1
    line, _, after = output[begin:].partition("\n")
    reason = after.strip().partition("\n")[0] if line.startswith("CMake Error") else ""  # which is on the next line
    return f"{line.strip()} {reason}".strip()


def _run(command: Sequence[str], folder: Path, failure: str, report: Callable[[str], None]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _FROM_OUTSIDE}
    environment |= {"LC_ALL": "C", "TMPDIR": str(folder), "CLICOLOR": "0"}
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        # The lock under which a part is made goes with it (farm.runtime.parts). A group of its own ends as a whole.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", close_fds=False, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise HostError(f"{command[0]} does not run: {error.strerror}", Code.NO_BUILD_TOOL, hint=_INSTALL) from error
    with process:
        assert process.stdout is not None
        try:
            for step in progress_of(_kept(process.stdout, kept)):
                report(step)
        except BaseException:
            _end(process)
            raise
    if process.returncode == 0:
        return
    output = "".join(kept)
    check_room(folder, process.returncode, output)
    why = cause_of(output)
    hint = f"--json has the rest; the next build continues in {folder}, and begins again if you remove it"
    raise HostError(f"{failure}: {why}" if why else failure, Code.BUILD_FAILED, hint=hint, evidence=output)


def _end(process: subprocess.Popen[str]) -> None:
    """End a group of processes whose output is no longer needed."""
    os.killpg(process.pid, signal.SIGINT)  # on which Ninja and make remove what is half written
    try:
        process.communicate(timeout=_END_LIMIT_S)  # reads on: a full pipe would hold them
    except BaseException as error:  # the limit, or a second Ctrl-C
        os.killpg(process.pid, signal.SIGKILL)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def _kept(lines: Iterable[str], kept: deque[str]) -> Iterator[str]:
    for line in lines:
        kept.append(line)
        yield line


def _which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _version_of(program: str) -> Version:
    def failed(output: str) -> HostError:
        return HostError(f"{program} does not run", Code.NO_BUILD_TOOL, hint=_INSTALL, evidence=output)

    found = _VERSION_LINE.search(output_of([program, "--version"], _VERSION_LIMIT_S, failed))
    return _numbers(found[1]) if found else (0,)


def _numbers(version: str) -> Version:
    return tuple(map(int, version.split(".")))


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
