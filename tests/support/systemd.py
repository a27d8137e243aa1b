"""systemd's part for tests: reads units, opens their sockets, starts their services, hears what these say."""

from __future__ import annotations

import configparser
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from farm.cli.install_service import CONFIG, UNIT_FOLDER, files, shipped, used_folders
from tests.support.tvm import ROOT
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until

STREAMS = {"ListenStream": socket.SOCK_STREAM, "ListenSequentialPacket": socket.SOCK_SEQPACKET}


class Manager:
    """Hears everything, and tries a service at the moment it says that it is ready."""

    def __init__(self, folder: Path, name: str = "notify") -> None:
        self.path = folder / name
        self.received: list[tuple[float, list[str]]] = []  # (monotonic seconds, lines)
        self.attempt: Callable[[], object] = lambda: None
        self.served_when_ready: object = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self.path.chmod(0o777)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            lines = self._socket.recv(4096).decode().split("\n")
            self.received.append((time.monotonic(), lines))
            if "READY=1" in lines and self.served_when_ready is None:
                self.served_when_ready = self.attempt()

    def times(self, line: str, since: float = 0.0) -> list[float]:
        """When it was said."""
        return [at for at, lines in tuple(self.received) if line in lines and at >= since]

    def statuses(self) -> list[str]:
        """What `systemctl status` would have shown."""
        return [line for _, lines in tuple(self.received) for line in lines if line.startswith("STATUS=")]


class Unit:
    """One unit; a key that may stand there several times has several values."""

    def __init__(self, text: str) -> None:
        self._parser = configparser.RawConfigParser(strict=False, dict_type=_Many, delimiters=("=",))
        self._parser.optionxform = str  # type: ignore[assignment,method-assign]
        self._parser.read_string(text)

    def values(self, section: str, key: str) -> list[str]:
        """Every value, in their order."""
        return self._parser.get(section, key, fallback="").split("\n") if self._parser.has_option(section, key) else []

    def value(self, section: str, key: str) -> str:
        """The one value."""
        [found] = self.values(section, key)
        return found


class _Many(dict[str, Any]):
    """configparser gathers an option's lines in a list: one that comes again is more lines of it."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(key), list):
            self[key].extend(value)
        else:
            super().__setitem__(key, value)


class Host:
    """Where the units of `farm install-service` run, below a folder in the place of /run, /var/lib and /etc."""

    def __init__(self, folder: Path) -> None:
        """`folder` must be short: unix sockets have 107 characters."""
        self.folder = folder
        self.config = folder / CONFIG
        self.log = folder / "journal"
        self.environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        self._texts = files(shipped(), sys.executable, used_folders())
        self.config.parent.mkdir(parents=True)
        self.config.write_text(self._texts[CONFIG])

    def unit(self, name: str, *, moved: bool = True) -> Unit:
        """As installed; `moved`: with its folders below ours."""
        text = self._texts[f"{UNIT_FOLDER}/{name}"]
        for place in ("/run/", "/var/lib/") if moved else ():
            text = text.replace(place, f"{self.folder}{place}")
        return Unit(text)

    @contextmanager
    def sockets(self, name: str) -> Iterator[list[socket.socket]]:
        """What a socket unit opens, TCP at a port that the kernel chooses; in the order of their passing."""
        unit = self.unit(name)
        with ExitStack() as stack:
            opened = []
            for key, kind in STREAMS.items():
                for where in unit.values("Socket", key):
                    sock = stack.enter_context(_opened(where, kind))
                    if sock.family == socket.AF_UNIX:
                        Path(where).chmod(int(unit.value("Socket", "SocketMode"), 8))
                    sock.listen()
                    opened.append(sock)
            yield opened

    @contextmanager
    def service(
        self,
        name: str,
        *more: str,
        passed: list[socket.socket] | None = None,
        manager: Manager | None = None,
        watchdog_s: float | None = None,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A service, ready when its unit says how to know that; `watchdog_s` in the place of the unit's.

        What a unit says of users and sandboxes is not done: tests run as one user.
        """
        unit = self.unit(name)
        for kind, parent in (("RuntimeDirectory", "run"), ("StateDirectory", "var/lib")):
            for folder in " ".join(unit.values("Service", kind)).split():
                (self.folder / parent / folder).mkdir(parents=True, exist_ok=True)
                (self.folder / parent / folder).chmod(int(unit.value("Service", f"{kind}Mode"), 8))
        words = [word for line in unit.values("Service", "Environment") for word in shlex.split(line)]
        environ = self.environ | dict(word.split("=", 1) for word in words)
        if unit.value("Service", "Type") == "notify":
            manager = manager or Manager(self.folder, f"{name}.notify")
            environ["NOTIFY_SOCKET"] = str(manager.path)
            environ["WATCHDOG_USEC"] = f"{(watchdog_s or float(unit.value('Service', 'WatchdogSec'))) * 1e6:.0f}"
        else:
            manager = None
        descriptors = [sock.fileno() for sock in passed or ()]
        moves = " ".join(f"{3 + at}<&{descriptor}" for at, descriptor in enumerate(descriptors))
        script = f'{moves and f"exec {moves}; export LISTEN_PID=$$ LISTEN_FDS={len(descriptors)};"} exec "$@"'
        command = [*shlex.split(unit.value("Service", "ExecStart")), *more]
        with self.log.open("ab") as journal:
            process = subprocess.Popen(
                ["bash", "-c", script, name, *command],
                stdin=subprocess.DEVNULL, stdout=journal, stderr=journal, env=environ, cwd="/", pass_fds=descriptors,
                umask=int(unit.value("Service", "UMask"), 8),
            )  # fmt: skip
        try:
            until(lambda: manager is None or manager.times("READY=1") or process.poll() is not None)
            assert process.poll() is None, self.log.read_text()
            yield process
        finally:
            process.terminate()
            process.wait(HANG_S)


def _opened(where: str, kind: socket.SocketKind) -> socket.socket:
    if where.startswith("/"):
        Path(where).parent.mkdir(parents=True, exist_ok=True)
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.bind(where)
        return sock
    address, _, _ = where.rpartition(":")
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind((address, 0))
    return sock
