"""From each thing that goes wrong with a phone or its user until the phone can be leased again, and works.

Seconds count from the cause to the daemon's event after which the phone is ready and nobody holds it; then a stock
client opens a session and runs the golden kernels, or the figure does not count.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from benchmarks.fault_scene import spins
from benchmarks.harness import Context, Figure, under, until
from benchmarks.rpc_client import RpcClient
from benchmarks.whole_farm import PROFILES, Happened, Journal, about
from farm.common.errors import HostError
from farm.head.model import LeasePolicy
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm
from farm.tvm_server import wire
from farm.tvm_server.gate.gate import GateLimits

ROUNDS = 3
PHONE = "pixel"
SESSION_TIMEOUT_S = 1.5  # as clients give it; the clock of these figures starts when it is over
UNUSED_GRANT_S = LeasePolicy().unused_s
SILENCE_S = GateLimits().answer_s
SPIN_LIMIT_S = 20.0
WAITING_LIMIT_S = 10.0
STUCK_S = 300.0  # how long it would stay, were the phone not rebooted
REBOOT_PATIENCE_S = 8.0  # 3 s in which SIGKILL may work, and a virtual phone's reboot
GOAL_S = 2.0  # beyond patience that is meant


@dataclass(frozen=True, slots=True)
class Cause:
    """What happened when, and by which event the farm knows."""

    at: float
    noticed: Happened


class Scene:
    """One phone, and what can be done to it and its users."""

    def __init__(self, farm: VirtualFarm) -> None:
        self.farm = farm
        self.lab = farm.lab
        self.journal = Journal(farm)
        (self.device,) = (row["name"] for row in farm.status()["devices"])
        (self._golden,) = (farm.folder / "state" / "bundles" / "objects").glob("*/golden")

    def client(self) -> RpcClient:
        """A stock client."""
        return RpcClient(self.farm.tracker(), self._golden)

    def measure(self, wrong: Callable[[Scene], contextlib.AbstractContextManager[Cause]], nurse: RpcClient) -> float:
        """Do something wrong; seconds until the phone is leasable."""
        seq = self.journal.mark()
        with wrong(self) as cause:
            again = self.journal.leasable_again(self.device, seq, cause.noticed)
        nurse.must("open", key=self.device)
        nurse.must("run")
        nurse.must("close")
        self.journal.first(again.seq, about(self.device, "lease.released"))
        return again.at - cause.at

    def opened(self, seq: int) -> float:
        """When the session after `seq` was opened."""
        return self.journal.first(seq, about(self.device, "session.opened")).at

    @contextlib.contextmanager
    def spinning(self, timeout_s: float = 0.0) -> Iterator[tuple[RpcClient, float]]:
        """A client in the middle of a kernel that never ends and ignores SIGTERM, and when its session was opened.

        Only that kernel: later ones are good.
        """
        seq = self.journal.mark()
        with self.client() as client:
            self.lab.ignore_sigterm(PHONE)
            try:
                client.must("open", key=self.device, timeout_s=timeout_s)
                client.tell("run")
                until(spins, SPIN_LIMIT_S, "the kernel did not begin to spin")
            finally:
                self.lab.good_kernels(PHONE)
            yield client, self.opened(seq)

    @staticmethod
    def stuck() -> bool:
        """Whether a process that outlives SIGKILL is there."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "stuck_driver":
                    return True
        return False

    def waiting(self) -> int:
        """How many requests wait."""
        return len(self.farm.client.call("lease.list")["waiting"])


@contextlib.contextmanager
def requester_dies(scene: Scene) -> Iterator[Cause]:
    with scene.client() as holder, scene.client() as waiter:
        holder.must("open", key=scene.device)
        waiter.tell("open", key=scene.device)
        until(lambda: scene.waiting() == 1, WAITING_LIMIT_S, "the second request does not wait")
        at = time.time()
        waiter.kill()
        holder.must("close")
        yield Cause(at, about(scene.device, "lease.released"))


@contextlib.contextmanager
def grant_unused(scene: Scene) -> Iterator[Cause]:
    seq = scene.journal.mark()
    with socket.create_connection(scene.farm.tracker()) as tracker:
        tracker.sendall(wire.encode_magic() + wire.encode_json([wire.TrackerCode.REQUEST, scene.device, "", 0]))
        granted = scene.journal.first(seq, about(scene.device, "lease.granted"))
        yield Cause(granted.at, about(scene.device, "lease.released"))


@contextlib.contextmanager
def past_timeout(scene: Scene) -> Iterator[Cause]:
    seq = scene.journal.mark()
    with scene.client() as client:
        client.must("open", key=scene.device, timeout_s=SESSION_TIMEOUT_S)
        yield Cause(scene.opened(seq) + SESSION_TIMEOUT_S, about(scene.device, "session.ended"))


@contextlib.contextmanager
def kicked(scene: Scene) -> Iterator[Cause]:
    with scene.spinning():
        at = time.time()
        scene.farm.client.call("lease.kick", device=scene.device)
        yield Cause(at, about(scene.device, "session.ended"))


@contextlib.contextmanager
def sigterm_ignored(scene: Scene) -> Iterator[Cause]:
    with scene.spinning(SESSION_TIMEOUT_S) as (_, opened_at):
        yield Cause(opened_at + SESSION_TIMEOUT_S, about(scene.device, "session.ended"))


@contextlib.contextmanager
def survives_sigkill(scene: Scene) -> Iterator[Cause]:
    seq = scene.journal.mark()
    with scene.client() as client:
        scene.lab.fault(PHONE, "unkillable", seconds=STUCK_S)
        try:
            client.must("open", key=scene.device, timeout_s=SESSION_TIMEOUT_S)
            client.tell("run")
            until(scene.stuck, SPIN_LIMIT_S, "no process got stuck")
        finally:
            scene.lab.good_kernels(PHONE)
        yield Cause(scene.opened(seq) + SESSION_TIMEOUT_S, about(scene.device, "session.ended"))


@contextlib.contextmanager
def client_killed(scene: Scene) -> Iterator[Cause]:
    with scene.spinning() as (client, _):
        at = time.time()
        client.kill()
        yield Cause(at, about(scene.device, "session.ended"))


@contextlib.contextmanager
def server_crash(scene: Scene) -> Iterator[Cause]:
    at = time.time()
    scene.lab.server_crash(PHONE)
    yield Cause(at, about(scene.device, "device.starting"))


@contextlib.contextmanager
def server_hang(scene: Scene) -> Iterator[Cause]:
    with scene.client() as client:
        at = time.time()
        scene.lab.server_hang(PHONE)
        client.tell("open", key=scene.device)
        yield Cause(at, about(scene.device, "session.ended", "device.recovering", "device.starting"))


@contextlib.contextmanager
def segfault(scene: Scene) -> Iterator[Cause]:
    with scene.client() as client:
        client.must("open", key=scene.device)
        scene.lab.fault(PHONE, "segfault")
        at = time.time()
        crashed = client.ask("run")
        scene.lab.good_kernels(PHONE)
        if crashed["ok"]:
            raise HostError("the kernel did not crash")
        yield Cause(at, about(scene.device, "session.ended"))


@contextlib.contextmanager
def replug(scene: Scene) -> Iterator[Cause]:
    seq = scene.journal.mark()
    scene.lab.unplug(PHONE)
    scene.journal.first(seq, about(scene.device, "device.gone"))
    at = time.time()
    scene.lab.plug(PHONE)
    yield Cause(at, about(scene.device, "device.identifying"))


@contextlib.contextmanager
def reboot(scene: Scene) -> Iterator[Cause]:
    at = time.time()
    scene.lab.reboot(PHONE)
    yield Cause(at, about(scene.device, "device.identifying"))


@contextlib.contextmanager
def adb_killed(scene: Scene) -> Iterator[Cause]:
    at = time.time()
    scene.farm.adb("kill-server")
    yield Cause(at, about(scene.device, "device.identifying"))


CAUSES: dict[str, tuple[Callable[[Scene], contextlib.AbstractContextManager[Cause]], float]] = {
    "requester dies while it waits": (requester_dies, 0.0),
    f"grant never used, {UNUSED_GRANT_S:g} s of it meant": (grant_unused, UNUSED_GRANT_S),
    "session past its timeout": (past_timeout, 0.0),
    "hung session cut by an operator": (kicked, 0.0),
    "kernel ignores SIGTERM, session past its timeout": (sigterm_ignored, 0.0),
    f"process survives SIGKILL: rebooted, {REBOOT_PATIENCE_S:g} s meant": (survives_sigkill, REBOOT_PATIENCE_S),
    "client killed in the middle of a kernel": (client_killed, 0.0),
    "kernel segfaults": (segfault, 0.0),
    "server crashes": (server_crash, 0.0),
    f"server hangs, {SILENCE_S:g} s of it the next client's": (server_hang, SILENCE_S),
    "unplugged, from the replug": (replug, 0.0),
    "reboot, 0.3 s of it down": (reboot, 0.0),
    "adb kill-server": (adb_killed, 0.0),
}


def run(context: Context) -> list[Figure]:
    """The worst of several rounds for each cause."""
    worst = dict.fromkeys(CAUSES, 0.0)
    with virtual_farm({PHONE: PROFILES[0]}, report=context.say) as farm:
        farm.wait_ready(1)
        scene = Scene(farm)
        with scene.client() as nurse:
            # Round by round: a server that crashed three times in a row is given a pause, which is another story.
            for number in range(ROUNDS):
                for name, (wrong, patience_s) in CAUSES.items():
                    if not patience_s or number == 0:
                        context.say(f"round {number + 1}: {name}")
                        worst[name] = max(worst[name], scene.measure(wrong, nurse))
    return [under(name, seconds, "s", CAUSES[name][1] + GOAL_S) for name, seconds in worst.items()]
