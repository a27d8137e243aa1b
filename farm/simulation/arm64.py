"""What an arm64 virtual phone needs, made once per user: qemu, a private arm64 C library, and an AArch64 bundle.

    ~/.cache/farm/arm64-<key>/
      qemu-aarch64      the host's qemu-user program: namespaces hide the host's own
      arm64_exec.so     starts AArch64 programs with it (arm64_exec.c)
      root/             Debian's arm64 C library, nothing else: what a phone brings along
      bundle/           tvm_rpc, cross-compiled, and the libraries it needs: to be given to `farm bundle add`
      contents.json     where everything came from, and the SHA-256 of every file

The key is a hash of what goes in: our sources, versions, compiler and qemu. A folder appears whole by one rename, is
checked against contents.json whenever it is used, and is made anew when it differs. Needs no right of root and changes
nothing of the host's dpkg or apt.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import platform
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.elf import read_elf
from farm.core.errors import HostError
from farm.simulation import arm64_downloads
from farm.simulation.arm64_downloads import sha256_of
from farm.simulation.machine import ARM64_PRELOAD
from farm.simulation.runtime import COMPILER_FLAGS, SERVER, SOURCES, CompileError, cache_folder, find_wheel, output_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

QEMU = "qemu-aarch64"
_CONTENTS = "contents.json"
_BUILDING = ".arm64-"  # of a build under way; under the lock, one that is there was killed
_COMPILE_LIMIT_S = 180.0
_EXEC_SOURCE = "arm64_exec.c"
_PACKAGES = {  # program -> Debian's package
    "qemu": "qemu-user-static",
    "cross": "g++-aarch64-linux-gnu",
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
    cross: str
    native: str
    apt_get: str
    dpkg_deb: str


def find_tools(which: Callable[[str], str | None] = shutil.which) -> Tools:
    """Look for everything at once.

    Raises:
        Arm64ToolsError: something is missing; says what, and which packages bring it.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Arm64ToolsError(
            f"arm64 virtual phones are emulated on x86-64 hosts only, this one is {platform.machine()}"
        )
    candidates = {
        "qemu": ("qemu-aarch64-static", "qemu-aarch64"),
        "cross": ("aarch64-linux-gnu-g++",),
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
    return Tools(**found)


def arm64_folder(tell: Callable[[str], None] = lambda _line: None) -> Path:
    """The folder described above, made when it is not there: a minute at most, nearly all of it downloads (100 MB).

    Raises:
        Arm64ToolsError: a program is missing.
        NoTvmError: TVM is not installed.
        DownloadError: a package could not be had.
        CompileError: a compiler failed, or the cache cannot be written.
    """
    tools = find_tools()
    try:
        cache = cache_folder().parent
        folder = cache / f"arm64-{_key(tools)}"
        cache.mkdir(parents=True, exist_ok=True)
        with _only_builder(cache / "arm64.lock"):
            if not is_whole(folder):
                tell("building an arm64 phone's programs: C library, TVM's aarch64 wheels (100 MB), tvm_rpc ...")
                _build(folder, tools)
    except OSError as error:
        raise CompileError(f"cannot build the programs of arm64 phones: {error}") from error
    return folder


def is_whole(folder: Path) -> bool:
    """Whether every file is there as it was made."""
    try:
        files = json.loads((folder / _CONTENTS).read_bytes())["files"]
        return bool(files) and all(sha256_of(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _key(tools: Tools) -> str:
    digest = hashlib.sha256()
    here = Path(__file__)
    for file in (here, here.with_name("arm64_downloads.py"), *map(here.with_name, (*SOURCES, _EXEC_SOURCE))):
        digest.update(file.read_bytes())
    digest.update(repr((COMPILER_FLAGS, arm64_downloads.wheel_versions())).encode())
    for compiler in (tools.cross, tools.native):
        digest.update(_compile([compiler, "--version"]).encode())
    digest.update(sha256_of(Path(tools.qemu)).encode())
    return digest.hexdigest()[:16]


@contextmanager
def _only_builder(lock: Path) -> Iterator[None]:
    """One builder at a time; the kernel lets go of the lock when its process ends."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path, tools: Tools) -> None:
    for stale in folder.parent.glob(f"{_BUILDING}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_BUILDING) as name:
        made, downloads = Path(name) / "made", Path(name) / "downloads"
        root, bundle = made / "root", made / "bundle"
        for path in (root, bundle, downloads):
            path.mkdir(parents=True)
        sources = arm64_downloads.fetch_debian(tools.apt_get, tools.dpkg_deb, downloads, root, bundle)
        sources |= arm64_downloads.fetch_wheels(downloads, bundle)
        shutil.copyfile(tools.qemu, made / QEMU)
        source = Path(__file__).with_name(_EXEC_SOURCE)
        _compile([tools.native, "-O2", "-shared", "-fPIC", str(source), "-o", str(made / ARM64_PRELOAD)])
        _compile_server(tools.cross, bundle)
        files = [path for path in made.rglob("*") if path.is_file()]
        contents = {"sources": sources, "files": {str(file.relative_to(made)): sha256_of(file) for file in files}}
        (made / _CONTENTS).write_text(json.dumps(contents, indent=1), "utf-8")
        for path in (made, *made.rglob("*")):
            path.chmod(0o755)  # the phone's shell is another user
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        made.rename(folder)


def _compile_server(cross: str, bundle: Path) -> None:
    """tvm_rpc for AArch64, from the installed wheel's headers (the same for all machines) and fetched libraries."""
    wheel = find_wheel()
    includes = [f"-isystem{folder}" for folder in wheel.includes]
    source = Path(__file__).with_name(SOURCES[0])
    libraries = [str(bundle / library.name) for library in wheel.libraries]
    _compile([cross, *COMPILER_FLAGS, *includes, str(source), *libraries, "-ldl", "-o", str(bundle / SERVER)])


def _compile(command: Sequence[str]) -> str:
    return output_of(command, _COMPILE_LIMIT_S, f"apt install {_PACKAGES['cross']} {_PACKAGES['native']}")
