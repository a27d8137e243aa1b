"""A minimal Debian with a real systemd as pid 1 of namespaces of its own: processes, mounts, network, names, cgroups.

Its root is made once and kept in the tests' cache; what a test writes is in memory and gone afterwards. When the test
ends, also by SIGKILL, the kernel ends its pid 1 and with it every process.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from farm.common.install import cache_home
from tests.support.needs import need
from tests.support.tvm import ROOT
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until

SUITE, PYTHON = "bookworm", (3, 11)
PACKAGES = "python3,python3-venv,systemd,systemd-sysv,dbus,mksh,toybox,postgresql"  # mksh, toybox: a virtual phone's
LOCK = ROOT / "requirements.lock"
# Those of the extra `lab`, which this lock file names among others.
LAB_LOCK, LAB = ROOT / "requirements-dev.lock", ("cffi", "cryptography", "psycopg", "psycopg-binary", "pycparser")
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes")
MAKE_LIMIT_S = 1200.0
RUN_LIMIT_S = 240.0
BOOTS = b"boots\n"
# In new namespaces. $1: the kept root, read only below a file system in memory.
BOOT = """
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/written /mnt/work /mnt/root
mount -t overlay -o lowerdir="$1",upperdir=/mnt/written,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys # it would set the host's kernel
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 tmpfs run
mkdir run/outside
pivot_root . run/outside
umount -l run/outside
echo boots
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
"""
# Their processes end with ours, and their mounts with them.
APART = ("setpriv", "--pdeathsig=KILL", "unshare", "--fork", "--kill-child=KILL", "--pid", "--mount", "--mount-proc")
ENTERED = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--root", "--wd")
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
CGROUP = "farm-tests-"  # and the pid of the tests, and a number
_numbers = itertools.count()
ENTER = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'


class Debian:
    """The running system, as its root uses it."""

    def __init__(self, init: int) -> None:
        self._init = init

    def path(self, path: str) -> Path:
        """A file of it, seen from here; no link."""
        return Path(f"/proc/{self._init}/root{path}")

    def run(self, *command: str, user: str = "", stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command there, as root or another user."""
        inside = ["nsenter", f"--target={self._init}", *ENTERED, *(("runuser", "-u", user, "--") if user else ())]
        return subprocess.run(
            [*inside, *command], env=ENVIRONMENT, input=stdin, capture_output=True, text=True,
            timeout=RUN_LIMIT_S, check=False,
        )  # fmt: skip

    def output(self, *command: str, user: str = "", stdin: str = "") -> str:
        """What a command prints that succeeds."""
        done = self.run(*command, user=user, stdin=stdin)
        assert done.returncode == 0, done
        return done.stdout

    def install(self, wheel: Path, extras: str) -> None:
        """Install farm and its service, which is not started."""
        shutil.copy(wheel, self.path("/root"))
        self.output("/opt/farm/bin/pip", "install", "--no-index", f"/root/{wheel.name}[{extras}]")
        self.output("ln", "-s", "/opt/farm/bin/farm", "/usr/local/bin/")
        self.output("farm", "install-service")

    def dial(self, address: str, other: Debian, others: str) -> None:
        """Connect the two by a cable, each with its address (CIDR)."""
        cable = ("ip", "link", "add", "cable", "netns", str(self._init), "type", "veth", "peer", "name", "cable")
        subprocess.run((*cable, "netns", str(other._init)), check=True)
        for debian, own in ((self, address), (other, others)):
            for order in (("addr", "add", own), ("link", "set", "up")):
                inside = ("nsenter", f"--target={debian._init}", "--net", "ip", *order, "dev", "cable")
                subprocess.run(inside, check=True)

    def unit(self, name: str, *properties: str) -> list[str]:
        """Properties of a unit, as `systemctl show` says them."""
        shown = self.output("systemctl", "show", name, *(f"--property={each}" for each in properties)).splitlines()
        values = dict(line.split("=", 1) for line in shown)
        return [values[each] for each in properties]


@contextmanager
def booted_debian() -> Iterator[Debian]:
    """Boot it; skips with the reason where this host lets us not."""
    need("debootstrap", "ip", "nsenter", "setpriv", "unshare")
    if os.geteuid():
        pytest.skip("only root boots a system in namespaces")
    if sys.version_info[:2] != PYTHON:
        pytest.skip(f"the packages of this Python do not fit {SUITE}'s: make PYTHON=python3.11")
    root, cgroup = _kept_root(), _new_cgroup()
    command = ["sh", "-ec", ENTER, "sh", str(cgroup), *APART, "--net", "--uts", "--ipc", "--cgroup"]
    command += ["sh", "-ec", BOOT, "sh", str(root)]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as outside:
        try:
            assert outside.stdout is not None
            if (said := outside.stdout.readline()) != BOOTS:
                pytest.skip(f"this host boots no system in namespaces: {said.decode()}")
            (init,) = psutil.Process(outside.pid).children()
            debian = Debian(init.pid)
            until(lambda: debian.run("systemctl", "is-system-running", "--wait").stdout == "running\n")
            yield debian
        finally:
            outside.kill()
            outside.wait(HANG_S)
            until(lambda: "populated 0" in (cgroup / "cgroup.events").read_text())
            _remove(cgroup)


def _kept_root() -> Path:
    """Debian, and in /opt/farm the packages that farm's wheel needs there; made once."""
    of_lab = "\n".join(re.findall(rf"^(?:{'|'.join(LAB)})==.*(?:\n .*)*", LAB_LOCK.read_text(), re.MULTILINE))
    made_of = sha256(f"{SUITE} {PACKAGES} {of_lab}".encode() + LOCK.read_bytes()).hexdigest()[:16]
    kept = cache_home() / "farm" / f"debian-{made_of}"
    if not kept.exists():
        making = kept.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        _make("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(making))
        _make("chroot", str(making), "python3", "-m", "venv", "/opt/farm")
        (making / "lab.lock").write_text(of_lab)
        packages = str(making / "opt/farm/lib/python3.11/site-packages")
        _make(*PIP, "--target", packages, "--requirement", str(LOCK), "--requirement", str(making / "lab.lock"))
        shutil.rmtree(making / "var/cache/apt/archives")
        making.rename(kept)
    return kept


def _make(*command: str) -> None:
    done = subprocess.run(
        [*APART, *command], cwd="/", capture_output=True, text=True, timeout=MAKE_LIMIT_S, check=False
    )
    if done.returncode:
        pytest.skip(f"{command[0]} makes no Debian here: {(done.stderr or done.stdout).strip()[-200:]}")


def _new_cgroup() -> Path:
    """A group of this test's own below our group."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    where = next((mount[1] for mount in mounts if mount[2] == "cgroup2"), None)
    if where is None:
        pytest.skip("this host has no cgroup2")
    ours = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    above = Path(where + ours.removeprefix("0::"))
    for left in above.glob(f"{CGROUP}*"):
        if not psutil.pid_exists(int(left.name.removeprefix(CGROUP).partition(".")[0])):
            _remove(left)
    cgroup = above / f"{CGROUP}{os.getpid()}.{next(_numbers)}"
    try:
        cgroup.mkdir()
    except OSError as error:
        pytest.skip(f"this host lets us make no cgroup: {error}")
    return cgroup


def _remove(cgroup: Path) -> None:
    """Remove a group without processes, and those below it."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
