"""The adb program and other adb servers: finding them, reading versions, naming a socket's holder. Only reads."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from farm.adb.connection import DEFAULT_PORT, ServerAddress
from farm.adb.errors import AdbNotInstalled
from farm.common.errors import UserError
from farm.common.peers import peer_process, user_name

VERSION_TIMEOUT_S = 10.0  # `adb version` only prints; a cold disk is the worst of it
PEER_TIMEOUT_S = 2  # for a place in the backlog of a busy server
_VERSION = re.compile(r"Android Debug Bridge version \d+\.\d+\.(\d+)")
_RELEASE = re.compile(r"^Version (\S+)", re.MULTILINE)
_TCP_LISTEN = "0A"  # the kernel's TCP_LISTEN in /proc/net/tcp
_SERVER_WORDS = ("fork-server", "nodaemon")  # how an adb server's own command line differs from a client's


@dataclass(frozen=True, slots=True)
class AdbBinary:
    """An adb program that was run and answered."""

    path: Path
    version: int  # protocol version; a server of another one is killed by this program's every call
    release: str  # "36.0.0-13206524"


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running adb server."""

    pid: int | None  # None: another user's, hidden from us
    user: str
    command: str
    usb: bool = True  # whether it may hold USB phones

    def __str__(self) -> str:
        process = f"pid {self.pid}" if self.pid is not None else "an unknown pid"
        return f"{process} of user {self.user}" + (f" ({self.command})" if self.command else "")


def find_adb(configured: Path | None = None) -> AdbBinary:
    """The adb program: the configured one, else PATH's, else the one inside adbutils.

    Raises:
        AdbNotInstalled: none of them runs; a configured one is never replaced by another.
    """
    if configured is not None:
        return read_version(configured)
    tried: list[str] = []
    for candidate in _candidates():
        try:
            return read_version(candidate)
        except AdbNotInstalled as error:
            tried.append(error.message)
    raise AdbNotInstalled(
        "No adb program was found on PATH or inside adbutils.",
        hint="Install one (apt install adb), or set [adb] binary.",
        evidence="\n".join(tried),
    )


def _candidates() -> Iterable[Path]:
    if on_path := shutil.which("adb"):
        yield Path(on_path)
    spec = importlib.util.find_spec("adbutils")  # not imported: that takes 164 ms
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "binaries" / "adb"


def read_version(path: Path) -> AdbBinary:
    """Runs `adb version`, which starts no server.

    Raises:
        AdbNotInstalled: it does not run or is not adb.
    """
    hint = "Set [adb] binary to a working adb program."
    try:
        done = subprocess.run(
            [str(path), "version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {VERSION_TIMEOUT_S:g} s"
        raise AdbNotInstalled(f"{path} does not run: {why}.", hint=hint, evidence=str(error)) from error
    text = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
    match = _VERSION.search(text)
    if done.returncode != 0 or match is None:
        raise AdbNotInstalled(f"{path} is not an adb program.", hint=hint, evidence=text.strip())
    release = _RELEASE.search(text)
    return AdbBinary(path, int(match[1]), release[1] if release else "")


def other_servers(socket: str, *, port: int = DEFAULT_PORT) -> list[ServerProcess]:
    """Adb servers besides the one on `socket`: the listener on adb's usual port, and every adb server process.

    Two servers fight over USB: each phone belongs to the server that opened it first. Reads /proc only, never connects.
    Blocks for up to a second on a host with thousands of processes.
    """
    found = {process.pid: process for process in _server_processes()}
    own, listener = ServerAddress.parse(socket), port_holder(port)
    if listener is not None:
        found[listener.pid] = listener
        if own.port == port:
            del found[listener.pid]
    return [process for process in found.values() if own not in _addresses_in(process.command.split())]


def _addresses_in(words: Sequence[str]) -> Iterator[ServerAddress]:
    """The addresses of an adb server's command line: the same one is spelled in several ways."""
    for option, value in pairwise(words):
        if option == "-L":
            with contextlib.suppress(UserError):
                yield ServerAddress.parse(value)


def socket_holder(address: ServerAddress) -> ServerProcess | None:
    """The process that listens on an adb server's address, as far as it is visible to us."""
    if not address.path:
        return port_holder(address.port)
    for connection in psutil.net_connections(kind="unix"):
        if connection.laddr == address.path and connection.pid is not None:
            return _describe(connection.pid)
    return None


def server_pid(address: ServerAddress) -> int:
    """The process that listens on an adb server's address. Blocks.

    Raises:
        OSError: there is none, or none visible to us.
    """
    if address.path:
        with socket.socket(socket.AF_UNIX) as probe:
            # Not settimeout: that gives up at once where the backlog of a unix socket is full.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PEER_TIMEOUT_S, 0))
            probe.connect(address.path)
            return peer_process(probe).pid
    holder = port_holder(address.port)
    if holder is None or holder.pid is None:
        raise ProcessLookupError(f"no visible process listens on port {address.port}")
    return holder.pid


def holds_socket(pid: int, inode: int) -> bool:
    """Whether a process has the socket of that inode open. Blocks.

    Raises:
        OSError: there is no such process, or it may not be looked into.
    """
    wanted = f"socket:[{inode}]"
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            if entry.readlink() == Path(wanted):
                return True
    return False


def port_holder(port: int) -> ServerProcess | None:
    """The process that listens on a TCP port. The unprivileged see another user's name, not the pid."""
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            if connection.pid is not None:
                return _describe(connection.pid)
            return ServerProcess(None, _listener_user(port), "")
    return None


def port_addresses(port: int) -> tuple[str, ...]:
    """The addresses of this host with a listener on a TCP port."""
    return tuple(
        dict.fromkeys(
            connection.laddr.ip
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        )
    )


def _server_processes() -> Iterable[ServerProcess]:
    adb = (each for each in psutil.process_iter(["name"]) if each.info["name"] == "adb")  # a host has hundreds
    for process in adb:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            info = process.as_dict(["cmdline", "username", "status"], ad_value="?")
            if info["status"] != psutil.STATUS_ZOMBIE and any(word in info["cmdline"] for word in _SERVER_WORDS):
                # One that we may not inspect, on a socket of its own, is far more often an experiment than a rival.
                usb = _takes_usb(process, unknown=False)
                yield ServerProcess(process.pid, info["username"], " ".join(info["cmdline"]), usb)


def _describe(pid: int) -> ServerProcess | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = " ".join(process.cmdline())
            return ServerProcess(pid, process.username(), command, _takes_usb(process, unknown=True))
    except psutil.Error:
        return None  # it ended meanwhile


def _takes_usb(process: psutil.Process, *, unknown: bool) -> bool:
    """Whether an adb server looks for USB phones: it does unless it was started with ADB_USB=0 (adb's main.cpp)."""
    try:
        return str(process.environ().get("ADB_USB", "")) != "0"
    except psutil.Error:
        return unknown


def _listener_user(port: int) -> str:
    """The user of a listening port from /proc/net/tcp, which names it even where the pid is hidden."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _TCP_LISTEN:
                return user_name(int(fields[7]))
    return "?"
