"""One phone of a virtual farm to which things happen, and a bystander whose session must not notice.

What happened is read from the daemon's events by one thread for all scenes; times are Unix seconds of one host's clock.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.rpc_client import RpcClient
from benchmarks.whole_farm import Event
from farm.common.errors import FarmError, HostError
from farm.control.client import ControlClient
from farm.simulation.control import LabClient
from farm.simulation.virtual_farm import VirtualFarm

LIMIT_S = 60.0  # for anything that must happen at all; what a phone may wait for by design is shorter
SLOW_LIMIT_S = 180.0  # for what has patience by design: 30 s beside leases, pauses before a power cycle
POLL_S = 0.02
AWAY = ("adb.", "hub.", "host.", "network.", "daemon.")  # rooms whose events are about more than one phone
RUN = "/data/local/tmp/farm/run"
SPIN_CPU_S = 0.2  # of a kernel that spins: nothing else in a session takes that long


class Recorder:
    """Every event of the farm in order, over restarts of the daemon."""

    def __init__(self, farm: VirtualFarm) -> None:
        self._farm = farm
        self._news = threading.Condition()
        self._over = threading.Event()
        self.events: list[Event] = []
        self._thread = threading.Thread(target=self._follow, name="events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._over.set()

    def of(self, device: str, since: float) -> list[Event]:
        """What happened to a device, or around it, since then."""
        with self._news:
            return [each for each in self.events if each.at >= since and concerns(each, device)]

    def wait(self, device: str, since: float, wanted: str, after: int, limit_s: float = LIMIT_S) -> Event:
        """The first event with a number above `after` that is `wanted` (`matches`).

        Raises:
            HostError: it does not come; says what came instead.
        """

        def found() -> Event | None:
            return next((each for each in self.of(device, since) if each.seq > after and matches(each, wanted)), None)

        with self._news:
            if not self._news.wait_for(found, limit_s):
                told = "; ".join(f"{each.kind} {words(each)[:100]}" for each in self.of(device, since))
                raise HostError(f"not seen in {limit_s:g} s: {wanted}. Seen: {told or 'nothing'}")
            event = found()
        assert event is not None
        return event

    def _follow(self) -> None:
        while not self._over.is_set():
            since = self.events[-1].seq if self.events else 0
            with contextlib.suppress(FarmError, TimeoutError, OSError):
                for each in self._farm.events(since, timeout_s=5.0):
                    with self._news:
                        self.events.append(Event.read(each))
                        self._news.notify_all()
                    if self._over.is_set():
                        return
            time.sleep(POLL_S)


def concerns(event: Event, device: str) -> bool:
    """Whether an event is about a device, or about what all of them hang on."""
    about = (event.subject, event.data.get("device"), event.data.get("serial"))
    return device in about or event.kind.startswith(AWAY)


def words(event: Event) -> str:
    """Everything an event says, in one line."""
    return " ".join(f"{key}={value}" for key, value in event.data.items() if value not in ("", None))


def matches(event: Event, wanted: str) -> bool:
    """Whether an event is `KIND`, or `KIND ~ REGEX` with the pattern in what it says."""
    kind, _, pattern = wanted.partition(" ~ ")
    return event.kind == kind and (not pattern or re.search(pattern, words(event)) is not None)


def spins(pid: int | None = None) -> bool:
    """Whether a session below a process (this one) is inside a kernel that never ends."""
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "tvm_rpc" and process.cpu_times().user > SPIN_CPU_S:
                return True
    return False


class Scene:
    """One phone and what can be done to it. Every scene has connections of its own: scenes run in threads."""

    def __init__(self, farm: VirtualFarm, recorder: Recorder, phone: str, profile: str, neighbour: str = "") -> None:
        self.phone = phone  # its name in the lab
        self.neighbour = neighbour  # another phone of the scene, in the lab; "" none
        self.lab = LabClient(farm.lab.directory)
        self.farm = VirtualFarm(farm.daemon, ControlClient(farm.socket), self.lab, farm.adb_path)
        self.recorder = recorder
        self.serial = self.lab.phone(phone).serial
        self.profile = profile
        self.device = self.name_of(self.serial)
        self.bystander: Bystander | None = None
        self.since = time.time()
        self.notes: dict[str, Any] = {}  # what a step leaves for a later one
        self._closing = contextlib.ExitStack()
        self._client: RpcClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        if self._client is not None:
            self._client.kill()
        self.farm.client.close()
        self.lab.close()

    # -- looking --

    def name_of(self, serial: str) -> str:
        """What the farm calls the phone that adb lists so."""
        return next(str(row["name"]) for row in self.farm.status()["devices"] if row["serial"] == serial)

    def row_of(self, name: str) -> Mapping[str, Any]:
        """A phone's row in `farm status`, by its name: its serial may change."""
        for row in self.farm.status()["devices"]:
            if row["name"] == name:
                return dict(row)
        raise HostError(f"{name} is unknown to the farm")

    def row(self) -> Mapping[str, Any]:
        """The row of this phone."""
        return self.row_of(self.device)

    def until_state(self, name: str, state: str) -> None:
        """Wait until a phone's state is that word."""
        self.until(lambda: self.row_of(name)["state"] == state, f"{name} is {state}")

    def until(self, condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        """Look until it is so.

        Raises:
            HostError: it was not in time.
        """
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise HostError(f"{self.device}: not within {limit_s:g} s: {what}")
            time.sleep(POLL_S)

    def until_all_in_service(self) -> None:
        """Wait until every phone is ready, or somebody has it.

        Raises:
            HostError: one is not in time; says which.
        """

        def away() -> list[str]:
            rows = self.farm.status()["devices"]
            return [f"{row['name']} {row['state']}: {row['reason']}" for row in rows if row["life"] != "ready"]

        try:
            self.until(lambda: not away(), "every phone is in service")
        except HostError as error:
            raise HostError(f"{error.message}: {'; '.join(away())}") from error

    def is_free(self) -> bool:
        """Whether it could be leased now."""
        return bool(self.row()["state"] == "ready")

    def server(self) -> str:
        """What identifies the RPC server on it; "" none."""
        return self._server_on(self.row()["serial"])

    def servers(self) -> dict[str, str]:
        """The same of every phone of the farm, by its name."""
        return {row["name"]: self._server_on(row["serial"]) for row in self.farm.status()["devices"]}

    def _server_on(self, serial: str) -> str:
        said = self.farm.adb("-s", serial, "shell", f"grep -E '^(id|pid)=' {RUN}/state 2>/dev/null")
        return " ".join(said.stdout.split())

    # -- doing --

    def fault(self, name: str, **arguments: object) -> None:
        """Have the lab do it."""
        self.lab.fault(self.phone, name, **arguments)

    def shell(self, command: str) -> str:
        """What a user with a cable could do."""
        return self.farm.adb("-s", self.serial, "shell", command).stdout

    def adb_server(self) -> int:
        """The process id of the farm's adb server.

        Raises:
            HostError: there is none.
        """
        daemon = psutil.Process(self.farm.status()["pid"])
        for child in daemon.children(recursive=True):
            if child.name() == "adb" and child.parent() == daemon:
                return int(child.pid)
        raise HostError("the daemon has no adb server")

    def client(self) -> RpcClient:
        """A stock TVM client, alive; the same one until it dies of what happens."""
        if self._client is None or self._client.process.poll() is not None:
            (golden,) = (self.farm.folder / "state" / "bundles" / "objects").glob("*/golden")
            self._client = RpcClient(self.farm.tracker(), golden)
        return self._client

    def drop_client(self) -> None:
        """Kill it."""
        if self._client is not None:
            self._client.kill()
            self._client = None

    def spins(self) -> bool:
        """Whether a session on it is inside a kernel that never ends."""
        init = self.lab.phone(self.phone).pid
        return bool(init) and spins(init)

    def keep(self, thing: contextlib.AbstractContextManager[Any]) -> Any:
        """Have something until the scene ends."""
        return self._closing.enter_context(thing)


class Bystander(threading.Thread):
    """Somebody who computes on a phone of their own all the time, and checks the numbers."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(name="bystander", daemon=True)
        self.scene = scene
        self.served = 0  # runs with the right numbers
        self.broken: list[str] = []  # what went wrong
        self._over = threading.Event()
        self._works = threading.Event()
        self._rests = threading.Event()
        self._works.set()
        scene.bystander = self

    def rest(self) -> None:
        """Give the phone back, until `work`."""
        self._rests.clear()
        self._works.clear()
        self._rests.wait(LIMIT_S)
        self.scene.until(self.scene.is_free, "the bystander has given its phone back")

    def work(self) -> None:
        """Take the phone again."""
        self._works.set()

    def run(self) -> None:
        while not self._over.is_set():
            if not self._works.is_set():
                self._rests.set()
                self._works.wait(0.1)
                continue
            try:
                client = self.scene.client()
                opened = client.ask("open", key=self.scene.device)
                while opened["ok"] and self._works.is_set() and not self._over.is_set():
                    ran = client.ask("run")
                    if not ran["ok"]:
                        self.broken.append(ran["error"])
                        break
                    self.served += 1
                    self._over.wait(0.05)
                if opened["ok"]:
                    client.ask("close")
            except HostError as error:
                self.broken.append(error.message)
                self.scene.drop_client()

    def end(self) -> None:
        """Come to an end, and wait for it."""
        self._over.set()
        self._works.set()
        self.join(30.0)

    def goes_on(self, since: int, limit_s: float = 20.0) -> bool:
        """Whether more was served than `since`; waits for it."""
        deadline = time.monotonic() + limit_s
        while self.served <= since and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return self.served > since


@contextlib.contextmanager
def foreign_adb(scene: Scene, home: Path) -> Iterator[None]:
    """Somebody else's adb server on the farm's socket: the daemon is held still until it is there."""
    spec = scene.farm.adb_socket
    daemon, server = scene.farm.status()["pid"], scene.adb_server()
    os.kill(daemon, signal.SIGSTOP)
    try:
        os.kill(server, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(server)] if psutil.pid_exists(server) else [], 1.0)
        home.mkdir(parents=True, exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "ADB_SERVER_SOCKET": spec, "ADB_USB": "0"}
        environment["ADB_MDNS"] = "0"
        environment["ADB_LOCAL_TRANSPORT_MAX_PORT"] = "5554"
        Path(spec.removeprefix("localfilesystem:")).unlink(missing_ok=True)
        stranger = subprocess.Popen(
            [str(scene.farm.adb_path), "-L", spec, "nodaemon", "server"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        scene.until(Path(spec.removeprefix("localfilesystem:")).exists, "a foreign adb server is up")
    finally:
        os.kill(daemon, signal.SIGCONT)
    try:
        yield
    finally:
        stranger.kill()
        stranger.wait()
