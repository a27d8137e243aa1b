"""What a phone's runtime takes out of packages: TVM's libraries and headers, and Debian's C and C++ libraries.

TVM's wheels are those of the toolchain's version, since host and phone must have the same TVM; pip compares them with
the hashes below (those of requirements.lock), versions that are not among them with the index's own. apt checks what
it downloads against the archive's signature. Neither needs a right of root, and neither changes anything of the
host's dpkg, apt or Python.
"""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.model import Abi
from farm.common.errors import HostError, UserError
from farm.common.files import hash_file
from farm.runtime.parts import output_of, part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Report = Callable[[str], None]  # takes what is being done, a line at a time

C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
COMPILER_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")  # a virtual phone's /system lacks them
_DEBIAN_PACKAGES = ("libc6", "libstdc++6", "libgcc-s1")
_LIST_LIMIT_S = 20.0
_DOWNLOAD_LIMIT_S = 600.0  # 100 MB on a slow line
_WHEEL_PYTHON = "3.11"  # tvm_ffi's library does not depend on Python, its wheel does: any will do
_WHEELS = {  # package -> libraries in it
    "apache-tvm": ("tvm/lib/libtvm_runtime.so", "tvm/lib/libtvm_runtime_extra.so"),
    "apache-tvm-ffi": ("tvm_ffi/lib/libtvm_ffi.so",),
}
_HEADERS = ("tvm_ffi/include", "tvm/include")
_KNOWN_SHA256 = {  # by package, version and machine
    ("apache-tvm", "0.27.0.post1", "aarch64"): "4acfdb7653e4e1ba7a707bdf2833db72eb8fda7d04d99141f2a4e1da43171fb7",
    ("apache-tvm", "0.27.0.post1", "x86_64"): "f503fc903b6e16fda5daacac6698ecb8bc38937f57da7aa29f6c7ab169d08657",
    ("apache-tvm-ffi", "0.1.14.post1", "aarch64"): "c7a759781d4fbf2b99fa12f2741f250b882b06acc2747bb02831d491d1ac7d3c",
    ("apache-tvm-ffi", "0.1.14.post1", "x86_64"): "4b01a5a3fa07ed3315d5ef1e05d3542dae57a119ef7e77c54bc062414e242f65",
}
# The host's apt configuration counts (proxies, mirrors), its hooks do not: they would act on the host.
_APT_CONFIG = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "2";
APT::Update::Error-Mode "any";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
"""
_UNREACHABLE = re.compile(
    r"resolv|Temporary failure|Failed to establish|Network is unreachable|Could not connect|Unable to connect"
    r"|Connection (?:refused|timed out)|connection broken",
    re.IGNORECASE,
)
_NOT_THE_ARCHIVE = re.compile(
    r"Clearsigned file isn't valid|Hash Sum mismatch|\b[45]\d\d  \w.*?(?= \[IP|$)", re.MULTILINE
)
_NO_WHEELS = "from versions: none"  # of any version: pip's words for a page that is no index, too
_OTHER_INDEX = "a proxy, a mirror or a login page may have changed it: try another network or mirror"


class DownloadError(HostError):
    """A package could not be downloaded."""

    code = "download"


@dataclass(frozen=True, slots=True)
class Architecture:
    """How packages and compilers name the machine of an ABI."""

    name: str  # of wheels, and of the kernel
    debian: str
    triple: str
    loader: str  # the file name of glibc's dynamic loader


_ARCHITECTURES = {
    Abi.ARM64: Architecture("aarch64", "arm64", "aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
    Abi.X86_64: Architecture("x86_64", "amd64", "x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
}


@dataclass(frozen=True, slots=True)
class TvmWheel:
    """Where wheels, installed or fetched, keep headers and libraries for C++ programs."""

    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]  # shared libraries that the server is linked with

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the libraries."""
        return tuple(dict.fromkeys(library.parent for library in self.libraries))


def architecture_of(abi: Abi) -> Architecture:
    """The machine of an ABI that TVM has wheels for."""
    if abi not in _ARCHITECTURES:
        raise UserError(
            f"TVM has no wheel for {abi}, so its runtime cannot be taken from one",
            hint=f"wheels are for {' and '.join(_ARCHITECTURES)}; build TVM for {abi} with the NDK: docs/bundles.md",
        )
    return _ARCHITECTURES[abi]


def check_versions(versions: Mapping[str, str], owner: str) -> dict[str, str]:
    """The versions of the wheels to fetch, out of those of an interpreter's packages."""
    missing = [package for package in _WHEELS if not versions.get(package)]
    if missing:
        raise DownloadError(
            f"{owner} has no package {missing[0]}, so the version that a phone needs is not known",
            hint="a TVM that was built from source needs a runtime from the same source: docs/bundles.md",
        )
    return {package: versions[package] for package in _WHEELS}


def tvm_wheel(cache: Path, abi: Abi, versions: Mapping[str, str], report: Report) -> TvmWheel:
    """TVM's libraries and headers for an ABI: a part of its own for each wheel."""
    machine = architecture_of(abi)
    roots = []
    for package, version in versions.items():
        fetch = partial(_fetch_wheel, package, version, machine, report)
        roots.append(part(cache, f"{package}-{version}-{machine.name}", fetch, report))
    libraries = (root / name for root, names in zip(roots, _WHEELS.values(), strict=True) for name in names)
    includes = (root / name for name in _HEADERS for root in roots if (root / name).is_dir())
    return TvmWheel(tuple(includes), tuple(libraries))


def debian_libraries(cache: Path, abi: Abi, report: Report) -> Path:
    """A part with the loader, C_LIBRARY and COMPILER_LIBRARIES for an ABI."""
    machine = architecture_of(abi)
    return part(cache, _debian_part(machine), partial(_fetch_debian, machine, report), report)


def check_apt(cache: Path, abi: Abi) -> None:
    """Refuse a host that needs Debian's packages and cannot fetch them, before 100 MB of wheels are downloaded."""
    if not (cache / _debian_part(architecture_of(abi))).is_dir():
        _apt_programs()


def _debian_part(machine: Architecture) -> str:
    return f"debian-{machine.debian}"


def _apt_programs() -> tuple[str, str]:
    apt_get, dpkg_deb = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt_get is None or dpkg_deb is None:
        raise DownloadError(
            "the C library of phones comes from Debian's packages, and this host has no apt-get and dpkg-deb",
            hint="run it on Debian or Ubuntu, then `farm bundle add` what it made; or build with the NDK",
        )
    return apt_get, dpkg_deb


def host_libraries(library: Path) -> list[Path]:
    """COMPILER_LIBRARIES as the host's loader finds them for a library of this host."""
    found = {}
    for line in output_of(["ldd", str(library)], _LIST_LIMIT_S, partial(_ldd_error, library)).splitlines():
        match = re.fullmatch(r"\s*(\S+) => (/\S+) \(0x[0-9a-f]+\)", line)
        if match:
            found[match[1]] = Path(match[2])
    missing = [name for name in COMPILER_LIBRARIES if name not in found]
    if missing:
        raise HostError(f"the host's loader does not find {', '.join(missing)}", hint="install libstdc++6")
    return [found[name] for name in COMPILER_LIBRARIES]


def _ldd_error(library: Path, said: str) -> HostError:
    return HostError(f"ldd cannot read {library}", evidence=said)


def _fetch_wheel(
    package: str, version: str, machine: Architecture, report: Report, made: Path, scratch: Path
) -> dict[str, str]:
    report(f"downloading {package} {version} for {machine.name}")
    known = _KNOWN_SHA256.get((package, version, machine.name))
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"{package}=={version}" + (f" --hash=sha256:{known}\n" if known else "\n"), "utf-8")
    command = [
        sys.executable,
        *["-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries=1"],
    ]
    command += ["--platform", f"manylinux_2_28_{machine.name}", "--python-version", _WHEEL_PYTHON, "-r", str(wanted)]
    failed = partial(_pip_error, f"{package} {version}", machine.name)
    output_of([*command, "--dest", str(scratch)], _DOWNLOAD_LIMIT_S, failed, scratch)
    wheel = next(scratch.glob("*.whl"), None)
    if wheel is None:
        raise failed("pip ended well and downloaded no wheel")
    try:
        _unpack_wheel(wheel, package, made)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DownloadError(f"{wheel.name} is damaged: {error}", hint=_OTHER_INDEX) from error
    return {wheel.name: hash_file(wheel)}


def _unpack_wheel(wheel: Path, package: str, made: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        if missing := [name for name in _WHEELS[package] if name not in names]:
            raise DownloadError(f"{wheel.name} has no {', '.join(missing)}", hint="is this TVM 0.25 or newer?")
        headers = tuple(f"{folder}/" for folder in _HEADERS)
        opened.extractall(made, [name for name in names if name in _WHEELS[package] or name.startswith(headers)])


def _pip_error(what: str, machine: str, said: str) -> DownloadError:
    """Why pip did not download a wheel, from its own words."""
    if "DO NOT MATCH" in said:
        reason, hint = "it has another hash than this farm knows", _OTHER_INDEX
    elif _UNREACHABLE.search(said):
        reason, hint = "the package index cannot be reached", "is there a network? pip's proxy and mirror: pip config"
    elif "No module named pip" in said:
        reason, hint = f"{sys.executable} has no pip", f"{sys.executable} -m ensurepip"
    elif _NO_WHEELS in said:
        reason, hint = f"what answers as the package index has no wheel of it for {machine}", _OTHER_INDEX
    elif "is invalid" in said:
        reason, hint = "what came is no wheel", _OTHER_INDEX
    elif "No matching distribution" in said:
        reason, hint = f"the package index has no such wheel for {machine}", "a TVM from source: docs/bundles.md"
    else:
        last = said.strip().rpartition("\n")[2].removeprefix("ERROR: ")
        reason, hint = f"pip failed: {last}", "see the evidence (--json)"
    return DownloadError(f"{what} for {machine} could not be downloaded: {reason}", hint=hint, evidence=said)


def _fetch_debian(machine: Architecture, report: Report, made: Path, scratch: Path) -> dict[str, str]:
    apt_get, dpkg_deb = _apt_programs()
    report(f"downloading Debian's C and C++ libraries for {machine.debian}")
    state, packages, unpacked = scratch / "apt", scratch / "debs", scratch / "unpacked"
    for folder in (state / "lists/partial", state / "cache/archives/partial", packages):
        folder.mkdir(parents=True)
    (state / "status").touch()
    config = state / "apt.conf"
    config.write_text(_APT_CONFIG.format(architecture=machine.debian, folder=state), "utf-8")
    apt = [apt_get, "-q", "-c", str(config)]
    said: list[str] = []

    def failed(words: str) -> DownloadError:
        said.append(words)
        return _apt_error(machine, "\n".join(said).strip())

    # A repository of the host's that has no such machine makes `update` fail: the packages may be in the others.
    with suppress(DownloadError):
        output_of([*apt, "update"], _DOWNLOAD_LIMIT_S, failed, scratch)
    output_of([*apt, "download", *_DEBIAN_PACKAGES], _DOWNLOAD_LIMIT_S, failed, packages)
    debs = sorted(packages.iterdir())
    for package in debs:
        output_of([dpkg_deb, "-x", str(package), str(unpacked)], _DOWNLOAD_LIMIT_S, failed, scratch)
    for name in (machine.loader, *C_LIBRARY, *COMPILER_LIBRARIES):
        shutil.copyfile(_library(unpacked, machine, name), made / name)
    return {package.name: hash_file(package) for package in debs}


def _apt_error(machine: Architecture, said: str) -> DownloadError:
    """Why apt-get did not download the packages, from its own words."""
    hint = f"is there a network, and do the sources in /etc/apt have {machine.debian}?"
    if _UNREACHABLE.search(said):
        reason = "the archive cannot be reached"
    elif found := _NOT_THE_ARCHIVE.search(said):
        reason, hint = f"something else answers for the archive ({found[0]})", _OTHER_INDEX
    else:
        reason = "apt-get failed"
    what = f"{', '.join(_DEBIAN_PACKAGES)} for {machine.debian}"
    return DownloadError(f"{what} could not be downloaded: {reason}", hint=hint, evidence=said)


def _library(unpacked: Path, machine: Architecture, name: str) -> Path:
    """Where Debian puts a library: below /lib, or since /usr was merged below /usr/lib."""
    for folder in ("lib", "usr/lib"):
        if (found := unpacked / folder / machine.triple / name).is_file():
            return found
    packages = ", ".join(_DEBIAN_PACKAGES)
    raise DownloadError(f"Debian's packages for {machine.debian} have no {name}", hint=f"looked in {packages}")
