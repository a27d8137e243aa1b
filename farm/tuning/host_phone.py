"""This very host as a phone: for `farm tune --on host`, for tests, and for trying a script without a farm."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from farm.core.errors import HostError
from farm.tuning import host_server, tether
from farm.tuning.phones import PooledPhone, PoolState, SessionOffer

STARTS = 3  # attempts to start a server again, one after the other
START_LIMIT_S = 60.0  # the stock server imports TVM: 1 s, 10 s on a cold disk

# What to execute: a host, a port, a key, a work folder.
Command = Callable[[int, str, Path], Sequence[str]]


def stock_server(port: int, key: str, folder: Path) -> Sequence[str]:
    """TVM's own RPC server in Python; what everybody has who has TVM. Its key is in its environment only."""
    del key, folder
    ports = ["--port", str(port), "--port-end", str(port + 1)]
    return [sys.executable, "-m", "farm.tuning.host_server", "--host", "127.0.0.1", *ports, "--silent"]


class HostPhones:
    """RPC servers on this host, each a phone of the run. A PhoneSource."""

    def __init__(self, count: int = 1, command: Command = stock_server, libraries: Path | None = None) -> None:
        """Start them.

        Args:
            count: how many; they share this host's processors, so more than one measure each other.
            command: what to execute.
            libraries: a folder for LD_LIBRARY_PATH.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="farm-host-phone-"))
        self._kills: Counter[str] = Counter()
        self._put_out: set[str] = set()
        environment = os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
        names = ["host"] if count == 1 else [f"host-{number}" for number in range(1, count + 1)]
        self._servers = {name: _Server(self._folder / name, command, environment) for name in names}
        try:
            for server in self._servers.values():
                server.start()
        except HostError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self) -> PoolState:
        """All of them, but those that are being started again; over when none can be or is wanted any more."""
        servers = {name: server for name, server in self._servers.items() if name not in self._put_out}
        fit = tuple(PooledPhone(name, name) for name, server in servers.items() if server.fit)
        broken = [server.broken for server in servers.values() if server.broken]
        if len(broken) == len(servers):
            return PoolState((), len(self._servers), over=broken[0] if broken else "this host cannot be measured on")
        waits = broken[0] if broken else "" if len(fit) == len(servers) else "a server starts again"
        return PoolState(fit, len(self._servers), waits)

    def open_session(self, lease: str) -> SessionOffer:
        """The server's own port and key.

        Raises:
            HostError: it does not run now.
        """
        return self._servers[lease].offer()

    def abort_session(self, lease: str, reason: str) -> None:
        """Kill the server with all its sessions and start another one.

        Raises:
            HostError: it does not start, however often it is tried; `state` says so from then on.
        """
        del reason
        self._servers[lease].restart()

    def give_back(self, lease: str) -> None:
        """Nobody else wants this host: what is given back was put out, and is not offered again."""
        self._put_out.add(lease)

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Those this object was told of."""
        return frozenset(artifacts) & self._kills.keys()

    def tell_poison(self, artifact: str, device: str, what: str) -> None:
        """Remembered while this object lives."""
        del device, what
        self._kills[artifact] += 1

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Server:
    """One RPC server process with its group."""

    def __init__(self, folder: Path, command: Command, environment: dict[str, str]) -> None:
        self.fit = False
        self.broken = ""  # why it will not serve again, one sentence
        self._folder, self._command, self._environment = folder, command, environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._offer = SessionOffer("127.0.0.1", 0, "")

    def offer(self) -> SessionOffer:
        if not self.fit:
            raise HostError("this host's RPC server does not run now")
        return self._offer

    def start(self) -> None:
        with self._lock:
            self._start()

    def restart(self) -> None:
        self.fit = False
        with self._lock:
            for left in reversed(range(STARTS)):
                self._stop()
                try:
                    self._start()
                except HostError as error:
                    if not left:
                        self.broken = f"{error.message}, {STARTS} times in a row"
                        raise
                else:
                    return

    def stop(self) -> None:
        self.fit = False
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        key = secrets.token_hex(16)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", tether.__file__, *self._command(port, key, self._folder)],
                cwd=self._folder,
                env=self._environment
                | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), host_server.KEY: key},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"this host's RPC server cannot be started: {error.strerror}") from error
        self._wait_for(port)
        self._offer = SessionOffer("127.0.0.1", port, key)
        self.fit = True

    def _wait_for(self, port: int) -> None:
        """Until it listens. Without connecting: a bare connect confuses stock servers."""
        assert self._process is not None
        wanted = {f"0100007F:{port:04X}", f"00000000:{port:04X}"}
        deadline_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline_s:
            rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
            if any(row[1] in wanted and row[3] == "0A" for row in rows):
                return
            if self._process.poll() is not None:
                raise HostError(f"this host's RPC server ended with {self._process.returncode} when it was started")
            time.sleep(0.02)
        raise HostError(f"this host's RPC server did not listen within {START_LIMIT_S:g} s")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
