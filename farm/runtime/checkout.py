"""Whether a folder is the source of a toolchain's TVM, and whole: phones and host must have the same TVM.

Host and phone speak through structures that only equal versions share, so a runtime from other sources gives wrong
numbers or crashes. TVM's wheels ship the sources and headers of the runtime; a checkout is compared with them file by
file. The rest of a checkout is what its version says. Of a TVM that is no wheel only the version is compared, and of
such a tvm-ffi nothing: its sources do not state the version of their release.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.common.errors import Code, HostError, UserError
from farm.common.files import hash_file
from farm.common.os_errors import name_unreadable_file
from farm.runtime.parts import output_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CLONE = "git clone --recursive https://github.com/apache/tvm"
TVM_FFI = "3rdparty/tvm-ffi"
OPENCL_HEADERS = "3rdparty/OpenCL-Headers"
_VERSION_FILE = "include/tvm/runtime/base.h"
_VERSION = re.compile(r'^#define TVM_VERSION "([^"]+)"', re.MULTILINE)
_SAME_SOURCE = re.compile(r"(\.post\d+)?(\+.*)?$")  # of a version: another package of the same source
_DLPACK = f"{TVM_FFI}/3rdparty/dlpack"
_FILES_OF = {TVM_FFI: "CMakeLists.txt", _DLPACK: "include/dlpack/dlpack.h", OPENCL_HEADERS: "CL/cl.h"}
_SHIPPED = ("src", "include/tvm")  # in a wheel and in its repository
_BUILT_FROM = (
    "CMakeLists.txt", "cmake", "include", "src", "3rdparty/compiler-rt", f"{TVM_FFI}/CMakeLists.txt",
    f"{TVM_FFI}/cmake", f"{TVM_FFI}/include", f"{TVM_FFI}/src", f"{TVM_FFI}/3rdparty/dlpack/include", OPENCL_HEADERS,
)  # fmt: skip
_NAMED_FILES = 3  # of those that differ
_PYTHON_LIMIT_S = 60.0  # of a cold disk
_PROGRAM = """\
import importlib.util, json
found = {name: importlib.util.find_spec(name) for name in ("tvm", "tvm_ffi")}
print(json.dumps({name: spec.submodule_search_locations[0] for name, spec in found.items() if spec}))
"""
_FOREIGN = "`farm bundle add` takes a runtime that was built elsewhere"

checkout_error = partial(UserError, code=Code.BAD_CHECKOUT)


@dataclass(frozen=True, slots=True)
class HostTvm:
    """The TVM of a toolchain."""

    owner: str  # for people: "toolchain default"
    version: str  # tvm.__version__
    ffi_version: str  # of the package apache-tvm-ffi; "": it is no package
    tvm: Path  # the folder of the package tvm
    tvm_ffi: Path


def find_host_tvm(owner: str, python: str, version: str, ffi_version: str) -> HostTvm:
    """Where an interpreter has its TVM; TVM itself is not imported."""
    failed = partial(_python_error, python)
    output = output_of([python, "-c", _PROGRAM], _PYTHON_LIMIT_S, failed, Path("/"))  # no `tvm` of the working folder
    try:
        folders = json.loads(output)
        return HostTvm(owner, version, ffi_version, Path(folders["tvm"]), Path(folders["tvm_ffi"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _python_error(python, output) from error


def check_whole(checkout: Path, submodules: Sequence[str] = ()) -> None:
    """Refuse a folder that is no checkout of TVM of any version, or lacks submodules that are to be built."""
    with name_unreadable_file():
        if not (checkout / "CMakeLists.txt").is_file() or not (checkout / _VERSION_FILE).is_file():
            raise checkout_error(f"{checkout} is no checkout of TVM 0.25 or newer", hint=f"{CLONE} {checkout}")
        needed = [name for name in _FILES_OF if name.startswith(tuple(submodules))]  # with the submodules of those
        if missing := [name for name in needed if not (checkout / name / _FILES_OF[name]).is_file()]:
            command = f"git -C {checkout} submodule update --init --recursive"
            raise checkout_error(f"{checkout} lacks submodules: {', '.join(missing)}", hint=command)


def check_checkout(checkout: Path, host: HostTvm, submodules: Sequence[str] = ()) -> None:
    """Refuse a folder that is not the source of a toolchain's TVM, or lacks what is to be built.

    Args:
        checkout: of TVM's repository.
        host: the toolchain's.
        submodules: that are needed (TVM_FFI, OPENCL_HEADERS).
    """
    check_whole(checkout, submodules)
    with name_unreadable_file():
        _check_tvm(checkout, host)
        if TVM_FFI in submodules:
            _check_ffi(checkout / TVM_FFI, host)


def content_of(checkout: Path) -> str:
    """The SHA-256 over all that a runtime is built from: the same for the same files, wherever they lie."""
    digest = hashlib.sha256()
    with name_unreadable_file():
        for file in _files(checkout, _BUILT_FROM):
            digest.update(f"{file}\0{hash_file(checkout / file)}\n".encode())
    return digest.hexdigest()


def _check_tvm(checkout: Path, host: HostTvm) -> None:
    files, differing = _compare(checkout, host.tvm)
    stated = _VERSION.search((checkout / _VERSION_FILE).read_text("utf-8", "replace"))
    version = stated[1] if stated else "of no version"
    if (differing or not files) and _source_of(version) != _source_of(host.version):
        problem = f"is TVM {version}, and {host.owner} has TVM {host.version}"
    elif differing:
        problem = f"is not the source of TVM {host.version} of {host.owner}: {_named(files, differing)}"
    else:
        return
    git = f"git -C {checkout}"
    tag = f"v{_source_of(host.version)}"
    update = f"{git} fetch --tags && {git} checkout {tag} && {git} submodule update --init --recursive"
    raise checkout_error(f"{checkout} {problem}", hint=f"{update}; {_FOREIGN}")


def _check_ffi(module: Path, host: HostTvm) -> None:
    files, differing = _compare(module, host.tvm_ffi)
    if differing:
        problem = f"is not the source of tvm-ffi {host.ffi_version} of {host.owner}: {_named(files, differing)}"
        raise checkout_error(f"{module} {problem}", hint=f"check out that release: `git -C {module} tag` lists them")


def _compare(checkout: Path, package: Path) -> tuple[list[Path], list[Path]]:
    """The sources that a package ships, and those that a checkout has otherwise or not."""
    files = list(_files(package, _SHIPPED))
    return files, [file for file in files if _content(checkout / file) != _content(package / file)]


def _content(file: Path) -> str:
    """The text of a source file; the version that it may state is judged apart."""
    return _VERSION.sub("", file.read_text("utf-8", "replace")) if file.is_file() else "no file"


def _named(files: Sequence[Path], differing: Sequence[Path]) -> str:
    more = ", ..." if len(differing) > _NAMED_FILES else ""
    return f"{len(differing)} of {len(files)} files differ ({', '.join(map(str, differing[:_NAMED_FILES]))}{more})"


def _source_of(version: str) -> str:
    return _SAME_SOURCE.sub("", version)


def _files(root: Path, below: Iterable[str]) -> Iterator[Path]:
    """The files among some files and folders of a root, relative to it."""
    for each in map(root.joinpath, below):
        for file in sorted(each.rglob("*")) if each.is_dir() else [each]:
            if file.is_file():
                yield file.relative_to(root)


def _python_error(python: str, output: str) -> HostError:
    return HostError(f"{python} does not say where its TVM is", Code.NO_TVM, hint="farm doctor", evidence=output)
