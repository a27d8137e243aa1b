"""What `farm doctor` looks at on this host whether a daemon serves or not: clock, ports, units, USB, database, bundles.

Each check reads facts and hands them to a function that decides; those need no host.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import re
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from farm.cli.gate import DEFAULT_SOCKET
from farm.core.doctor_findings import FAIL, OK, OPEN_USB, WARN, Finding, of_error
from farm.core.errors import FarmError

if TYPE_CHECKING:
    from farm.adb.program import AdbBinary
    from farm.config import FarmConfig

STA_UNSYNC = 0x40  # linux/timex.h: nobody keeps the clock right
TIMEX_BYTES = 512  # more than struct timex has on any machine; `status` is its sixth word (man 2 adjtimex)
TIMEX_STATUS_OFFSET = 5 * ctypes.sizeof(ctypes.c_long)
ADB_INTERFACE = "ff42"  # bInterfaceClass and bInterfaceSubClass of adb
WHOLE_CHECK_BYTES = 256 << 20  # a check of every page takes seconds up to here
RUN_CODE = "run code on every phone"  # who reaches the TVM port
READ = "read everything, act with a token"  # who reaches the page
GATE = "farm gate"  # stands for its own address, which no file of the daemon's says
SYSTEMD_PID = 1


# --- clock ------------------------------------------------------------------------------------------------------------


def clock() -> Iterator[Finding]:
    """Whether somebody keeps the clock right: results, leases and certificates carry times."""
    words = (ctypes.c_char * TIMEX_BYTES)()
    if ctypes.CDLL(None).adjtimex(words) < 0:
        return
    yield judge_clock(ctypes.c_int.from_buffer(words, TIMEX_STATUS_OFFSET).value)


def judge_clock(status: int) -> Finding:
    """`status`: the kernel's, of adjtimex."""
    if status & STA_UNSYNC:
        fix = "timedatectl set-ntp true, or apt-get install chrony"
        return Finding("clock", WARN, "nothing keeps it right: times of results drift", fix)
    return Finding("clock", OK, "kept right by a time server")


# --- sockets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Door:
    """An address that the configuration opens, or a gate apart."""

    key: str  # where it stands
    host: str
    port: int
    exposes: str  # what whoever reaches it can do


def doors_of(config: FarmConfig, tvm: Sequence[Door] = ()) -> tuple[Door, ...]:
    """Every TCP address that the farm would listen on: as configured, but for `tvm`, a gate that is there."""
    found = list(tvm)
    if not tvm and not config.tvm.gate:
        found = [Door("tvm.host", config.tvm.host, config.tvm.port, RUN_CODE)]
    if config.web.enabled:
        found.append(Door("web.host", config.web.host, config.web.port, READ))
    if config.control.listen:
        host, _, port = config.control.listen.removeprefix("tcp://").rpartition(":")
        found.append(Door("control.listen", host.strip("[]"), int(port), "ask, with a key"))
    return tuple(found)


def doors_told(status: Mapping[str, Any]) -> tuple[Door, ...]:
    """The TVM port and the page of a daemon that serves: this shell may have another configuration."""
    tracker, page = status["tracker"], urlsplit(status["web"])
    tvm = Door("tvm.host" if tracker["pid"] == status["pid"] else GATE, tracker["bound"], tracker["port"], RUN_CODE)
    return (tvm, Door("web.host", page.hostname, page.port or 0, READ)) if page.hostname else (tvm,)


def gate_doors(port: int, socket: Path) -> tuple[Door, ...]:
    """What a gate apart listens on at `port`, without asking it; () when nobody or somebody else has the port.

    Until a client comes it is systemd who holds it, and whoever is not root is not told which process does.
    """
    from farm.adb.program import port_addresses, port_holder

    holder = port_holder(port) if port else None
    if holder is None:
        return ()
    by_systemd = holder.pid in (None, SYSTEMD_PID) and socket.is_socket()
    if not by_systemd and not re.search(r"-m farm gate\b|/farm gate\b", holder.command):
        return ()
    return tuple(Door(GATE, address, port, RUN_CODE) for address in port_addresses(port))


def sockets(config: FarmConfig, gate_socket: Path = DEFAULT_SOCKET) -> Iterator[Finding]:
    """While no daemon answers: who holds the farm's ports, and which of them others than this host could reach.

    Args:
        config: where the ports are configured.
        gate_socket: where a gate apart is, if the configuration does not say.
    """
    from farm.adb.program import port_holder

    for door in doors_of(config, gate_doors(config.tvm.port, Path(config.tvm.gate or gate_socket))):
        yield judge_door(door)
        holder = port_holder(door.port) if door.port and door.key != GATE else None
        if holder is not None:
            fix = (
                f"stop it, or choose another: [{door.key.partition('.')[0]}] port; sudo ss -ltnp 'sport = :{door.port}'"
            )
            yield Finding(f"port {door.port}", FAIL, f"taken by {holder}, and no daemon of ours answers", fix)


def judge_door(door: Door) -> Finding:
    """Whether an address is this host's alone."""
    where = f"{door.key} {door.host} port {door.port or 'of the kernel'}"
    if is_loopback(door.host):
        return Finding("exposure", OK, f"{where}: this host only")
    if door.key == GATE:
        fix = "systemctl edit farm-gate.socket, or farm gate --host; from elsewhere: ssh -L (docs/security.md)"
        return Finding("exposure", WARN, f"{where}: whoever reaches it can {door.exposes}", fix)
    table, _, name = door.key.partition(".")
    fix = f'[{table}] {name} = "127.0.0.1"; from elsewhere: ssh -L (docs/security.md)'
    if door.key == "control.listen":
        return Finding(
            "exposure", OK, f"{where}: with a key of `farm auth new`, from where the unit's IPAddressAllow lets in"
        )
    return Finding("exposure", WARN, f"{where}: whoever reaches it can {door.exposes}", fix)


def is_loopback(host: str) -> bool:
    """Whether only this host reaches a server there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(pid: int) -> Iterator[Finding]:
    """Sockets of the daemon itself beyond loopback, whatever anybody configured."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for connection in psutil.Process(pid).net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and not is_loopback(connection.laddr.ip):
                where = f"{connection.laddr.ip} port {connection.laddr.port}"
                yield Finding("exposure", WARN, f"the daemon listens on {where}", "docs/security.md says to whom")


# --- units ------------------------------------------------------------------------------------------------------------


def units() -> Iterator[Finding]:
    """Whether the service is installed, and made by this farm for this interpreter."""
    from farm.cli.units import UNIT_FOLDER, files, look, shipped, used_folders

    try:
        wanted = [
            each for each in files(shipped(), sys.executable, used_folders()) if each.path.startswith(UNIT_FOLDER)
        ]
        there = look(Path("/"), wanted)
    except OSError as error:
        yield Finding("service", WARN, f"its units cannot be read: {error.strerror}", "look at /etc/systemd/system")
        return
    yield judge_units({each.path.rpartition("/")[2]: each.text for each in wanted}, there)


def judge_units(wanted: Mapping[str, str], there: Mapping[str, str]) -> Finding:
    """`wanted`: unit -> text; `there`: path -> text."""
    install = f"sudo {sys.executable} -m farm install-service"
    if not there:
        return Finding("service", OK, "not installed: the daemon runs by hand", "")
    found = {path.rpartition("/")[2]: text for path, text in there.items()}
    other = [name for name, text in wanted.items() if found.get(name) != text]
    if other:
        detail = f"{', '.join(other)}: not of this farm at {sys.executable}"
        return Finding("service", WARN, detail, f"{install} && sudo systemctl restart farm")
    return Finding("service", OK, f"{', '.join(wanted)} are installed and current")


# --- adb and USB ------------------------------------------------------------------------------------------------------


def adb_server(config: FarmConfig, socket: str, binary: AdbBinary | None) -> Iterator[Finding]:
    """The adb server on the farm's socket: whether it answers, and of which version it is."""
    import asyncio

    from farm.adb.client import AdbClient
    from farm.adb.errors import AdbServerUnreachable

    try:
        version = asyncio.run(AdbClient(socket).version())
    except AdbServerUnreachable as error:
        if isinstance(error.__cause__, PermissionError):
            yield Finding("adb server", OK, f"{socket} is for its user and root: they see whether it answers")
        elif error.nobody_listens:
            how = "systemctl start farm-adb" if config.adb.service else "the daemon starts it"
            yield Finding("adb server", OK, f"none runs on {socket} now: {how}")
        else:
            yield Finding("adb server", WARN, error.message, "systemctl restart farm-adb, or: farm serve replaces it")
    except FarmError as error:
        yield of_error("adb server", WARN, error)
    else:
        yield judge_versions(version, binary.version if binary else 0, socket)


def judge_versions(server: int, client: int, socket: str) -> Finding:
    """Protocol versions of server and program; 0 where there is no program."""
    if client and client != server:
        fix = "use one adb program for both: [adb] binary, then restart the server (systemctl restart farm-adb)"
        return Finding("adb server", FAIL, f"version {server}, the adb program has {client}: each kills the other", fix)
    return Finding("adb server", OK, f"version {server} on {socket}")


def usb(sysfs: Path, dev: Path = Path("/dev/bus/usb")) -> Iterator[Finding]:
    """Whether phones on USB may be opened by somebody other than root (udev), without asking any adb server."""
    phones = [device for device in _folders(sysfs / "bus/usb/devices") if _speaks_adb(device)]
    closed = []
    for device in phones:
        try:
            bus, number = (int((device / name).read_text()) for name in ("busnum", "devnum"))
            node = (dev / f"{bus:03}" / f"{number:03}").stat()
        except (OSError, ValueError):
            continue  # unplugged while we looked
        if not node.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or (node.st_gid == 0 and not node.st_mode & stat.S_IWOTH):
            closed.append(device.name)
    yield from judge_usb([device.name for device in phones], closed)


def judge_usb(phones: Sequence[str], closed: Sequence[str]) -> Iterator[Finding]:
    """`phones`: USB paths of phones with adb on; `closed`: those that only root opens."""
    if closed:
        yield Finding("usb permission", WARN, f"only root may open the phones at {', '.join(closed)}", OPEN_USB)
    elif phones:
        yield Finding("usb permission", OK, f"{len(phones)} phones with adb on USB, open to a group")


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(place.iterdir())
    except OSError:
        return []


def _speaks_adb(device: Path) -> bool:
    for interface in device.glob(f"{device.name}:*"):
        with contextlib.suppress(OSError):
            kinds = ((interface / name).read_text().strip() for name in ("bInterfaceClass", "bInterfaceSubClass"))
            if "".join(kinds) == ADB_INTERFACE:
                return True
    return False


# --- what is kept -----------------------------------------------------------------------------------------------------


def database(config: FarmConfig) -> Iterator[Finding]:
    """Whether the database is sound; for when no daemon serves: one that does is asked by `farm store check`."""
    path = config.state_dir / "farm.db"
    if config.store.url or not os.access(path, os.R_OK):
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            what = "integrity_check(1)" if path.stat().st_size <= WHOLE_CHECK_BYTES else "schema_version"
            said = str(connection.execute(f"PRAGMA {what}").fetchone()[0])
    except sqlite3.Error as error:
        said = str(error)
    yield judge_database(path, said)


def judge_database(path: Path, said: str) -> Finding:
    """`said`: SQLite's words: ok, a number (it was only opened), or what is wrong."""
    if said == "ok" or said.isdecimal():
        return Finding(
            "database", OK, f"{path} is sound" if said == "ok" else f"{path} opens; all of it: farm store check"
        )
    return Finding("database", FAIL, f"{path}: {said}", "farm store check, then go back to a backup: docs/service.md")


def bundles(config: FarmConfig) -> Iterator[Finding]:
    """Whether each bundle is whole: every file by its hash, every library that another needs."""
    folder = config.state_dir / "bundles"
    if not os.access(folder, os.R_OK | os.X_OK) or not (folder / "objects").is_dir():
        return
    from farm.bundle.library import BundleLibrary

    try:
        library = BundleLibrary(folder)
        damages = [f"{each.bundle[:8]}: {each.file} {each.problem}" for each in library.verify()]
        names = [name for bundle in library.list() for name in bundle.names]
    except FarmError as error:
        yield of_error("bundles", WARN, error)
        return
    yield judge_bundles(names, damages)


def judge_bundles(names: Iterable[str], damages: Sequence[str]) -> Finding:
    """Names of bundles, and what is wrong with any."""
    if damages:
        return Finding("bundles", FAIL, "; ".join(damages), "add it again: farm bundle add FOLDER")
    listed = sorted(filter(None, names))
    if not listed:
        return Finding("bundles", WARN, "none: no phone can serve", "farm bundle add FOLDER (docs/bundles.md)")
    return Finding("bundles", OK, f"{', '.join(listed)}: complete, every file as it was added")


def tools(config: FarmConfig) -> Iterator[Finding]:
    """Programs that are asked for and not there."""
    program = config.power.uhubctl
    if program and shutil.which(program) is None:
        yield Finding("uhubctl", WARN, f"[power] uhubctl: there is no program {program}", "apt-get install uhubctl")
