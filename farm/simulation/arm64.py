"""The parts of an arm64 virtual phone, made once per user: qemu, a private arm64 C library, and an AArch64 bundle.

    ~/.cache/farm/arm64-<key>/
      qemu-aarch64      the host's qemu-user program: namespaces hide the host's own
      arm64_exec.so     starts AArch64 programs with it (arm64_exec.c)
      root/             Debian's arm64 C library, nothing else: what a phone brings along
      bundle/           tvm_rpc, cross-compiled, and the libraries it needs: to be given to `farm bundle add`
      contents.json     where everything came from, and the SHA-256 of every file

The key is a hash of what goes in: our sources, versions, compiler and qemu. A folder appears whole by one rename, is
checked against contents.json whenever it is used, and is made anew when it differs. Needs no right of root and changes
nothing of the host's dpkg or apt.

apt checks what it downloads against the archive's signature, pip against the hashes below (those of requirements.lock).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.elf import read_elf
from farm.common.errors import HostError
from farm.common.files import hash_file
from farm.common.install import pip_install
from farm.simulation.machine import ARM64_PRELOAD
from farm.simulation.runtime import COMPILER_FLAGS, SERVER, SOURCES, cache_folder, compile_error, find_wheel, output_of

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
_DOWNLOAD_LIMIT_S = 600.0  # 100 MB on a slow line
_DEBIAN_PACKAGES = ("libc6", "libstdc++6", "libgcc-s1")
_LOADER = "ld-linux-aarch64.so.1"
_C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", _LOADER)
_COMPILER_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")  # no phone has them: they go into the bundle
_LIBRARIES = "lib/aarch64-linux-gnu"
# The host's apt configuration counts (proxies, mirrors), its hooks do not: they would act on the host.
_APT_CONFIG = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "2";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
"""
_WHEELS = {  # package -> libraries in it; tvm_ffi's does not depend on Python, its wheel does: any will do
    "apache-tvm": ("tvm/lib/libtvm_runtime.so", "tvm/lib/libtvm_runtime_extra.so"),
    "apache-tvm-ffi": ("tvm_ffi/lib/libtvm_ffi.so",),
}
_PLATFORM = "manylinux_2_28_aarch64"
_WHEEL_PYTHON = "3.11"
_KNOWN_SHA256 = {
    ("apache-tvm", "0.27.0.post1"): "4acfdb7653e4e1ba7a707bdf2833db72eb8fda7d04d99141f2a4e1da43171fb7",
    ("apache-tvm-ffi", "0.1.14.post1"): "c7a759781d4fbf2b99fa12f2741f250b882b06acc2747bb02831d491d1ac7d3c",
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


def arm64_folder(report: Callable[[str], None] = lambda _line: None) -> Path:
    """The folder described above, made when it is not there: a minute at most, nearly all of it downloads (100 MB).

    Raises:
        Arm64ToolsError: a program is missing.
        HostError: TVM is not installed, or a compiler failed, or the cache cannot be written.
        DownloadError: a package could not be had.
    """
    tools = find_tools()
    try:
        cache = cache_folder().parent
        folder = cache / f"arm64-{_key(tools)}"
        cache.mkdir(parents=True, exist_ok=True)
        with _only_builder(cache / "arm64.lock"):
            if not is_whole(folder):
                report("building an arm64 phone's programs: C library, TVM's aarch64 wheels (100 MB), tvm_rpc ...")
                _build(folder, tools)
    except OSError as error:
        raise compile_error(f"cannot build the programs of arm64 phones: {error}") from error
    return folder


def is_whole(folder: Path) -> bool:
    """Whether every file is there as it was made."""
    try:
        files = json.loads((folder / _CONTENTS).read_bytes())["files"]
        return bool(files) and all(hash_file(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _key(tools: Tools) -> str:
    digest = hashlib.sha256()
    here = Path(__file__)
    for file in (here, *map(here.with_name, (*SOURCES, _EXEC_SOURCE))):
        digest.update(file.read_bytes())
    digest.update(repr((COMPILER_FLAGS, wheel_versions())).encode())
    for compiler in (tools.cross, tools.native):
        digest.update(_compile([compiler, "--version"]).encode())
    digest.update(hash_file(Path(tools.qemu)).encode())
    return digest.hexdigest()[:16]


@contextmanager
def _only_builder(lock: Path) -> Iterator[None]:
    """One builder at a time; the kernel releases the lock when its process and its children have ended."""
    with lock.open("a") as file:
        os.set_inheritable(file.fileno(), True)  # one that outlives a killed builder writes into its folder still
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
        sources = fetch_debian(tools.apt_get, tools.dpkg_deb, downloads, root, bundle)
        sources |= fetch_wheels(downloads, bundle)
        shutil.copyfile(tools.qemu, made / QEMU)
        source = Path(__file__).with_name(_EXEC_SOURCE)
        _compile([tools.native, "-O2", "-shared", "-fPIC", str(source), "-o", str(made / ARM64_PRELOAD)])
        _compile_server(tools.cross, bundle)
        files = [path for path in made.rglob("*") if path.is_file()]
        contents = {"sources": sources, "files": {str(file.relative_to(made)): hash_file(file) for file in files}}
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


class DownloadError(HostError):
    """A package for arm64 could not be downloaded."""

    code = "download"


def wheel_versions() -> dict[str, str]:
    """Versions of the wheels to fetch: those installed here, since host and phone must have the same TVM.

    Raises:
        DownloadError: TVM is not installed from a wheel.
    """
    try:
        return {package: metadata.version(package) for package in _WHEELS}
    except metadata.PackageNotFoundError as error:
        raise DownloadError(
            f"{error.name} is not installed, so the version an arm64 phone needs is not known",
            hint=pip_install("tvm"),
        ) from error


def fetch_debian(apt_get: str, dpkg_deb: str, work: Path, root: Path, bundle: Path) -> dict[str, str]:
    """Put the C library into `root` and the compiler's libraries into `bundle`; returns package file -> SHA-256.

    Raises:
        DownloadError: no network, no such package, or a library is not where it should be.
    """
    state, packages, unpacked = work / "apt", work / "debs", work / "unpacked"
    for folder in (state / "lists/partial", state / "cache/archives/partial", packages):
        folder.mkdir(parents=True)
    (state / "status").touch()
    config = state / "apt.conf"
    config.write_text(_APT_CONFIG.format(folder=state), "utf-8")
    # A repository of the host's that has no arm64 makes `update` fail; the packages may be in the others.
    updated = _run([apt_get, "-q", "-c", str(config), "update"], work)
    got = _run([apt_get, "-q", "-c", str(config), "download", *_DEBIAN_PACKAGES], packages)
    if got.returncode:
        raise DownloadError(
            f"apt-get could not download {', '.join(_DEBIAN_PACKAGES)} for arm64",
            hint="is there a network, and do the sources in /etc/apt have arm64? Ubuntu's is at ports.ubuntu.com",
            evidence=f"{updated.stderr.strip()}\n{got.stderr.strip()}".strip(),
        )
    for package in packages.iterdir():
        opened = _run([dpkg_deb, "-x", str(package), str(unpacked)], work)
        if opened.returncode:
            raise DownloadError(f"{package.name} cannot be unpacked", evidence=opened.stderr.strip())
    for names, folder in ((_C_LIBRARY, root / _LIBRARIES), (_COMPILER_LIBRARIES, bundle)):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(_library(unpacked, name), folder / name)
    shutil.copyfile(root / _LIBRARIES / _LOADER, root / "lib" / _LOADER)  # the name in every program
    return {package.name: hash_file(package) for package in sorted(packages.iterdir())}


def fetch_wheels(work: Path, bundle: Path) -> dict[str, str]:
    """Put TVM's aarch64 runtime libraries into `bundle`; returns wheel -> SHA-256.

    Raises:
        DownloadError: no network, no pip, no such wheel, another hash, or a library is not in it.
    """
    folder = work / "wheels"
    folder.mkdir()
    for package, version in wheel_versions().items():
        known = _KNOWN_SHA256.get((package, version))
        wanted = work / f"{package}.txt"
        wanted.write_text(f"{package}=={version}" + (f" --hash=sha256:{known}\n" if known else "\n"), "utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--platform", _PLATFORM, "--python-version", _WHEEL_PYTHON, "--dest", str(folder)]
        got = _run([*command, "-r", str(wanted)], work)
        if got.returncode:
            raise DownloadError(
                f"pip could not download {package} {version} for {_PLATFORM}",
                hint="is there a network, and does this Python have pip (python -m ensurepip)?",
                evidence=got.stderr.strip(),
            )
    wheels = sorted(folder.iterdir())
    libraries = [name for names in _WHEELS.values() for name in names]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as opened:
            for name in set(libraries) & set(opened.namelist()):
                (bundle / Path(name).name).write_bytes(opened.read(name))
    missing = [name for name in libraries if not (bundle / Path(name).name).is_file()]
    if missing:
        raise DownloadError(f"TVM's aarch64 wheels have no {', '.join(missing)}", hint="is this TVM 0.25 or newer?")
    return {wheel.name: hash_file(wheel) for wheel in wheels}


def _library(unpacked: Path, name: str) -> Path:
    """Where Debian puts a library: below /lib, or since /usr was merged below /usr/lib."""
    for folder in ("lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"):
        if (unpacked / folder / name).is_file():
            return unpacked / folder / name
    raise DownloadError(f"Debian's arm64 packages have no {name}", hint=f"looked in {', '.join(_DEBIAN_PACKAGES)}")


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT_S,
            check=False, close_fds=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadError(f"{command[0]}: {error}", hint="is there a network?") from error
