"""A fleet over virtual phones; only the golden kernels are replaced, by an RPC handshake with the phone's server."""

import asyncio
import hashlib
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from farm.adb.client import AdbClient
from farm.adb.watch import DeviceWatcher
from farm.adb.watch_policy import WatchPolicy
from farm.bundle.model import Bundle, BundleFile, CheckResult, Platform
from farm.bundle.rollout_rules import RolloutConfig
from farm.common.events import EventLog
from farm.devices.fleet import Fleet, FleetConfig
from farm.devices.identity.naming_rules import AdoptRule
from farm.devices.rollouts import Rollouts
from farm.model.device import Life
from farm.simulation.control import LabClient, running_lab
from farm.store.store import Store
from tests.adb_server import AdbServer
from tests.support.needs import need
from tests.support.waiting import HANG_S

RPC_MAGIC = 0xFF271
QUICK_WATCH = WatchPolicy(tick_s=0.05)  # its other numbers decide who sees an adb server fail first
ADOPT_ALL = (AdoptRule("virtual=yes", pool="lab"),)


@dataclass
class Shelf:
    """A bundle library of one."""

    bundle: Bundle

    def list(self):
        return [self.bundle]

    def for_abi(self, abi, platform=None):
        return self.bundle if (abi, platform) == (self.bundle.abi, self.bundle.platform) else None


class HandshakeChecker:
    """Opens a session with the server's secret; `verdicts` are given first."""

    fleet: Fleet

    def __init__(self):
        self.verdicts = []

    async def check(self, device, _bundle):
        assert self.fleet.view(device).life is Life.CHECKING
        if self.verdicts:
            verdict = self.verdicts.pop(0)
            if isinstance(verdict, Exception):
                raise verdict
            return verdict
        code, close = await handshake(self.fleet, device)
        close()
        return CheckResult(code == RPC_MAGIC, f"handshake code {code:#x}")


async def handshake(fleet, name):
    """Open an RPC session; returns the server's code and what ends the session."""
    sock, secret = await fleet.dial(name, 5.0)
    loop = asyncio.get_running_loop()
    key = f"client:{secret}".encode()
    async with asyncio.timeout(HANG_S):
        await loop.sock_sendall(sock, struct.pack("<ii", RPC_MAGIC, len(key)) + key)
        code = struct.unpack("<i", await loop.sock_recv(sock, 4))[0]
    return code, sock.close


@dataclass
class Rig:
    """One farm's fleet with its phones."""

    fleet: Fleet
    client: AdbClient
    checker: HandshakeChecker
    shelf: Shelf
    events: EventLog
    store: Store
    phones: LabClient
    adb_server: AdbServer | None = None  # of a module
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, life, *, count=1):
        """Wait until `count` devices are in `life`; returns the first by name."""
        return await self.until_view(lambda view: view.life is life, count=count)

    async def until_view(self, fits, *, count=1):
        stop = self.fleet.subscribe(lambda _: self._changed.set())
        try:
            async with asyncio.timeout(HANG_S):
                while len(found := [view for view in self.fleet.views() if fits(view)]) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"not in time; now: {[(view.name, view.life, view.reason) for view in self.fleet.views()]}")
        finally:
            stop()
        return found[0]

    def heard(self, since=0):
        """Kinds of events after `since` about a device's life, without progress."""
        kinds = [event.kind for event in self.events.since(since) if event.kind != "device.pushing"]
        return [kind for kind in kinds if not kind.startswith("recovery.")]

    def actions(self, since=0):
        """Actions taken after `since`, each with its outcome behind it when it is over."""
        return [
            str(event.data["outcome" if event.kind == "recovery.ended" else "action"])
            for event in self.events.since(since)
            if event.kind.startswith("recovery.")
        ]

    def mark(self):
        """The number of the last event."""
        events = list(self.events.since())
        return events[-1].seq if events else 0

    async def shell(self, serial, command):
        return (await self.client.shell(serial, command, timeout_s=HANG_S)).text

    async def server_pid(self, serial):
        return (await self.shell(serial, "sed -n s/^pid=//p /data/local/tmp/farm/run/state")).strip()

    async def sessions(self, serial):
        """The processes that the server's sessions are, each with the tick it began at."""
        folder = "/data/local/tmp/farm"
        command = (
            f". {folder}/bin/processes.sh; family $(sed -n s/^pid=//p {folder}/run/state);"
            " for pid in $relatives; do stat_of $pid && echo $pid-$ticks; done"
        )
        return set((await self.shell(serial, command)).split())


def make_bundle(folder):
    files = tuple(
        BundleFile(
            path.name,
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_size,
            0o755 if path.name == "tvm_rpc" else 0o644,
        )
        for path in sorted(folder.iterdir())
    )
    name = hashlib.sha256(repr(files).encode()).hexdigest()
    return Bundle("virtual", name, "x86_64", files, folder, "default", (), "0.27", False, platform=Platform.LINUX)


@pytest.fixture(scope="session")
def runtime_folder(tmp_path_factory):
    """The virtual phones' runtime, built once."""
    from farm.simulation.namespaces import Isolation, detect_isolation
    from farm.simulation.runtime import build_bundle_folder

    if detect_isolation() is not Isolation.NONE:
        need("g++")  # the Python server would need phones that show the host's Python
    return build_bundle_folder(tmp_path_factory.mktemp("runtime") / "bundle")


@asynccontextmanager
async def running_rig(client, control, runtime_folder, folder, *, plugged=True, config=None, remembered=lambda _: ()):
    """A fleet that waits for the phones of `control`."""
    events, store, checker = EventLog(), Store.open(folder / "farm.db"), HandshakeChecker()
    shelf = Shelf(make_bundle(runtime_folder))
    for record in remembered(control.phone("one").hardware_serial):
        await store.devices.save(record)
    rollouts = Rollouts(shelf.for_abi, shelf.list, store.rollouts, events, RolloutConfig(soak_s=0.0))
    fleet = checker.fleet = Fleet(
        client, DeviceWatcher(client, policy=QUICK_WATCH), rollouts, checker, store.devices, events,
        config or FleetConfig(ADOPT_ALL), recoveries=store.recoveries, batteries=store.batteries,
    )  # fmt: skip
    running = asyncio.create_task(fleet.run())
    try:
        if plugged:
            control.plug("*")
        yield Rig(fleet, client, checker, shelf, events, store, control)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        store.close()
    assert running.cancelled(), running.exception()


@pytest.fixture
def rig(adb_server, lab, runtime_folder, tmp_path):
    """`async with rig({"one": "oneplus-12"}) as r`: phones of the test's own, `plugged` or not, and their fleet."""

    @asynccontextmanager
    async def start(phones=None, *, phones_at=None, data_bytes=None, **options):
        disk = {"data_bytes": data_bytes} if data_bytes else {}
        control = phones_at or await asyncio.to_thread(lab, phones or {"one": "oneplus-12"}, plugged=False, **disk)
        async with running_rig(AdbClient(adb_server.socket), control, runtime_folder, tmp_path, **options) as made:
            yield made

    return start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(adb_binary, runtime_folder, tmp_path_factory):
    """The module's phone and fleet."""
    server = AdbServer(adb_binary, tmp_path_factory.mktemp("adb"))
    server.start()
    folder, phones = tmp_path_factory.mktemp("lab"), {"one": "oneplus-12"}
    try:
        with running_lab(folder, phones, adb_socket=server.socket, plugged=False) as control:
            async with running_rig(AdbClient(server.socket), control, runtime_folder, folder) as made:
                made.adb_server = server
                yield made
    finally:
        server.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def r(shared):
    """The module's phone, ready."""
    shared.phones.plug("one")
    await shared.until(Life.READY)
    return shared
