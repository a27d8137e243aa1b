"""A bundle's folder for phones from TVM's sources, with an NDK: the GPU's runtime too, on bionic.

    tvm_rpc                                             farm's own, linked to the libraries beside it
    libtvm_runtime.so, libtvm_runtime_extra.so, libtvm_ffi.so, libtvm_runtime_opencl.so
    libc++_shared.so                                    the NDK's, as they need it

CMake builds them by ndk_project/CMakeLists.txt in a folder of the cache. That folder outlives an interrupt, an error
and a full disk, so that the next build of the same inputs in the same places continues; it is removed when the bundle's
folder is there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.elf import read_elf
from farm.bundle.folder import DESCRIPTION, description_text
from farm.bundle.model import LARGE_PAGE_BYTES, SERVER_PROGRAM, Abi, FolderDescription
from farm.bundle.versions import TvmVersions
from farm.common.errors import Code, HostError, UserError
from farm.common.files import hash_file, remove_leftover
from farm.common.os_errors import name_unreadable_file
from farm.compiler.link import NDK_API
from farm.runtime.build import BUNDLE
from farm.runtime.checkout import OPENCL_HEADERS, TVM_FFI, check_checkout, check_whole, checkout_error, content_of
from farm.runtime.parts import check_room, output_of, part
from farm.runtime.server import SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from farm.runtime.checkout import HostTvm
    from farm.runtime.packages import Report

_PROJECT = Path(__file__).with_name("ndk_project")
_PROJECT_FILE = "CMakeLists.txt"
_MADE = "made.txt"  # written by the project: the paths of what it built
_BUILD = "build-"  # of a folder in which CMake works, or has been interrupted
_CONFIGURED = "configured"  # a file in it: CMake has prepared all
_STRIP_LIMIT_S = 60.0
_TVM_OPTIONS = {
    "USE_RPC": "ON", "USE_RANDOM": "ON", "USE_SORT": "ON", "USE_CPP_RPC": "OFF", "USE_LLVM": "OFF", "USE_Z3": "OFF",
    "USE_OPENMP": "none", "USE_GTEST": "OFF", "USE_CCACHE": "OFF", "USE_ALTERNATIVE_LINKER": "OFF",
    "TVM_FFI_USE_LIBBACKTRACE": "OFF",
}  # fmt: skip
OLDEST_NDK = 25  # clang 14: the oldest that is known to compile TVM's C++20
_REVISION = re.compile(r"^Pkg\.Revision\s*=\s*((\d+)[\w.-]*)", re.MULTILINE)
_LIBRARY_FOLDERS = {  # of an ABI, in the NDK's sysroot
    Abi.ARM64: "aarch64-linux-android",
    Abi.ARMV7: "arm-linux-androideabi",
    Abi.X86_64: "x86_64-linux-android",
    Abi.X86: "i686-linux-android",
    Abi.RISCV64: "riscv64-linux-android",
}
_CXX_LIBRARY = "libc++_shared.so"
_FIRST_API = {Abi.RISCV64: 35}  # the first Android with that ABI; the others are as old as NDK_API
_DOWNLOAD = "https://developer.android.com/ndk/downloads"
_CLML_HEADER = "CL/cl_qcom_ml_ops.h"
_CLML_FOLDERS = ("", "include")
_OPENCL_LIBRARY = "libOpenCL.so"
ndk_error = partial(UserError, code=Code.BAD_NDK)
clml_error = partial(UserError, code=Code.BAD_CLML_SDK)
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
class NdkRecipe:
    """The inputs of a build with an NDK."""

    abi: Abi
    ndk: Path
    checkout: Path
    opencl: bool = False
    clml: Path | None = None  # Qualcomm's OpenCL ML SDK

    @property
    def submodules(self) -> list[str]:
        """The submodules of the checkout that are built."""
        return [TVM_FFI, *([OPENCL_HEADERS] if self.opencl or self.clml else [])]


@dataclass(frozen=True, slots=True)
class BuildTools:
    """The tools of this host that a build with an NDK uses."""

    ndk: Ndk
    cmake: CMake
    clml: ClmlSdk | None


def build_with_ndk(cache: Path, recipe: NdkRecipe, host: HostTvm, report: Report) -> Path:
    """The folder for `farm bundle add`: minutes of compiling, from the cache at once.

    Args:
        cache: where the parts are kept (`default_cache`).
        recipe: what to build from what.
        host: the toolchain's TVM, whose source the checkout must be.
        report: called with each step.
    """
    tools = find_tools(recipe)
    report("comparing the checkout with the toolchain's TVM")
    check_checkout(recipe.checkout, host, recipe.submodules)
    digest = _digest(recipe, tools, host)
    name = f"{BUNDLE}-ndk-{recipe.abi}-{digest[:16]}"
    options = cmake_options(recipe, tools, host)
    build = cache / build_name(cache, digest, tools.cmake, options)
    description = description_text(FolderDescription(versions=TvmVersions(host.version, host.ffi_version)))

    def unchanged() -> str:
        if _digest(recipe, tools, host) != digest:
            raise checkout_error(f"{recipe.checkout} was changed while it was compiled", hint="build again")
        return digest

    folder = part(cache, name, partial(_make, tools, build, options, description, unchanged, report), report) / BUNDLE
    shutil.rmtree(build, ignore_errors=True)
    return folder


def find_tools(recipe: NdkRecipe) -> BuildTools:
    """Find what a recipe needs of this host, and refuse what cannot be built, whatever the toolchain's TVM."""
    with name_unreadable_file():
        ndk = find_ndk(recipe.ndk, recipe.abi)
        check_whole(recipe.checkout, recipe.submodules)
        clml = find_clml(recipe.clml, recipe.abi) if recipe.clml else None
        lists = [recipe.checkout / _PROJECT_FILE, recipe.checkout / TVM_FFI / _PROJECT_FILE]
        needed = needed_version(file.read_text("utf-8", "replace") for file in lists)
    return BuildTools(ndk, find_cmake(needed), clml)


def cmake_options(recipe: NdkRecipe, tools: BuildTools, host: HostTvm) -> dict[str, str]:
    """CMake's options: names and values for -D."""
    ndk, clml = tools.ndk, tools.clml
    options = {
        "CMAKE_TOOLCHAIN_FILE": str(ndk.toolchain_file), "NDK": str(ndk.folder), "ANDROID_ABI": str(recipe.abi),
        "ANDROID_PLATFORM": f"android-{ndk.api}", "ANDROID_STL": "c++_shared", "CMAKE_BUILD_TYPE": "Release",
        "PAGE_BYTES": str(LARGE_PAGE_BYTES), "TVM_CHECKOUT": str(recipe.checkout), "FARM_SERVER": str(SOURCE),
        "TVM_VERSION": host.version, "USE_OPENCL": "ON" if recipe.opencl else "OFF",
    }  # fmt: skip
    if clml:  # TVM then links its OpenCL runtime to the SDK's library too; it looks for neither under an NDK
        options |= {"USE_CLML": str(clml.headers), "USE_CLML_GRAPH_EXECUTOR": str(clml.folder)}
        options["CLML_SDK"] = str(clml.folder)
        options["EXTERN_CLML_COMPUTE_LIB"] = str(clml.library)
    return _TVM_OPTIONS | options


def build_name(cache: Path, digest: str, cmake: CMake, options: Mapping[str, str]) -> str:
    """The name of CMake's folder for a digest of inputs: another for each thing that a CMakeCache.txt fixes."""
    fixed = (digest, str(cache), str(_PROJECT), cmake.generator, cmake.maker, sorted(options.items()))
    return f"{_BUILD}{hashlib.sha256(repr(fixed).encode()).hexdigest()[:16]}"


def _digest(recipe: NdkRecipe, tools: BuildTools, host: HostTvm) -> str:
    """The SHA-256 over all that the files depend on, wherever it lies."""
    ndk, clml = tools.ndk, tools.clml
    versions = (host.version, host.ffi_version)
    words = (recipe.abi, recipe.opencl, ndk.revision, ndk.api, *versions, content_of(recipe.checkout))
    digest = hashlib.sha256(repr(words).encode())
    with name_unreadable_file():
        for file in (Path(__file__), SOURCE, _PROJECT / _PROJECT_FILE, *(clml.files if clml else ())):
            digest.update(hash_file(file).encode())
    return digest.hexdigest()


def _make(
    tools: BuildTools, build: Path, options: Mapping[str, str], description: str, unchanged: Callable[[], str],
    report: Report, made: Path, scratch: Path,
) -> dict[str, str]:  # fmt: skip
    cmake, ndk = tools.cmake, tools.ndk
    for left in build.parent.glob(f"{_BUILD}*"):  # of other inputs, which may be gone
        if left != build:
            shutil.rmtree(left, ignore_errors=True)
    if not (build / _CONFIGURED).exists():  # what CMake found out until a full disk or an interrupt may be wrong
        remove_leftover(build)
    build.mkdir(exist_ok=True)
    report(f"preparing the build with CMake and {cmake.generator}, in {build}")
    configure(cmake, _PROJECT, build, options.items())
    (build / _CONFIGURED).touch()
    build_target(cmake, build, SERVER_PROGRAM, report)
    (made / BUNDLE).mkdir()
    built = [Path(line) for line in (build / _MADE).read_text("utf-8").splitlines()]
    needed = {name for file in built for name in read_elf(file).needed}
    for file in (*built, *(ndk.libraries / name for name in sorted(needed) if (ndk.libraries / name).is_file())):
        command = [str(ndk.strip), "-o", str(made / BUNDLE / file.name), str(file)]
        output_of(command, _STRIP_LIMIT_S, partial(_strip_error, file.name), scratch)
    (made / BUNDLE / DESCRIPTION).write_text(description, "utf-8")
    return {"inputs": unchanged()}


def _strip_error(name: str, output: str) -> HostError:
    return HostError(f"llvm-strip does not take {name}", Code.BUILD_FAILED, hint="is the NDK whole?", evidence=output)


@dataclass(frozen=True, slots=True)
class Ndk:
    """An NDK for one ABI."""

    folder: Path
    revision: str  # 28.0.13004108 is r28
    toolchain_file: Path  # for CMake
    strip: Path
    libraries: Path  # the folder with libc++_shared.so of the ABI
    api: int  # Android's API level that is built for


@dataclass(frozen=True, slots=True)
class ClmlSdk:
    """Qualcomm's SDK for one ABI, which TVM's CLML runtime is built with."""

    folder: Path
    headers: Path  # the folder with CL/
    library: Path  # a phone's libOpenCL.so, to link against

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that decide what is built."""
        return (*sorted((self.headers / "CL").glob("*.h")), self.library)


def find_ndk(folder: Path, abi: Abi) -> Ndk:
    """Check an NDK's folder."""
    major, revision = _revision(folder)
    if major < OLDEST_NDK:
        raise ndk_error(f"{folder} is NDK r{major}: TVM needs r{OLDEST_NDK} or newer", hint=_DOWNLOAD)
    toolchain_file = folder / "build/cmake/android.toolchain.cmake"
    tools = next((each.parent for each in sorted(folder.glob("toolchains/llvm/prebuilt/linux-*/bin/clang++"))), None)
    strip = tools / "llvm-strip" if tools else None
    if strip is None or not strip.exists() or not toolchain_file.is_file():
        hint = f"unpack the NDK for Linux as a whole: {_DOWNLOAD}"
        raise ndk_error(f"{folder} is not whole, or not for Linux: it lacks a compiler for this host", hint=hint)
    libraries = strip.parents[1] / "sysroot/usr/lib"
    own = libraries / _LIBRARY_FOLDERS[abi]
    if not (own / _CXX_LIBRARY).is_file():
        there = [each for each, name in _LIBRARY_FOLDERS.items() if (libraries / name / _CXX_LIBRARY).is_file()]
        hint = f"it has: {', '.join(there) or 'none'}; another NDK: {_DOWNLOAD}"
        raise ndk_error(f"NDK r{major} in {folder} has no {abi}", hint=hint)
    return Ndk(folder, revision, toolchain_file, strip, own, _FIRST_API.get(abi, NDK_API))


def find_clml(sdk: Path, abi: Abi) -> ClmlSdk:
    """Check the folder of Qualcomm's SDK."""
    hint = "unpack Qualcomm's OpenCL ML SDK, and give the folder that has CL/ (or include/CL/) and lib64/"
    headers = next((sdk / each for each in _CLML_FOLDERS if (sdk / each / _CLML_HEADER).is_file()), None)
    if headers is None:
        raise clml_error(f"{sdk} is no OpenCL ML SDK: it has no {_CLML_HEADER}", hint=hint)
    library = sdk / ("lib64" if abi.bits == 64 else "lib") / _OPENCL_LIBRARY
    if not library.is_file():
        raise clml_error(f"the OpenCL ML SDK in {sdk} has no {library.relative_to(sdk)} for {abi}", hint=hint)
    return ClmlSdk(sdk, headers, library)


def _revision(folder: Path) -> tuple[int, str]:
    try:
        found = _REVISION.search((folder / "source.properties").read_text("utf-8", "replace"))
    except OSError:
        found = None
    if found is None:
        inside = sorted([*folder.glob("ndk/*/source.properties"), *folder.glob("*/source.properties")])
        hint = f"perhaps {inside[-1].parent}" if inside else f"unpack one and give its folder: {_DOWNLOAD}"
        raise ndk_error(f"{folder} is no Android NDK: it has no source.properties with a revision", hint=hint)
    return int(found[2]), found[1]


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
    """The first CMake that is new enough, on PATH or beside this Python, with Ninja, else make."""
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
    """Prepare a build folder, or continue with one."""
    words = [cmake.program, "-S", str(source), "-B", str(build), "-G", cmake.generator]
    words += [f"-DCMAKE_MAKE_PROGRAM={cmake.maker}", *(f"-D{name}={value}" for name, value in options)]
    _run(words, build, "CMake refused TVM", lambda _: None)


def build_target(cmake: CMake, build: Path, target: str, report: Callable[[str], None]) -> None:
    """Build a target and what it needs; what is built already is left as it is."""
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
