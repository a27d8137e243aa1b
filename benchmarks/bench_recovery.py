"""From what users leave undone until the phone can be leased again, and works; `faults` has the faults of phones.

Seconds count from the cause to the daemon's event after which the phone is ready and nobody holds it; then a stock
client opens a session and runs the golden kernels, or the figure does not count.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.harness import Context, Figure, under, until
from benchmarks.rpc_client import RpcClient
from benchmarks.whole_farm import PROFILES, Happened, Journal, about
from farm.head.model import LeasePolicy
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm
from farm.tvm_server import wire

ROUNDS = 3
SESSION_TIMEOUT_S = 1.5  # as clients give it; the clock of these figures starts when it is over
UNUSED_GRANT_S = LeasePolicy().unused_s
WAITING_LIMIT_S = 10.0
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
        opened = scene.journal.first(seq, about(scene.device, "session.opened"))
        yield Cause(opened.at + SESSION_TIMEOUT_S, about(scene.device, "session.ended"))


CAUSES: dict[str, tuple[Callable[[Scene], contextlib.AbstractContextManager[Cause]], float]] = {
    "requester dies while it waits": (requester_dies, 0.0),
    f"grant never used, {UNUSED_GRANT_S:g} s of it meant": (grant_unused, UNUSED_GRANT_S),
    "session past its timeout": (past_timeout, 0.0),
}


def run(context: Context) -> list[Figure]:
    """The worst of several rounds for each cause."""
    worst = dict.fromkeys(CAUSES, 0.0)
    with virtual_farm({"pixel": PROFILES[0]}, report=context.say) as farm:
        farm.wait_ready(1)
        scene = Scene(farm)
        with scene.client() as nurse:
            for number in range(ROUNDS):
                for name, (wrong, patience_s) in CAUSES.items():
                    if not patience_s or number == 0:
                        context.say(f"round {number + 1}: {name}")
                        worst[name] = max(worst[name], scene.measure(wrong, nurse))
    return [under(name, seconds, "s", CAUSES[name][1] + GOAL_S) for name, seconds in worst.items()]
