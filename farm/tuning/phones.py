"""The phones of a tuning run, as the runner sees them.

Three sources exist: a job's pool (`farm.worker.channel.DaemonChannel`), leases of a user's own script
(`farm.client.tuning_phones`), and this very host (`HostPhones`): for `farm tune --on host`, for tests, and for trying a
script without a farm. `python -m farm.tuning.phones OPTION...` is TVM's own RPC server with its key from the
environment: every user of the host can read a command line in `ps`, and the key allows to run code here.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from farm.common.errors import HostError
from farm.jobs.attempt import SessionOffer

__all__ = ["PhoneSource", "PoolState", "PooledPhone", "SessionOffer"]


@dataclass(frozen=True, slots=True)
class PooledPhone:
    """A phone the run may measure on now.

    Attributes:
        lease: The source's key for it; a phone that was lost and came back may have another.
        device: The phone's name; results carry it.
        yield_wanted: Other users wait for it: `give_back` it after the current candidate.
    """

    lease: str
    device: str
    yield_wanted: bool = False


@dataclass(frozen=True, slots=True)
class PoolState:
    """The phones there are now.

    Attributes:
        phones: Those that may be measured on; one that is being cleaned after an abort is not among them.
        wanted: How many the run asked for.
        waits: One sentence: why there are fewer than wanted; empty when there are not.
        over: One sentence: why there will never be one again, which ends the run; empty else.
    """

    phones: tuple[PooledPhone, ...]
    wanted: int
    waits: str = ""
    over: str = ""


class PhoneSource(Protocol):
    """The source of a tuning run's phones. Called from several threads; each call may raise FarmError."""

    def state(self) -> PoolState:
        """The phones there are now. Cheap: asked every 0.2 s."""

    def open_session(self, lease: str) -> SessionOffer:
        """A way to one phone, good for one session."""

    def abort_session(self, lease: str, reason: str) -> None:
        """Cut the session and kill its processes on the phone, which comes back under its lease when it is ready."""

    def give_back(self, lease: str) -> None:
        """Let others have the phone; the source asks for another one by itself."""

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Of these candidate libraries (SHA-256 of the file, hex), those that are known to kill their process."""

    def report_poison(self, artifact: str, device: str, what: str) -> None:
        """A candidate library killed its process on `device` twice, the second time alone: `what` happened."""


STARTS = 3  # attempts to start a server again, one after the other
START_LIMIT_S = 60.0  # the stock server imports TVM: 1 s, 10 s on a cold disk
KEY_VARIABLE = "FARM_RPC_KEY"
# Runs a program that must not outlive this process. Stdin is a pipe whose other end this process holds; when it is
# closed, however this process ended, the whole process group is killed. (PDEATHSIG would fire when the *thread* ends
# that started the program.)
GUARD = 'exec 3<&0 </dev/null; "$@" 3<&- & program=$!; { read -r _ <&3; kill -KILL 0; } & wait $program'

# The program and arguments of a server, for a port, a key and a work folder.
Command = Callable[[int, str, Path], Sequence[str]]


def stock_server(port: int, key: str, folder: Path) -> Sequence[str]:
    """TVM's own RPC server in Python; which comes with TVM. Its key is in its environment only."""
    del key, folder
    ports = ["--port", str(port), "--port-end", str(port + 1)]
    return [sys.executable, "-P", "-m", "farm.tuning.phones", "--host", "127.0.0.1", *ports, "--silent"]


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
        self._poisoned: set[str] = set()
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
        running = tuple(PooledPhone(name, name) for name, server in servers.items() if server.running)
        broken = [server.broken for server in servers.values() if server.broken]
        if len(broken) == len(servers):
            return PoolState((), len(self._servers), over=broken[0] if broken else "this host cannot be measured on")
        waits = broken[0] if broken else "" if len(running) == len(servers) else "a server starts again"
        return PoolState(running, len(self._servers), waits)

    def open_session(self, lease: str) -> SessionOffer:
        """The server's own port and key."""
        return self._servers[lease].offer()

    def abort_session(self, lease: str, reason: str) -> None:
        """Kill the server with all its sessions and start another one."""
        del reason
        self._servers[lease].restart()

    def give_back(self, lease: str) -> None:
        """This host has no other user: a phone given back was put out, and is not offered again."""
        self._put_out.add(lease)

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Those reported to this object."""
        return frozenset(artifacts) & self._poisoned

    def report_poison(self, artifact: str, device: str, what: str) -> None:
        """Remembered while this object lives."""
        del device, what
        self._poisoned.add(artifact)

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Server:
    """One RPC server process with its group."""

    def __init__(self, folder: Path, command: Command, environment: dict[str, str]) -> None:
        self.running = False
        self.broken = ""  # why it will not serve again, one sentence
        self._folder, self._command, self._environment = folder, command, environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._offer = SessionOffer("127.0.0.1", 0, "")

    def offer(self) -> SessionOffer:
        if not self.running:
            raise HostError("this host's RPC server does not run now")
        return self._offer

    def start(self) -> None:
        with self._lock:
            self._start()

    def restart(self) -> None:
        self.running = False
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
        self.running = False
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
                ["sh", "-c", GUARD, "sh", *self._command(port, key, self._folder)],
                cwd=self._folder,
                env=self._environment
                | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), KEY_VARIABLE: key},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"this host's RPC server cannot be started: {error.strerror}") from error
        self._wait_for(port)
        self._offer = SessionOffer("127.0.0.1", port, key)
        self.running = True

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


def main() -> None:
    """Become TVM's RPC server; the processes that it forks have the key from its memory."""
    sys.argv[1:1] = ["--key", os.environ.pop(KEY_VARIABLE)]
    runpy.run_module("tvm.exec.rpc_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
