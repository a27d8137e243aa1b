"""What tests need of their machine: without it they skip, and `make test` ends with the packages that bring it."""

from __future__ import annotations

import re
import shutil

import pytest

from farm.simulation.namespaces import Isolation, detect_isolation

# The Debian package of a program, where it has another name.
PACKAGES = {
    "cc": "gcc",
    "ip": "iproute2",
    "ld.lld": "lld",
    "llvm-strip": "llvm",
    "nc": "netcat-openbsd",
    "nsenter": "util-linux",
    "ninja": "ninja-build",
    "promtool": "prometheus",
    "readelf": "binutils",
    "setpriv": "util-linux",
    "tc": "iproute2",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "systemd-analyze": "systemd",
    "systemd-sysusers": "systemd",
    "taskset": "util-linux",
    "unshare": "util-linux",
    "flock": "util-linux",
}
INSTALL = "apt install "


def lacks(*programs: str) -> str:
    """Why a test that uses these programs is skipped; "" when all are here."""
    missing = [each for each in programs if shutil.which(each) is None]
    return missing_packages(*missing) if missing else ""


def missing_packages(*programs: str) -> str:
    """The reason of a skip for programs that are missing."""
    packages = dict.fromkeys(PACKAGES.get(each, each) for each in programs)
    return f"{', '.join(programs)} not found: {INSTALL}{' '.join(packages)}"


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test, or a module as `pytestmark`, where a program is missing."""
    return pytest.mark.skipif(bool(lacks(*programs)), reason=lacks(*programs) or "found")


def need(*programs: str) -> None:
    """The same inside a test or a fixture."""
    if why := lacks(*programs):
        pytest.skip(why)


needs_namespaces = pytest.mark.skipif(
    detect_isolation() is Isolation.NONE, reason=lacks("mksh", "toybox") or "this host allows no namespaces"
)


def packages_of(reasons: list[str]) -> list[str]:
    """The packages that reasons of skips name."""
    return sorted({name for each in reasons for found in re.findall(f"{INSTALL}(.*)", each) for name in found.split()})
