"""The runtime bundle of a virtual phone: our `tvm_rpc` and every library it needs beside it.

With g++ the server is a real ELF, compiled from tvm_rpc.cc against the installed TVM wheel (about two seconds, once:
the result is kept under its content hash). Without g++ it is launcher.py, a Python server with the same contract; it
only runs where the host's Python can be seen, so a phone in namespaces must show that (`WorldSpec.expose_python`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from farm.bundle.closure import identify
from farm.bundle.elf import read_elf
from farm.bundle.folder import DESCRIPTION
from farm.bundle.model import SERVER_PROGRAM
from farm.common.install import cache_home, pip_install
from farm.compiler.tvm_errors import no_tvm_error
from farm.runtime.packages import TvmWheel, host_libraries
from farm.runtime.server import OPTIONS, SOURCE, Compiler, compile_server

_FAULTS = Path(__file__).with_name("kernel_faults.h")
SOURCES = (SOURCE, _FAULTS)
_LAUNCHER = "launcher.py"
COMPILER_OPTIONS = ("-DFARM_VIRTUAL_PHONE", f"-I{_FAULTS.parent}")  # kernels that misbehave on request
# A shell starts Python: in an interpreter's name the kernel takes no blanks and 127 bytes at most (255 since 5.1).
# What the shell runs is a string to Python, joined to the launcher's own docstring.
_SHEBANG = """#!/bin/sh
''':'
exec {} "$0" "$@"
''' \\
"""


def find_wheel() -> TvmWheel:
    """Locate TVM's headers and runtime libraries without importing TVM (which takes 0.6 s and 195 MB)."""
    tvm, ffi = _package("tvm"), _package("tvm_ffi")
    libraries = (
        tvm / "lib" / "libtvm_runtime.so",
        tvm / "lib" / "libtvm_runtime_extra.so",
        ffi / "lib" / "libtvm_ffi.so",
    )
    for library in libraries:
        if not library.is_file():
            raise no_tvm_error(f"the installed TVM has no {library.name}", hint=pip_install("tvm"))
    return TvmWheel((ffi / "include", tvm / "include"), libraries)


def build_bundle_folder(out: Path) -> Path:
    """Fill `out` with `tvm_rpc` and its libraries; returns `out`."""
    wheel = find_wheel()
    out.mkdir(parents=True, exist_ok=True)
    for library in (*wheel.libraries, *host_libraries(wheel.libraries[0])):
        _install(library, out / library.name, mode=0o644)
    path = shutil.which("g++")
    if path is None:
        _write_launcher(out / SERVER_PROGRAM)
        # A script does not tell its ABI (docs/bundles.md): the libraries beside it do.
        abi, platform = identify(read_elf(out / "libtvm_runtime.so"), "libtvm_runtime.so")
        (out / DESCRIPTION).write_text(f'abi = "{abi}"\nplatform = "{platform}"\n', "utf-8")
    else:
        _install(_compiled(wheel, Compiler("g++", (path,))), out / SERVER_PROGRAM, mode=0o755)
    return out


def is_launcher(server: Path) -> bool:
    """Whether a `tvm_rpc` is the Python launcher rather than an ELF file."""
    with server.open("rb") as file:
        return file.read(2) == b"#!"


def cache_folder() -> Path:
    """Where compiled servers are kept: $XDG_CACHE_HOME/farm/virtual-runtime."""
    return cache_home() / "farm" / "virtual-runtime"


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise no_tvm_error(f"Python package {name} is not installed", hint=pip_install("tvm"))
    return Path(spec.submodule_search_locations[0])


def _compiled(wheel: TvmWheel, compiler: Compiler) -> Path:
    """The server for these sources, libraries and this compiler, compiled at most once."""
    digest = hashlib.sha256()
    for file in (*SOURCES, *wheel.libraries):
        digest.update(file.read_bytes())
    digest.update(" ".join((*OPTIONS, COMPILER_OPTIONS[0])).encode())  # not where the checkout is
    digest.update(compiler.version().encode())
    kept = cache_folder() / digest.hexdigest()[:32] / SERVER_PROGRAM
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at once (parallel tests): each writes its own file, the last rename wins.
    handle, name = tempfile.mkstemp(dir=kept.parent, prefix=f".{SERVER_PROGRAM}.")
    os.close(handle)
    try:
        compile_server(compiler, wheel, Path(name), COMPILER_OPTIONS)
        Path(name).chmod(0o755)
        Path(name).replace(kept)
    finally:
        Path(name).unlink(missing_ok=True)
    return kept


def _install(source: Path, target: Path, *, mode: int) -> None:
    """Copy a file whole: a reader sees the old or the new one. Symbolic links become files."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, temporary)
    temporary.chmod(mode)
    temporary.replace(target)


def _write_launcher(target: Path) -> None:
    text = Path(__file__).with_name(_LAUNCHER).read_text("utf-8")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_text(_SHEBANG.format(shlex.quote(sys.executable)) + text, "utf-8")
    temporary.chmod(0o755)
    temporary.replace(target)
