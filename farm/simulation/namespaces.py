"""Linux namespaces and mounts for Python 3.11: thin calls into libc, and the root of a phone built from them.

Everything mounted here lives in the phone's own mount namespace, so the kernel unmounts it when the phone's last
process ends, however it ends.

`Isolation` is how far a virtual phone is separated from its host; `detect_isolation` finds what this host allows.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from farm.simulation.system_image import find_userland

if TYPE_CHECKING:
    from collections.abc import Mapping

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWTIME = 0x00000080

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SYS_PIVOT_ROOT_X86_64 = 155
_MNT_DETACH = 2
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_PHONE_NAMESPACES = CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC


class Mount(IntFlag):
    """Flags of mount(2)."""

    READ_ONLY = 1
    NO_SUID = 2
    NO_DEV = 4
    NO_EXEC = 8
    REMOUNT = 32
    NO_ATIME = 1024
    BIND = 4096
    RECURSIVE = 16384
    PRIVATE = 1 << 18
    RELATIME = 1 << 21


# A user namespace may not drop these from a mount it inherits, so a remount repeats them (mount_namespaces(7)).
_LOCKED = (
    (os.ST_NOSUID, Mount.NO_SUID),
    (os.ST_NODEV, Mount.NO_DEV),
    (os.ST_NOEXEC, Mount.NO_EXEC),
    (os.ST_NOATIME, Mount.NO_ATIME),
    (os.ST_RELATIME, Mount.RELATIME),
)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent *thread* ends; `parent` is its pid, to notice one that is already gone."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(1)


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show, at most 15 bytes."""
    _check(_libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0), "prctl")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _check(_libc.unshare(flags), "unshare")


def become_root_of_user_namespace(uid: int, gid: int) -> None:
    """Enter a user namespace in which the caller (`uid`, `gid` outside) is root and the only user."""
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Attach a file system."""
    arguments = (str(source).encode(), os.fsencode(target), kind.encode() or None)
    if _libc.mount(*arguments, ctypes.c_ulong(flags), options.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def bind(source: str | Path, target: str | Path, *, read_only: bool = False, recursive: bool = False) -> None:
    """Show `source` at `target` too, creating the mount point."""
    source, target = Path(source), Path(target)
    if not target.exists():
        if source.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    mount(source, target, flags=Mount.BIND | (Mount.RECURSIVE if recursive else 0))
    if read_only:
        make_read_only(target)


def make_read_only(target: str | Path) -> None:
    """Make one mount read-only, keeping the flags a user namespace must keep."""
    present = os.statvfs(target).f_flag
    flags = Mount.REMOUNT | Mount.BIND | Mount.READ_ONLY
    for seen, flag in _LOCKED:
        if present & seen:
            flags |= flag
    mount("none", target, flags=flags)


def raise_loopback() -> None:
    """`ip link set lo up` in this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def restart_boot_clock() -> None:
    """Let children count their uptime from now, where the kernel has time namespaces (5.6); otherwise do nothing."""
    try:
        unshare(CLONE_NEWTIME)
        seconds, nanoseconds = divmod(-time.clock_gettime_ns(time.CLOCK_BOOTTIME), 1_000_000_000)
        Path("/proc/self/timens_offsets").write_text(f"boottime {seconds} {nanoseconds}")
    except OSError:
        return


def uptime_of(pid: int) -> float:
    """The uptime that a phone sees, by its init's pid here, seconds."""
    offset_s = 0.0
    with suppress(OSError):  # kernels without time namespaces
        for line in Path(f"/proc/{pid}/timens_offsets").read_text().splitlines():
            clock, seconds, nanoseconds = line.split()
            if clock == "boottime":
                offset_s = int(seconds) + int(nanoseconds) / 1e9
    return time.clock_gettime(time.CLOCK_BOOTTIME) + offset_s


@dataclass(frozen=True, slots=True)
class RootPlan:
    """The parts of a phone's root; all paths are on the host."""

    mount_point: Path
    system: Path
    data: Path
    sys: Path
    state: Path
    dumpsys: Path
    properties: Path
    run: Path
    sys_writable: bool
    programs: dict[str, str]  # in /product/bin, for this phone alone
    proc_files: dict[str, Path]  # path below /proc -> file that replaces it
    host_folders: tuple[Path, ...]  # shown read-only at their own paths (the Python launcher needs its interpreter)
    vendor: Mapping[str, Path]  # path below /vendor -> folder shown there, read-only


def enter_root(plan: RootPlan) -> None:
    """Build the phone's root in this mount namespace and move into it. The caller is pid 1 of its pid namespace."""
    mount("none", "/", flags=Mount.RECURSIVE | Mount.PRIVATE)
    root = plan.mount_point
    mount("tmpfs", root, "tmpfs", Mount.NO_SUID | Mount.NO_DEV, "size=16m,mode=755")
    bind(plan.system, root / "system", read_only=True)
    bind(plan.data, root / "data")
    bind(plan.sys, root / "sys", read_only=not plan.sys_writable)
    _mount_proc(root, plan.proc_files)
    _mount_dev(root, plan)
    for folder in plan.host_folders:
        bind(folder, root / folder.relative_to("/"), read_only=True, recursive=True)
    for name, folder in plan.vendor.items():
        bind(folder, root / "vendor" / name, read_only=True)
    _link_folders(root)
    for name, text in plan.programs.items():
        program = root / "product/bin" / name
        program.write_text(text, "utf-8")
        program.chmod(0o755)
    make_read_only(root)
    old = root / "mnt"
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT_X86_64, b".", os.fsencode(old)), "pivot_root")
    os.chdir("/")
    _check(_libc.umount2(b"/mnt", _MNT_DETACH), "umount")


def _mount_proc(root: Path, replaced: dict[str, Path]) -> None:
    (root / "proc").mkdir()
    mount("proc", root / "proc", "proc", Mount.NO_SUID | Mount.NO_DEV | Mount.NO_EXEC)
    for name, file in replaced.items():
        bind(file, root / "proc" / name, read_only=True)


def _mount_dev(root: Path, plan: RootPlan) -> None:
    dev = root / "dev"
    dev.mkdir()
    mount("tmpfs", dev, "tmpfs", Mount.NO_SUID, "size=4m,mode=755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        bind(Path("/dev") / name, dev / name)
    for name in ("pts", "socket"):
        (dev / name).mkdir()
    mount("devpts", dev / "pts", "devpts", Mount.NO_SUID | Mount.NO_EXEC, "newinstance,ptmxmode=0666,mode=0620")
    (dev / "ptmx").symlink_to("pts/ptmx")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (dev / name).symlink_to(f"/proc/self/{target}")
    bind(plan.state, dev / "farm" / "state", read_only=True)
    bind(plan.dumpsys, dev / "farm" / "dumpsys", read_only=True)
    bind(plan.properties, dev / "__properties__")
    bind(plan.run, dev / "farm" / "run")


def _link_folders(root: Path) -> None:
    for name in ("mnt", "vendor/lib64", "vendor/bin", "storage/self", "apex", "product/bin", "odm", "usr"):
        (root / name).mkdir(parents=True, exist_ok=True)
    links = {
        "bin": "system/bin",
        "etc": "system/etc",
        "lib": "system/lib64",
        "lib64": "system/lib64",
        "usr/lib": "../system/lib64",
        "usr/lib64": "../system/lib64",
        "sdcard": "storage/self/primary",
        "storage/self/primary": "/data/media/0",
    }
    for name, target in links.items():
        if not (root / name).exists() and not (root / name).is_symlink():
            (root / name).symlink_to(target)


def make_fifo(path: Path) -> int:
    """A pipe with a name that everybody may write to; returns a descriptor that never sees end of file."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


class Isolation(StrEnum):
    """How far a phone is separated from the host."""

    FULL = "full"  # root on the host: all namespaces; the shell is uid 2000
    USER = "user"  # no root: the same inside a user namespace; the shell's uid shows 0
    NONE = "none"  # no namespaces: a folder, the host's shell and network; paths in commands are rewritten


@cache
def detect_isolation() -> Isolation:
    """The best level this host allows; tries it in a child process once, which takes some milliseconds."""
    if find_userland() is None:
        return Isolation.NONE
    wished = Isolation.FULL if os.geteuid() == 0 else Isolation.USER
    for level in (wished, Isolation.USER):
        if _works(level):
            return level
    return Isolation.NONE


def enter_machine(isolation: Isolation) -> None:
    """Give this process mounts of its own that the host never sees, and the right to make more."""
    if isolation is Isolation.USER:
        become_root_of_user_namespace(os.getuid(), os.getgid())
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=Mount.RECURSIVE | Mount.PRIVATE)


def enter_phone() -> None:
    """Let the *next* child be pid 1 of a phone: no processes, an empty network, its own names and uptime."""
    unshare(_PHONE_NAMESPACES)
    restart_boot_clock()


def _works(level: Isolation) -> bool:
    """Whether a child can do the steps of a phone's boot (containers often forbid the mount of /proc)."""
    with tempfile.TemporaryDirectory(prefix="farm-isolation-") as folder:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                enter_machine(level)
                enter_phone()
                init = os.fork()
                if init == 0:
                    _try_mounts(Path(folder))
                    os._exit(0)
                status = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
            except OSError:
                status = 1
            finally:
                os._exit(status if 0 <= status < 128 else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _try_mounts(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        unshare(CLONE_NEWNS)
        mount("tmpfs", folder, "tmpfs", 0, "size=1m")
        (folder / "proc").mkdir()
        mount("proc", folder / "proc", "proc")
        raise_loopback()
    except OSError:
        os._exit(1)
