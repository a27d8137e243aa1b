"""A seeded storm over a whole farm with jobs of every kind, then peace; afterwards everything must have ended well.

What is done, in which order and to whom follows from the seed alone; how it meets what the farm is at does not.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from farm.common.errors import DaemonUnreachableError, FarmError, HostError
from farm.control.client import ControlClient
from farm.simulation.virtual_farm import VirtualFarm
from tests.acceptance.chaos.judging import Verdict, judge
from tests.acceptance.chaos.orders import Order, Size, Taken, orders
from tests.acceptance.chaos.stock_load import StockLoad
from tests.support.tiny_model import tiny_onnx
from tests.support.whole_farm import running_farm

PROFILES = ("oneplus-12", "galaxy-note20", "realme-gt-neo3", "galaxy-s9")
UP_LIMIT_S = 60.0  # until a restarted daemon answers, on a loaded host
PEACE_LIMIT_S = 240.0  # for what is left when the storm ends
STOPPED_SHORT = 0.9  # the storm ends when so many of the jobs have ended
LATEST = 3.0  # times the storm's length: on a slow host it continues until each kind of blow has fallen
PACE_S = 0.35  # mean time between two blows
LOOK_S = 0.2
WORKER_LOOK_S, WORKER_LIMIT_S = 0.05, 3.0  # for the first worker to kill: one lives for some tenths of a second
KINDS = frozenset({
    "unplugged", "server_killed", "worker_killed", "cancelled", "repeated", "adb_killed", "daemon_killed",
    "zygote_killed", "resumed",
})  # fmt: skip


class Chaos:
    """One run."""

    def __init__(self, farm: VirtualFarm, seed: int, size: Size) -> None:
        self._farm = farm
        self._size = size
        self._random = random.Random(seed)
        self._client = ControlClient(farm.socket)
        self._to_submit = orders(self._random, size)[::-1]
        self._later: list[tuple[float, int, Callable[[], None]]] = []  # what ends a fault, when
        self._number = 0
        self.taken: dict[str, Taken] = {}
        self.story: list[str] = []
        self.blows: Counter[str] = Counter()  # those that fell on something
        self._begun_s = time.monotonic()
        self.nicknames = list(farm.lab.status())
        self._model = ""

    # --- the course of things ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """The storm, then peace until every job has ended."""
        self._model = self._client.put_artifact(tiny_onnx())
        self._storm()
        self._tell("peace")
        while self._later:
            heapq.heappop(self._later)[2]()
        while self._to_submit:
            self._submit()
        self._resume_held()
        self._wait_ended(PEACE_LIMIT_S)
        self._client.close()

    def _storm(self) -> None:
        faults = {
            self.unplugged: 8, self.server_killed: 6, self.worker_killed: 8, self.cancelled: 3, self.repeated: 3,
            self.adb_killed: 1.5, self.daemon_killed: 2, self.zygote_killed: 0.5, self.resumed: 0.5,
        }  # fmt: skip
        # Early in the storm each kind comes once between the others, however rare it is.
        each_kind = self._random.sample(list(faults), len(faults))
        begun_s = time.monotonic()
        while (lasted_s := time.monotonic() - begun_s) < LATEST * self._size.storm_s:
            if lasted_s > self._size.storm_s and not self.missing():
                return
            self._wait(self._random.expovariate(1 / PACE_S))
            # All jobs come within the first half of the storm.
            for _ in range(self._random.randint(0, 2 * max(1, int(2 * self._size.jobs * PACE_S / self._size.storm_s)))):
                self.submit()
            self._random.choices(list(faults), list(faults.values()))[0]()
            if each_kind and self.taken:
                each_kind.pop()()
            if not self._to_submit and not self.missing() and self._ended_share() > STOPPED_SHORT:
                return

    def missing(self) -> set[str]:
        """Kinds of blows that fell on nothing yet."""
        return KINDS - self.blows.keys()

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while self._later and self._later[0][0] <= until_s:
            at_s, _, action = heapq.heappop(self._later)
            time.sleep(max(0.0, at_s - time.monotonic()))
            action()
        time.sleep(max(0.0, until_s - time.monotonic()))

    # --- what happens -----------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """The next order."""
        if self._to_submit:
            self._submit()

    def repeated(self) -> None:
        """Somebody who did not get the answer submits again with the same key: the same jobs come back."""
        if self.taken:
            taken = self._random.choice(list(self.taken.values()))
            again = self._order(taken.order)
            self.blows["repeated"] += 1
            assert sorted(again) == sorted(taken.jobs), f"{taken.order.key} was {taken.jobs}, is {again} when repeated"

    def cancelled(self) -> None:
        """Somebody cancels an order, whatever has become of it."""
        if self.taken:
            taken = self._random.choice(list(self.taken.values()))
            taken.cancelled = True
            for job in taken.jobs:
                with contextlib.suppress(FarmError):  # it has ended
                    self._ask("job.cancel", job=job)
            self._fell("cancelled", taken.jobs)

    def resumed(self) -> None:
        """Held jobs continue."""
        self._resume_held()

    def unplugged(self) -> None:
        """A cable is pulled and put back a little later."""
        phone = self._random.choice(self.nicknames)
        self._fell("unplugged", phone)
        self._farm.lab.unplug(phone)
        self._after(self._random.uniform(0.1, 3.0), lambda: self._plug(phone))

    def server_killed(self) -> None:
        """The RPC server of a phone dies, and the session in it."""
        phone = self._random.choice(self.nicknames)
        self._fell("server_killed", phone)
        self._farm.lab.server_crash(phone)

    def worker_killed(self) -> None:
        """A process that works for an attempt dies."""
        until_s = time.monotonic() + WORKER_LIMIT_S
        while not (workers := self._workers()) and "worker_killed" in self.missing() and time.monotonic() < until_s:
            self._wait(WORKER_LOOK_S)
        self._kill("worker_killed", workers)

    def zygote_killed(self) -> None:
        """The process that forks them dies."""
        work = os.fspath(self._farm.folder / "state" / "work")
        self._kill("zygote_killed", [each for each in self._daemon_processes() if _cwd(each) == work])

    def adb_killed(self) -> None:
        """The adb server dies, with every link through it."""
        spec = f"localfilesystem:{self._farm.folder / 'run' / 'adb.sock'}"  # the lab, too, is told where it is
        self._kill("adb_killed", [each for each in psutil.process_iter() if {spec, "server"} <= set(_words(each))])

    def daemon_killed(self) -> None:
        """The daemon dies and is started again."""
        self._fell("daemon_killed")
        self._farm.daemon.kill()
        self._client.close()
        time.sleep(self._random.uniform(0.0, 0.5))
        self._farm.daemon.start().close()
        self._farm.client.close()
        self._tell("daemon is back")

    # --- how --------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        order = self._to_submit.pop()
        self.taken[order.key] = Taken(order, self._order(order))

    def _order(self, order: Order) -> tuple[str, ...]:
        spec = dict(order.spec)
        if "name" in spec:
            spec["model"] = self._model
        if order.follows:
            spec["after"] = list(self.taken[order.follows].jobs)
        answer = self._ask("job.submit", spec=spec, key=order.key)
        return tuple(row["id"] for row in answer["jobs"])

    def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Ask until a daemon answers: what was asked may have been done already."""
        until_s = time.monotonic() + UP_LIMIT_S
        while True:
            try:
                return self._client.call(kind, **fields)
            except (DaemonUnreachableError, HostError) as error:
                self._client.close()
                if time.monotonic() > until_s or error.code not in ("no_daemon", "stopping"):
                    raise
                time.sleep(LOOK_S)

    def _resume_held(self) -> None:
        for row in self._rows(state=["held"]):
            with contextlib.suppress(FarmError):  # it was cancelled meanwhile
                self._ask("job.resume", job=row["id"])
                self._fell("resumed", row["id"])

    def _rows(self, **which: Any) -> Iterator[Mapping[str, Any]]:
        before = None
        while True:
            page = self._ask("job.list", **which, **({"before": before} if before else {}))
            yield from page["jobs"]
            if not page["more"]:
                return
            before = page["jobs"][-1]["id"]

    def _ended_share(self) -> float:
        live = sum(1 for _ in self._rows(state=["held", "blocked", "queued", "running"]))
        return 1 - live / max(1, sum(len(taken.jobs) for taken in self.taken.values()))

    def _wait_ended(self, limit_s: float) -> None:
        until_s = time.monotonic() + limit_s
        while live := list(self._rows(state=["held", "blocked", "queued", "running"])):
            if time.monotonic() > until_s:
                shown = "\n".join(f"  {row['id']} {row['kind']} {row['state']}: {row['waits']}" for row in live)
                devices = [(row["name"], row["state"], row["reason"]) for row in self._ask("status")["devices"]]
                raise AssertionError(f"{limit_s:g} s after the storm these have not ended:\n{shown}\nphones: {devices}")
            time.sleep(LOOK_S)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._later, (time.monotonic() + seconds, self._number, action))

    def _plug(self, phone: str) -> None:
        self._tell(f"plug {phone}")
        self._farm.lab.plug(phone)

    def _workers(self) -> list[psutil.Process]:
        return [each for each in self._daemon_processes() if f"{os.sep}attempts{os.sep}" in _cwd(each)]

    def _daemon_processes(self) -> list[psutil.Process]:
        assert self._farm.daemon.process is not None
        return psutil.Process(self._farm.daemon.process.pid).children(recursive=True)

    def _kill(self, what: str, processes: Sequence[psutil.Process]) -> None:
        chance = self._random.random()  # drawn in any case: what follows must not depend on who happens to be there
        if not processes:
            return
        chosen = sorted(processes, key=lambda each: each.pid)[int(chance * len(processes))]
        self._fell(what, chosen.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            chosen.kill()

    def _fell(self, kind: str, where: object = "") -> None:
        self.blows[kind] += 1
        self._tell(f"{kind} {where}")

    def _tell(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self._begun_s:7.2f} {what}")


def play(profiles: Sequence[str], seed: int, size: Size, kept: Path, **farm_options: Any) -> Verdict:
    """One whole run; prints its story. `kept` gets the daemon's log and database whatever happens."""
    print(f"CHAOS_SEED={seed}")
    with running_farm(*profiles, **farm_options) as farm:
        chaos = Chaos(farm, seed, size)
        try:
            with StockLoad(farm, size.stock_clients, kept) as load:
                chaos.run()
            verdict = judge(farm, chaos, load, kept)
        finally:
            shutil.copyfile(farm.daemon.log, kept / "daemon.log")
            print("\n".join(chaos.story))
    print(dict(chaos.blows), dict(verdict.states), dict(verdict.attempts), load.sessions)
    return verdict


def _cwd(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
