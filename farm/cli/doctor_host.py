"""Checks of this host: programs, toolchains, linkers, the clock, USB, the service's units."""

from __future__ import annotations

import contextlib
import ctypes
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from farm.common.doctor_findings import FAIL, OK, WARN, Diagnosis, judge_usb, of_error
from farm.common.errors import FarmError, UserError
from farm.common.install import pip_install
from farm.control.address import SERVICE_UNIT

if TYPE_CHECKING:
    from farm.bundle.model import Abi
    from farm.config import FarmConfig


# Versions and code generators of a toolchain; TVM and its FFI must match (docs/decisions.md).
_VERSIONS = (
    "from importlib.metadata import version as v; print('apache-tvm', v('apache-tvm') + ', ffi', v('apache-tvm-ffi'));"
    "import tvm; has = lambda name: tvm.get_global_func(name, allow_missing=True) is not None;"
    "print(*[kind for kind in ('llvm', 'opencl', 'vulkan') if has('target.build.' + kind)],"
    " *(['clml'] if has('relax.ext.openclml') else []))"
)
# What TVM calls code generators, and for which of the farm's targets each is needed (docs/models.md).
_GENERATORS = {"llvm": "cpu", "opencl": "opencl, adreno", "vulkan": "vulkan", "clml": "adreno-clml"}
STA_UNSYNC = 0x40  # linux/timex.h: no time server sets the clock
TIMEX_BYTES = 512  # more than struct timex has on any machine; `status` is its sixth word (man 2 adjtimex)
TIMEX_STATUS_OFFSET = 5 * ctypes.sizeof(ctypes.c_long)


def clock() -> Iterator[Diagnosis]:
    """Whether a time server sets the clock: results, leases and certificates carry times."""
    words = (ctypes.c_char * TIMEX_BYTES)()
    if ctypes.CDLL(None).adjtimex(words) < 0:
        return
    yield judge_clock(ctypes.c_int.from_buffer(words, TIMEX_STATUS_OFFSET).value)


def judge_clock(status: int) -> Diagnosis:
    """`status`: the kernel's, of adjtimex."""
    if status & STA_UNSYNC:
        fix = "timedatectl set-ntp true, or apt-get install chrony"
        return Diagnosis("clock", WARN, "no time server sets it: times of results drift", fix)
    return Diagnosis("clock", OK, "set by a time server")


def units() -> Iterator[Diagnosis]:
    """Whether the service is installed, and made by this farm for this interpreter."""
    from farm.cli.install_service import UNIT_FOLDER, UNITS, files, installed, shipped, used_folders

    try:
        wanted = files(shipped(), sys.executable, used_folders())
        there = installed(Path("/"), (path for path in wanted if path.startswith(UNIT_FOLDER)))
    except OSError as error:
        yield Diagnosis("service", WARN, f"its units cannot be read: {error.strerror}", "look at /etc/systemd/system")
        return
    yield judge_units({unit: wanted[f"{UNIT_FOLDER}/{unit}"] for unit in UNITS}, there)


def service_settings(unit: Path = SERVICE_UNIT) -> dict[str, str]:
    """What the installed farm.service and its drop-ins set, as variables for the configuration; {} without a unit."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):  # one that systemd refuses, too
        for file in (unit, *sorted(Path(f"{unit}.d").glob("*.conf"))):
            found |= settings_in(file.read_text(encoding="utf-8", errors="replace"))
    return found


def settings_in(unit: str) -> dict[str, str]:
    """The variables of the configuration that a unit's Environment= lines and its command's options set."""
    words = [line.partition("=") for line in unit.splitlines()]
    set_here = (word.partition("=") for name, _, value in words if name == "Environment" for word in shlex.split(value))
    found = {name: value for name, _, value in set_here if name.startswith("FARM_")}
    for name, _, value in words:
        if name == "ExecStart":
            for option, given in pairwise(shlex.split(value)):
                if option in ("--state-dir", "--runtime-dir"):
                    found["FARM_" + option.removeprefix("--").replace("-", "_").upper()] = given
    return found


def judge_units(wanted: Mapping[str, str], there: Mapping[str, str]) -> Diagnosis:
    """`wanted`: unit -> text; `there`: path -> text."""
    install = f"sudo {sys.executable} -m farm install-service"
    if not there:
        return Diagnosis("service", OK, "not installed: the daemon runs by hand", "")
    found = {path.rpartition("/")[2]: text for path, text in there.items()}
    other = [name for name, text in wanted.items() if found.get(name) != text]
    if other:
        detail = f"{', '.join(other)}: not of this farm at {sys.executable}"
        return Diagnosis("service", WARN, detail, f"{install} && sudo systemctl restart farm")
    return Diagnosis("service", OK, f"{', '.join(wanted)} are installed and current")


def usb(sysfs: Path, dev: Path = Path("/dev/bus/usb")) -> Iterator[Diagnosis]:
    """Phones on USB, and whether users other than root may open them (udev): for when no daemon reports it."""
    from farm.devices.power.switchboard import ADB, judge_phones, phones_on_usb

    plugged_in = phones_on_usb(sysfs)
    phones = [phone.folder for phone in plugged_in if phone.interface == ADB]
    closed = []
    for device in phones:
        try:
            bus, number = (int((device / name).read_text()) for name in ("busnum", "devnum"))
            node = (dev / f"{bus:03}" / f"{number:03}").stat()
        except (OSError, ValueError):
            continue  # unplugged while we looked
        if not node.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or (node.st_gid == 0 and not node.st_mode & stat.S_IWOTH):
            closed.append(device.name)
    yield from judge_usb(len(phones), closed, "only root may open the phones at")
    yield from judge_phones(plugged_in)


def python() -> Diagnosis:
    """Python's version."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Diagnosis("python", OK, f"{version} at {sys.executable}")


def adb_program(config: FarmConfig) -> Diagnosis:
    """The adb program that the daemon would use."""
    from farm.adb.program import find_adb

    try:
        binary = find_adb(Path(config.adb.binary) if config.adb.binary else None)
    except FarmError as error:
        return of_error("adb", FAIL, error)
    return Diagnosis("adb", OK, f"release {binary.release or '?'}, protocol {binary.version}, {binary.path}")


def toolchains(config: FarmConfig) -> Iterator[Diagnosis]:
    """Whether each configured toolchain has a TVM, and its code generators."""
    for name, toolchain in config.toolchain.items():
        command = [toolchain.python, "-P", "-c", _VERSIONS]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            output, failed = (done.stdout or done.stderr.strip().rpartition("\n")[2]).strip(), done.returncode != 0
        except (OSError, subprocess.TimeoutExpired) as error:
            output, failed = str(error), True
        fix = f"{pip_install('tvm', toolchain.python)}, or correct [toolchain.{name}] python" if failed else ""
        verdict = FAIL if failed else OK
        versions, _, generators = output.partition("\n")
        yield Diagnosis(f"toolchain {name}", verdict, output if failed else f"{versions} in {toolchain.python}", fix)
        if not failed:
            yield _generators(name, generators.split())


def _generators(toolchain: str, there: Sequence[str]) -> Diagnosis:
    able = ", ".join(targets for name, targets in _GENERATORS.items() if name in there)
    lacking = ", ".join(targets for name, targets in _GENERATORS.items() if name not in there)
    detail = f"code for {able}" + (f"; not for {lacking}" if lacking else "")
    check = f"targets of {toolchain}"
    if "llvm" in there:
        return Diagnosis(check, OK, detail)
    return Diagnosis(check, WARN, detail, f"a TVM with LLVM, which the extra has: {pip_install('tvm')}")


def linkers() -> Iterator[Diagnosis]:
    """Whether libraries can be linked for phones and hosts."""
    from farm.bundle.model import Abi, Platform
    from farm.compiler.link import linkers

    for name, abi, platform, must in (
        ("android arm64", Abi.ARM64, Platform.ANDROID, True),
        ("android armv7", Abi.ARMV7, Platform.ANDROID, True),
        ("linux arm64", Abi.ARM64, Platform.LINUX, False),
        ("linux armv7", Abi.ARMV7, Platform.LINUX, False),
        ("this host", _host_abi(), Platform.LINUX, True),
    ):
        found = linkers(abi, platform)
        if found:
            others = f" (also {', '.join(linker.name for linker in found[1:])})" if len(found) > 1 else ""
            yield Diagnosis(f"linker for {name}", OK, f"{found[0].name}{others}")
        else:
            fix = "apt-get install lld, or pip install ziglang, or set ANDROID_NDK_HOME"
            verdict = FAIL if must else WARN
            yield Diagnosis(f"linker for {name}", verdict, "compiled models cannot be linked for it", fix)


def _host_abi() -> Abi:
    import platform

    from farm.bundle.model import Abi

    return Abi.ARM64 if platform.machine() in ("aarch64", "arm64") else Abi.X86_64


def listens(path: str) -> bool:
    """Whether a process listens at a unix socket; the unprivileged see sockets of other users, too."""
    import psutil

    return any(connection.laddr == path for connection in psutil.net_connections(kind="unix"))


def adb_server(config: FarmConfig, socket: str, *, needed: bool) -> Iterator[Diagnosis]:
    """The adb server on the farm's socket: whether it answers, and of which version it is.

    `needed`: a daemon runs, or was meant to; else its start may bring the server.
    """
    import asyncio

    from farm.adb.client import AdbClient
    from farm.adb.errors import AdbServerUnreachable
    from farm.adb.program import find_adb

    program_version = 0
    try:
        version = asyncio.run(AdbClient(socket).version())
    except AdbServerUnreachable as error:
        if isinstance(error.__cause__, PermissionError):
            yield Diagnosis("adb server", OK, f"{socket} is for its user and root: they see whether it answers")
        elif error.no_listener:
            fix = (
                "systemctl start farm-adb"
                if config.adb.service
                else f"farm serve starts it, or: adb -L {socket} start-server"
            )
            yield Diagnosis("adb server", FAIL if needed else OK, f"none runs on {socket} now", fix if needed else "")
        else:
            yield Diagnosis("adb server", FAIL, error.message, "systemctl restart farm-adb, or: farm serve replaces it")
    except FarmError as error:
        yield of_error("adb server", FAIL, error)
    else:
        with contextlib.suppress(FarmError):  # a missing program is a finding of its own
            program_version = find_adb(Path(config.adb.binary) if config.adb.binary else None).version
        yield judge_versions(version, program_version, socket)


def judge_versions(server: int, client: int, socket: str) -> Diagnosis:
    """Protocol versions of server and program; 0 where there is no program."""
    if client and client != server:
        fix = "use one adb program for both: [adb] binary, then restart the server (systemctl restart farm-adb)"
        return Diagnosis(
            "adb server", FAIL, f"version {server}, the adb program has {client}: each kills the other", fix
        )
    return Diagnosis("adb server", OK, f"version {server} on {socket}")


def other_adb(socket: str) -> Iterator[Diagnosis]:
    """Adb servers besides the farm's, which listens on `socket`, that may take USB phones: one finding for all."""
    from farm.adb.program import other_servers

    rivals = []
    with contextlib.suppress(UserError):  # an older daemon's answer has no address
        rivals = [server for server in other_servers(socket) if server.usb]
    if rivals:
        fix = "ask their users to stop them; `farm lease acquire` gives them a phone for adb"
        yield Diagnosis("other adb servers", WARN, f"may hold USB phones: {', '.join(map(str, rivals))}", fix)


def tools(config: FarmConfig) -> Iterator[Diagnosis]:
    """Programs that are asked for and not there."""
    program = config.power.uhubctl
    if program and shutil.which(program) is None:
        yield Diagnosis("uhubctl", WARN, f"[power] uhubctl: there is no program {program}", "apt-get install uhubctl")
