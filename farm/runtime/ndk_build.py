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
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.elf import read_elf
from farm.bundle.folder import DESCRIPTION, description_text
from farm.bundle.model import LARGE_PAGE_BYTES, SERVER_PROGRAM, FolderDescription
from farm.bundle.versions import TvmVersions
from farm.common.errors import Code, HostError
from farm.common.files import hash_file, remove_leftover
from farm.common.os_errors import name_unreadable_file
from farm.runtime.build import BUNDLE
from farm.runtime.checkout import (
    OPENCL_HEADERS,
    TVM_FFI,
    check_checkout,
    check_whole,
    checkout_error,
    content_of,
)
from farm.runtime.cmake import build_target, configure, find_cmake, needed_version
from farm.runtime.ndk import find_clml, find_ndk
from farm.runtime.parts import output_of, part
from farm.runtime.server import SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from farm.bundle.model import Abi
    from farm.runtime.checkout import HostTvm
    from farm.runtime.cmake import CMake
    from farm.runtime.ndk import ClmlSdk, Ndk
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

    Raises:
        UserError: NDK, checkout or SDK are not what they should be.
        HostError: CMake is missing or too old, the build failed, or the cache cannot be written.
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
    """Find what a recipe needs of this host, and refuse what cannot be built, whatever the toolchain's TVM.

    Raises:
        UserError: NDK or SDK are not what they should be, or the checkout is not whole.
        HostError: CMake is missing or too old, or something cannot be read.
    """
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
    """The SHA-256 over all that the files depend on, wherever it lies.

    Raises:
        HostError: something cannot be read.
    """
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
