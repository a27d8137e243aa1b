"""What an arm64 virtual phone takes from elsewhere: Debian's arm64 packages and TVM's aarch64 wheels.

apt checks what it downloads against the archive's signature, pip against the hashes below (those of requirements.lock)
or, for other versions, the index's. Both work in a private folder: the host's dpkg knows nothing of arm64 afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from farm.core.errors import HostError
from farm.core.extras import pip_install

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    return {package.name: sha256_of(package) for package in sorted(packages.iterdir())}


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
    return {wheel.name: sha256_of(wheel) for wheel in wheels}


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
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadError(f"{command[0]}: {error}", hint="is there a network?") from error


def sha256_of(file: Path) -> str:
    """The hash of a file's contents."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
