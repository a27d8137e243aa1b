"""Stock TVM processes for tests and benchmarks, and devices that are such processes. Nothing here patches TVM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.adb.program import port_addresses
from farm.model.device import DeviceView, Life
from tests.support.forked_processes import popen
from tests.support.waiting import HANG_S

START_LIMIT_S = 60.0  # a stock server binds after 1 s; a cold disk makes the import take 10 s
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A loopback port that the kernel just gave and took back; none of those that adb scans for emulators."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if not 5500 <= port <= 5600:
            return port


def environment() -> dict[str, str]:
    """Our environment, with the repository importable."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


@contextlib.contextmanager
def process(arguments: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child in its own process group; the whole group is gone afterwards."""
    start = popen if arguments[0] == "-c" else subprocess.Popen
    child = start([sys.executable, *arguments], start_new_session=True, env=environment(), cwd=ROOT, **options)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(HANG_S)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def wait_for_port(port: int) -> None:
    """Until something listens on 127.0.0.1:`port`, without connecting (a bare connect confuses stock servers)."""
    deadline = time.monotonic() + START_LIMIT_S
    while not port_addresses(port):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port} after {START_LIMIT_S} s")
        time.sleep(0.02)


@contextlib.contextmanager
def stock_server(secret: str, *, quiet: bool = True) -> Iterator[int]:
    """A stock Python RPC server without tracker, as it runs on a phone: its port."""
    port = free_port()
    sink = subprocess.DEVNULL if quiet else None
    arguments = ["-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    with process([*arguments, "--key", secret, "--silent"], stdout=sink, stderr=sink):
        wait_for_port(port)
        yield port


@contextlib.contextmanager
def server_process(bundle: Path, secret: str, work_dir: Path, *, tracker: int = 0) -> Iterator[int]:
    """The virtual phones' compiled `tvm_rpc`, started on this host as it is on a phone: its port.

    With `tracker` it registers itself there, as a stock C++ server does; `secret` is then its tracker key.
    """
    port = free_port()
    command = [
        str(bundle / "tvm_rpc"), "server", "--host=127.0.0.1", f"--port={port}", f"--port-end={port + 1}",
        f"--key={secret}", f"--work-dir={work_dir}", *([f"--tracker=127.0.0.1:{tracker}"] if tracker else []),
    ]  # fmt: skip
    child = subprocess.Popen(
        command,
        start_new_session=True,
        env=os.environ | {"LD_LIBRARY_PATH": str(bundle)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(HANG_S)


@contextlib.contextmanager
def stock_tracker() -> Iterator[int]:
    """A stock tracker: its port."""
    port = free_port()
    arguments = ["-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]
    with process([*arguments, "--silent"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        wait_for_port(port)
        yield port


OWN_BUNDLE = "it gets its own bundle back"


class FakeDevices:
    """The Devices protocol over plain TCP ports."""

    def __init__(self) -> None:
        self._views: dict[str, DeviceView] = {}
        self.ports: dict[str, int] = {}
        self.secrets: dict[str, str] = {}
        self.broken: list[tuple[str, str]] = []
        self.dialled: list[str] = []
        self.recover = True  # a broken device is READY again after being RECOVERING and CHECKING
        self._listeners: list[Callable[[DeviceView], None]] = []

    def add(self, name: str, *aliases: str, port: int = 0, secret: str = "", **facts: Any) -> DeviceView:
        """A READY device that answers to `aliases` and its name."""
        self.ports[name], self.secrets[name] = port, secret or secrets.token_hex(8)
        labels = {"name": name, **dict.fromkeys(aliases, "yes")}
        view = DeviceView(name, f"serial-{name}", Life.READY, adopted=True, aliases=(*aliases, name), labels=labels)
        self.change(replace(view, **facts))
        return self._views[name]

    def change(self, view: DeviceView) -> None:
        self._views[view.name] = view
        for listener in tuple(self._listeners):
            listener(view)

    def become(self, name: str, life: Life, reason: str = "", **facts: Any) -> None:
        self.change(replace(self._views[name], life=life, reason=reason, **facts))

    def view(self, name: str) -> DeviceView:
        return self._views[name]

    def views(self) -> tuple[DeviceView, ...]:
        return tuple(self._views.values())

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    async def dial(self, name: str, timeout_s: float) -> tuple[socket.socket, str]:
        self.dialled.append(name)
        sock = socket.socket()
        sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.ports[name]))
        except BaseException:
            sock.close()
            raise
        return sock, self.secrets[name]

    def report_broken_session(self, name: str, reason: str) -> None:
        self.broken.append((name, reason))
        self.become(name, Life.RECOVERING, reason)
        if self.recover:
            loop = asyncio.get_running_loop()
            loop.call_soon(self.become, name, Life.CHECKING)
            loop.call_soon(self.become, name, Life.READY)

    clean_and_check = report_broken_session

    def own_bundle(self, name: str) -> None:
        self.report_broken_session(name, OWN_BUNDLE)


class DoorProcess:
    """A TVM listener in its own process (listener_process.py)."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self.pid = child.pid
        self.port = int(self._read()["port"])

    def state(self, command: str = "state") -> dict[str, float]:
        """Memory, processor seconds, worst loop delay since the last call, connections, waiting requests, keys.

        `command` may be "hog" (take every free descriptor) or "unhog".
        """
        assert self._child.stdin is not None
        self._child.stdin.write(command.encode() + b"\n")
        self._child.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise EOFError("the door process has ended")
        state: dict[str, float] = json.loads(line)
        return state


@contextlib.contextmanager
def farm_door(
    *phones: str,
    files: int = 0,
    shed_after_s: float = 0.0,
    adb: str = "",
    store: Path | None = None,
    child: bool = False,
) -> Iterator[DoorProcess]:
    """A TVM listener in its own process.

    `phones` are NAME:PORT:SECRET or NAME:PORT:SECRET:SERIAL (then `adb` is the server's spec); `files` limits its
    descriptors, and clients wait `shed_after_s` for one, 0: as long as a farm's; leases are kept in a database in the
    folder `store`, without it in memory; the gate is in the same process, or its `child`, as a daemon's is.
    """
    arguments = ["-m", "tests.support.listener_process", "--files", str(files), "--adb", adb]
    arguments += ["--shed-after", str(shed_after_s)] if shed_after_s else []
    arguments += ["--store", str(store)] if store is not None else []
    arguments += ["--child"] if child else []
    for phone in phones:
        arguments += ["--phone", phone]
    with process(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield DoorProcess(child)
