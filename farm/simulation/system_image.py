"""The /system every virtual phone mounts: mksh and toybox, the device programs, and the few libraries a phone has.

The libraries are only those of the C library (what Android calls libc, libm and libdl) and what toybox itself needs. A
bundle must bring everything else, libstdc++ above all, or its server does not start: as on a real phone.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from farm.common.errors import HostError

_LIST_LIMIT_S = 20.0
# Linked to toybox on no phone: their work is done by a program of ours, or needs a right that no shell has.
_NOT_LINKED = frozenset({"sh", "su", "login", "reboot", "halt", "poweroff", "passwd", "oneit", "switch_root", "httpd"})
# On every phone, but not in Debian's toybox: taken from the host if they need nothing beyond the C library.
_FROM_HOST = ("dd", "tr", "diff", "stty", "awk", "expr")
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_ACCOUNTS = "root:x:0:0::/:/system/bin/sh\nsystem:x:1000:1000::/:/system/bin/sh\nshell:x:2000:2000::/:/system/bin/sh\n"
_GROUPS = {
    "root": 0, "system": 1000, "input": 1004, "log": 1007, "adb": 1011, "sdcard_rw": 1015, "sdcard_r": 1028,
    "ext_data_rw": 1078, "ext_obb_rw": 1079, "shell": 2000, "net_bt_admin": 3001, "net_bt": 3002, "inet": 3003,
    "net_bw_stats": 3006, "readproc": 3009, "uhid": 3011, "readtracefs": 3012,
}  # fmt: skip
SHELL_UID = 2000
SHELL_GROUPS = tuple(gid for name, gid in _GROUPS.items() if name not in ("root", "system", "shell"))  # as adbd sets


@dataclass(frozen=True, slots=True)
class Userland:
    """The host's copies of Android's shell and tools."""

    mksh: Path
    toybox: Path


def find_userland() -> Userland | None:
    """Look for mksh and toybox on the host; None when one is missing."""
    mksh, toybox = shutil.which("mksh"), shutil.which("toybox")
    return Userland(Path(mksh).resolve(), Path(toybox).resolve()) if mksh and toybox else None


def device_programs(shell: str = "/system/bin/sh", root: str = "") -> dict[str, str]:
    """The phone's own programs by name; `root` goes before every absolute path in them (phones without namespaces)."""
    programs = {}
    for entry in resources.files("farm.simulation.programs").iterdir():
        if entry.is_file() and not entry.name.endswith(".py"):
            programs[entry.name] = entry.read_text("utf-8").replace("@SHELL@", shell).replace("@ROOT@", root)
    return programs


def superuser_program(shell: str = "/system/bin/sh") -> str:
    """`su` of a rooted phone, whose shell is root already: su [USER] [-c COMMAND | COMMAND ...]."""
    return f"""\
#!{shell}
case ${{1-}} in root | 0) shift ;; esac
[ "${{1-}}" = -c ] && shift
[ $# -gt 0 ] || exec {shell}
exec {shell} -c "$*"
"""


@cache
def build_system(folder: Path, userland: Userland) -> Path:
    """The image for this userland, built at most once per `folder`; returns its root, to be mounted on /system."""
    programs = device_programs()
    tools = {"sh": userland.mksh, "toybox": userland.toybox} | _plain_host_tools()
    digest = hashlib.sha256(repr((sorted(programs.items()), sorted(tools), C_LIBRARY, _GROUPS)).encode())
    for tool in tools.values():
        digest.update(tool.read_bytes())
    image = folder / f"system-{digest.hexdigest()[:16]}"
    if image.is_dir():
        return image
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".system-"))
        try:
            _fill(temporary, tools, programs)
            temporary.chmod(0o755)
            _rename_once(temporary, image)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise HostError(f"cannot build the phones' /system: {error}") from error
    return image


def _plain_host_tools() -> dict[str, Path]:
    found = {name: Path(path).resolve() for name in _FROM_HOST if (path := shutil.which(name))}
    plain = {*C_LIBRARY, "ld-linux-x86-64.so.2"}
    return {name: path for name, path in found.items() if linked_libraries([path]).keys() <= plain}


def _fill(image: Path, tools: dict[str, Path], programs: dict[str, str]) -> None:
    for name in ("bin", "etc", "lib64", "xbin"):
        (image / name).mkdir()
    for name, tool in tools.items():
        _copy(tool, image / "bin" / name)
    for name, text in programs.items():
        (image / "bin" / name).write_text(text, "utf-8")
        (image / "bin" / name).chmod(0o755)
    for applet in _run([str(tools["toybox"])]).split():
        link = image / "bin" / applet
        if applet not in _NOT_LINKED and not link.exists():
            link.symlink_to("toybox")
    for name, library in linked_libraries(list(tools.values())).items():
        _copy(library, image / "lib64" / name)
    (image / "lib64" / "x86_64-linux-gnu").symlink_to(".")  # where Debian's loader looks
    # Android's loader looks in /vendor/lib64 too: a link to nothing on phones without a driver.
    (image / "lib64" / "libOpenCL.so").symlink_to("/vendor/lib64/libOpenCL.so")
    (image / "etc" / "passwd").write_text(_ACCOUNTS, "utf-8")
    group = "".join(f"{name}:x:{gid}:\n" for name, gid in _GROUPS.items())
    (image / "etc" / "group").write_text(group, "utf-8")
    (image / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 ip6-localhost\n", "utf-8")


def linked_libraries(programs: list[Path]) -> dict[str, Path]:
    """The C library, and whatever else the programs are linked with, by soname."""
    found = {}
    for program in programs:
        for line in _run(["ldd", str(program)]).splitlines():
            match = re.fullmatch(r"\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)", line)
            if match:
                found[match[1] or Path(match[2]).name] = Path(match[2])
    if "libc.so.6" not in found:
        raise HostError("the host's loader does not find libc.so.6 for mksh and toybox")
    for name in C_LIBRARY:
        library = found["libc.so.6"].with_name(name)
        if library.exists():
            found[name] = library
    return found


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"{' '.join(command)}: {error}") from error
    return done.stdout


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _rename_once(temporary: Path, image: Path) -> None:
    """Several labs may build at once: the first wins, the others use its image."""
    try:
        temporary.rename(image)
    except OSError:
        if not image.is_dir():
            raise
