"""A seeded storm over a whole lab: heads and hosts are killed and stopped, cut off, and their clocks are wrong.

The seed alone decides the faults, their order and their targets; the state of the lab at each fault is left to chance.
Each host reaches the database through a proxy that can hold answers back: both ends stay connected, and get no byte.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from farm.common.errors import FarmError, HostError
from farm.simulation.postgres import server_folder
from farm.simulation.virtual_farm import VirtualFarm, virtual_farm
from tests.support.postgres import SilentProxy
from tests.support.whole_farm import kept_bundles, phones
from tests.support.whole_lab import WholeLab

PROFILES = ("galaxy-a55", "galaxy-s9")
HOSTS = ("one", "two", "three")
PACE_S = 4.0  # mean time between two faults
AT_ONCE = 2  # jobs, on average, of each submit
ROUND_S = 1.0  # between submits
CUT_S = (2.0, 12.0)  # beyond six seconds of silence a host is lost, and a term is over
SKEWS_S = (-3600, 0, 3600)
PEACE_LIMIT_S = 300.0  # for the jobs that are left when the storm ends
LOG = "/data/local/tmp/judged.log"
# A line for a phone's shell; it logs when which job was at work. $$ alone may repeat.
COMMAND = (
    'n=$$.$(date +%s%N); echo "{token} $n begin" >> {log}; for i in 1 2 3 4 5; do sleep 0.2; '
    'echo "{token} $n on" >> {log}; done; echo "{token} $n end" >> {log}; echo {token}'
)


class StormyLab:
    """A lab whose parts can be hurt. The database is fresh; `close` by its stack."""

    def __init__(self, lab: WholeLab, stack: ExitStack, clock: Path | None, hosts: int, phones_each: int) -> None:
        """Begin it, all phones ready.

        Args:
            lab: without head and hosts.
            stack: ends the hosts.
            clock: a library that moves the wall clock of a program; None: clocks are right.
            hosts: how many.
            phones_each: how many each of them has.
        """
        self.lab = lab
        self.clock = clock
        self.heads = [lab.head(), lab.head()]
        self.proxies: dict[str, SilentProxy] = {}
        self.hosts: dict[str, VirtualFarm] = {}
        for name in HOSTS[:hosts]:
            proxy = self.proxies[name] = SilentProxy(lab.url, stack.enter_context(server_folder()))
            stack.callback(proxy.close)
            config = (
                f'[store]\nurl = "{proxy.url}&connect_timeout=2"\n[lab]\nhost = "{name}"\nhead = "apart"\n'
                "[probe]\nevery_s = 5.0\n"
            )
            phones = {f"{name}-{number}": profile for number, profile in enumerate(PROFILES[:phones_each], 1)}
            self.hosts[name] = stack.enter_context(_host(phones, config))
        begin_logs(self.hosts.values())

    def ended(self) -> list[str]:
        """The hosts whose daemon has ended; of those that nobody has killed there must be none."""
        return [name for name, farm in self.hosts.items() if not farm.daemon.runs]


@contextmanager
def _host(phones: Mapping[str, str], config: str) -> Iterator[VirtualFarm]:
    """A host, its phones (as `virtual_farm` takes them) ready; afterwards its log must have no traceback."""
    kept = kept_bundles()
    with virtual_farm(phones, config=config, bundles=kept if kept.exists() else None) as farm:
        if not kept.exists():
            shutil.copytree(farm.folder / "state" / "bundles" / "objects", kept)
        farm.wait_ready(len(phones))
        yield farm
        farm.daemon.stop()
        log = farm.daemon.log.read_text(errors="replace")
    if "Traceback" in log:
        raise AssertionError(log)


class Storm:
    """One run: jobs and faults for some time, then peace until every job has ended."""

    def __init__(self, stormy: StormyLab, seed: int, folder: Path) -> None:
        self._stormy = stormy
        self._chance = random.Random(seed)
        self._later: list[tuple[float, int, Callable[[], None]]] = []  # time, number and end of each fault
        self._hurt: set[str] = set()  # parts with a fault
        self._number = 0
        self._told = Told(folder)
        self._jobs: dict[str, str] = {}  # job -> its latest known state
        self._begun_s = time.monotonic()
        self.faults: Counter[str] = Counter()
        self.story: list[str] = []

    def run(self, seconds: float) -> None:
        """Storm and peace."""
        until_s = self._begun_s + seconds
        faults = {
            self.head_killed: 2, self.head_stopped: 2, self.host_killed: 1.5, self.host_stopped: 2, self.host_cut: 3,
            self.database_restarted: 1, self.database_frozen: 1,
        }  # fmt: skip
        first = self._chance.sample(list(faults), len(faults))  # each kind falls once
        next_fault_s = time.monotonic() + self._chance.expovariate(1 / PACE_S)
        while time.monotonic() < until_s:
            self._submit(self._chance.randint(0, 2 * AT_ONCE))
            self._wait(ROUND_S)
            if time.monotonic() >= next_fault_s:
                (first.pop() if first else self._chance.choices(list(faults), list(faults.values()))[0])()
                next_fault_s = time.monotonic() + self._chance.expovariate(1 / PACE_S)
        self._tell("peace")
        while self._later:
            heapq.heappop(self._later)[2]()
        self._wait_ended()

    # --- faults -----------------------------------------------------------------------------------------------------

    def head_killed(self) -> None:
        """A head dies, maybe the one that decides, and another process takes its place in line."""
        index = self._pick("head", range(len(self._stormy.heads)))
        if index is not None:
            self._fell("head killed", f"{index}")
            self._stormy.heads[index].kill()
            self._stormy.heads[index] = self._stormy.lab.head()

    def head_stopped(self) -> None:
        """A head stands still: another one decides meanwhile, and it wakes up believing that it does."""
        index = self._pick("head", range(len(self._stormy.heads)))
        if index is not None:
            self._fell("head stopped", f"{index}")
            head = self._stormy.heads[index]
            head.freeze()
            self._hurts(f"head {index}", self._chance.uniform(*CUT_S), head.wake)

    def host_killed(self) -> None:
        """A host dies and comes back after some time, with another clock."""
        name = self._pick("host", self._stormy.hosts)
        if name is not None:
            farm = self._stormy.hosts[name]
            self._fell("host killed", name)
            farm.daemon.kill()
            if self._stormy.clock is not None:
                skew_s = self._chance.choice(SKEWS_S)
                self._tell(f"the clock of {name} will be {skew_s} s off")
                farm.daemon.wrapper = ("env", f"LD_PRELOAD={self._stormy.clock}", f"SKEW_S={skew_s}")
            self._hurts(f"host {name}", self._chance.uniform(0.0, CUT_S[1]), lambda: self._start(farm))

    def host_stopped(self) -> None:
        """A host stands still, maybe for so long that it is lost."""
        name = self._pick("host", self._stormy.hosts)
        if name is not None:
            self._fell("host stopped", name)
            process = self._stormy.hosts[name].daemon.process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            self._hurts(f"host {name}", self._chance.uniform(*CUT_S), partial(process.send_signal, signal.SIGCONT))

    def host_cut(self) -> None:
        """A host hears nothing of the database any more, which hears it."""
        name = self._pick("host", self._stormy.hosts)
        if name is not None:
            self._fell("host cut off", name)
            proxy = self._stormy.proxies[name]
            proxy.passing.clear()
            self._hurts(f"host {name}", self._chance.uniform(*CUT_S), proxy.passing.set)

    def database_frozen(self) -> None:
        """The database's server stands still: connections stay, and no answer comes."""
        if self._pick("database", ("",)) is not None:
            self._fell("database frozen", "")
            first = psutil.Process(self._stormy.lab.server.pid)
            processes = [first, *first.children(recursive=True)]
            for each in processes:
                each.suspend()

            def thaw() -> None:
                for each in processes:
                    each.resume()

            self._hurts("database ", self._chance.uniform(*CUT_S), thaw)

    def database_restarted(self) -> None:
        """The database crashes and comes back."""
        if self._pick("database", ("",)) is None:
            return
        self._fell("database restarted", "")
        self._stormy.lab.server.stop()
        time.sleep(self._chance.uniform(0.0, 3.0))
        self._stormy.lab.server.start()

    # --- how --------------------------------------------------------------------------------------------------------

    def _submit(self, count: int) -> None:
        """Submit jobs at any host; with the same key at another one, until a host has answered."""
        for _ in range(count):
            self._number += 1
            token = f"token-{self._number}"
            spec = {"kind": "shell", "on": "android", "max_attempts": 10}
            spec["command"] = COMMAND.format(token=token, log=LOG)
            answer = self._ask("job.submit", spec=spec, key=token)
            if answer is not None:
                (row,) = answer["jobs"]
                self._jobs[row["id"]] = row["state"]
                self._told.note(job=row["id"], token=token)

    def _ask(self, verb: str, *, limit_s: float = 60.0, **fields: Any) -> dict[str, Any] | None:
        """The answer of a host without a fault; None: no host has answered in time."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            well = [name for name in self._stormy.hosts if f"host {name}" not in self._hurt]
            if well:
                farm = self._stormy.hosts[self._chance.choice(well)]
                with contextlib.suppress(HostError):
                    return farm.client.call(verb, **fields)
                farm.client.close()
            self._wait(0.2)
        return None

    def _wait_ended(self) -> None:
        """Wait until every job has ended; the judge finds jobs that have not ended in time."""
        until_s = time.monotonic() + PEACE_LIMIT_S
        while (live := [job for job, state in self._jobs.items() if state not in ("done", "failed", "cancelled")]) and (
            time.monotonic() < until_s
        ):
            for job in live:
                with contextlib.suppress(FarmError):
                    if (answer := self._ask("job.show", job=job)) is not None:
                        self._jobs[job] = answer["job"]["state"]
                        self._told.note(job=job, state=self._jobs[job])
            self._wait(0.5)

    def _pick(self, what: str, among: Any) -> Any:
        """A part without a fault; None: each has one."""
        well = [each for each in among if f"{what} {each}" not in self._hurt]
        return self._chance.choice(well) if well else None

    def _hurts(self, part: str, seconds: float, end: Callable[[], None]) -> None:
        """Note the fault of a part, and end it after so long."""

        def over() -> None:
            self._tell(f"{part} is well")
            end()
            self._hurt.discard(part)

        self._hurt.add(part)
        self._number += 1
        heapq.heappush(self._later, (time.monotonic() + seconds, self._number, over))

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while self._later and self._later[0][0] <= until_s:
            at_s, _, action = heapq.heappop(self._later)
            time.sleep(max(0.0, at_s - time.monotonic()))
            action()
        time.sleep(max(0.0, until_s - time.monotonic()))

    def _start(self, farm: VirtualFarm) -> None:
        farm.client.close()
        farm.daemon.start().close()

    def _fell(self, kind: str, where: str) -> None:
        self.faults[kind] += 1
        self._tell(f"{kind} {where}")

    def _tell(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self._begun_s:7.2f} {what}")


def shifted_clock(folder: Path) -> Path | None:
    """A library that moves the wall clock of the program that preloads it; None: there is no compiler."""
    library, source = folder / "skewed_clock.so", Path(__file__).with_name("skewed_clock.c")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    except FileNotFoundError:
        return None
    return library


def begin_logs(hosts: Iterable[VirtualFarm]) -> None:
    """Create each phone's log before any job: farm removes files that a job has created."""
    for farm in hosts:
        for phone in phones(farm):
            phone.shell(f"touch {LOG}")


def copy_logs(hosts: Iterable[VirtualFarm], folder: Path) -> None:
    """Copy the log of each phone into FOLDER/NAME.log."""
    folder.mkdir()
    for farm in hosts:
        for phone in phones(farm):
            (folder / f"{phone.name}.log").write_text(phone.shell(f"cat {LOG}"))


class Told:
    """What clients of a lab were told, in FOLDER/clients.jsonl, and jobs that the logs of phones tell of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0

    def note(self, **said: str) -> None:
        """Add what one was told."""
        with (self.folder / "clients.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")

    def submit(self, farm: VirtualFarm, on: str, before: str = "", **spec: Any) -> str:
        """Submit a job that begins with the command `before`; returns its id."""
        self._number += 1
        token = f"token-{self._number}"
        line = f"{before}; " * bool(before) + COMMAND.format(token=token, log=LOG)
        wanted = {"kind": "shell", "on": on, "command": line, **spec}
        (row,) = farm.client.call("job.submit", spec=wanted, key=token)["jobs"]
        self.note(job=row["id"], token=token)
        return str(row["id"])


def verdict(lab: WholeLab, hosts: Iterable[VirtualFarm], folder: Path) -> dict[str, Any]:
    """The findings of the judge, which runs in a process of its own; FOLDER has what clients were told."""
    copy_logs(hosts, folder / "phones")
    dsn = lab.url.replace("+psycopg", "")
    judge = [sys.executable, "-m", "benchmarks.lab_judge", dsn, str(folder)]
    told: dict[str, Any] = json.loads(subprocess.run(judge, check=True, capture_output=True, text=True).stdout)
    return told
