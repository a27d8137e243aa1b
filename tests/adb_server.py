"""A private adb server for tests: own port, home and keys; no USB, mDNS or emulator scan; ended by its own pid."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from tests.support.tvm import free_port
from tests.support.waiting import HANG_S

COMMAND_TIMEOUT_S = 60.0


def adb_binaries() -> dict[str, str]:
    """The adb programs on this machine by a short name: Debian's (29) and the one inside adbutils (36)."""
    found: dict[str, str] = {}
    system = shutil.which("adb")
    if system is not None:
        found["system"] = system
    package = find_spec("adbutils")  # to import it takes 0.3 s
    bundled = Path(package.origin).parent / "binaries" / "adb"
    if bundled.is_file():
        found["bundled"] = str(bundled)
    return found


@dataclass
class AdbServer:
    """One adb server process. `socket` is adb's own socket spec; `run` calls the adb program against this server."""

    binary: str
    home: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    unix: bool = False  # listens on a unix socket, as the daemon's does, and not on the port

    @property
    def socket(self) -> str:
        return f"localfilesystem:{self.home / 'adb.sock'}" if self.unix else f"tcp:127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ADB_", "ANDROID_"))}
        return kept | {
            "HOME": str(self.home),
            **({"ADB_SERVER_SOCKET": self.socket} if self.unix else {"ANDROID_ADB_SERVER_PORT": str(self.port)}),
            "ADB_MDNS": "0",
            "ADB_USB": "0",
            "ADB_LOCAL_TRANSPORT_MAX_PORT": "5554",
            "TMPDIR": str(self.home),
        }

    def start(self) -> None:
        """Start it in the foreground, as our child, and wait until it answers."""
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "adb.log").open("ab") as log:
            # The kernel ends it with this process, however that ends.
            with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
            place = ("-L", self.socket) if self.unix else ("-P", str(self.port))
            self.process = subprocess.Popen(
                [*with_us, self.binary, *place, "nodaemon", "server"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + HANG_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"adb server did not start: {(self.home / 'adb.log').read_text()}")
            time.sleep(0.01)

    def answers(self) -> bool:
        """Whether the server speaks the host protocol."""
        if self.unix:
            return (self.home / "adb.sock").exists()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"000chost:version")
                return connection.recv(4) == b"OKAY"
        except OSError:
            return False

    def stop(self) -> None:
        """End it (SIGKILL: it has nothing to save)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=HANG_S)
            self.process = None

    def run(
        self, *arguments: str, serial: str = "", timeout_s: float = COMMAND_TIMEOUT_S, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the adb program; returns its output and exit code as they are."""
        command = [self.binary, *(("-s", serial) if serial else ()), *arguments]
        return subprocess.run(
            command,
            env=self.environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def text(self, *arguments: str, serial: str = "", timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*arguments, serial=serial, timeout_s=timeout_s)
        if done.returncode != 0:
            raise AssertionError(f"adb {' '.join(arguments)}: {done.returncode} {done.stdout!r} {done.stderr!r}")
        return done.stdout.decode("utf-8", "replace")

    def states(self) -> dict[str, str]:
        """Serial -> state, as listed now."""
        lines = self.text("devices").splitlines()[1:]
        return {serial: state for serial, _, state in (line.partition("\t") for line in lines) if serial}

    def wait_for_state(self, serial: str, state: str, *, timeout_s: float = HANG_S) -> None:
        """Wait until a phone is listed with that state; an empty one means not listed at all."""
        deadline = time.monotonic() + timeout_s
        while (listed := self.states().get(serial, "")) != state:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{serial} is {listed or 'not listed'}, not {state or 'gone'}, after {timeout_s} s"
                )
            time.sleep(0.01)
