"""A whole farm in tests: what happened in which order, phones through the real adb, and that nothing stays behind."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any, TypeVar

import psutil

from benchmarks.lab_judge import RULES
from farm.common.errors import FarmError
from farm.simulation.virtual_farm import COMMAND_TIMEOUT_S, VirtualFarm, phones_of, virtual_farm
from tests.support.forked_commands import run_farm
from tests.support.forked_processes import forkers
from tests.support.needs import need
from tests.support.waiting import HANG_S, still_alive

# A daemon that stops leaves what runs to its next start.
RULES_OF_ENDED = {rule: query for rule, query in RULES.items() if rule != "an attempt has not ended"}
ON_PHONE = "/data/local/tmp"  # the one place where farm writes on a phone
BESIDE = frozenset({"device.pushing", "device.finding", "device.finding_over"})  # they move no phone anywhere
LAST_EVENTS = 80
KILLED = 128 + signal.SIGKILL  # as a shell says it
T = TypeVar("T")
POLL_S = 0.02  # for the few things that no event tells

Event = dict[str, Any]


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """All below it; none when it has just ended."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def words_of(process: psutil.Process) -> list[str]:
    """Its command, folder and environment; nothing of a kernel thread, or of one that has just ended."""
    try:
        return [*process.cmdline(), process.cwd(), *process.environ().values()]
    except psutil.Error:
        return []


def _started() -> list[psutil.Process]:
    """The processes that the tests of this process have started."""
    return [child for parent in (psutil.Process(), *forkers()) for child in parent.children()]


@contextmanager
def running_farm(
    *profiles: str,
    config: str = "",
    plugged: bool = True,
    ready: bool = True,
    isolation: str = "",
    gate: Path | str = "",
    named: Mapping[str, str] = MappingProxyType({}),
    places: Mapping[str, str] | None = None,
    anywhere: bool = False,
    other_user: bool = False,
    opencl: Path | None = None,
) -> Iterator[VirtualFarm]:
    """A virtual farm, its phones ready; afterwards nothing of it may be left and its log may hold no traceback.

    `named` has further phones, name in the lab -> profile; the rest is what `virtual_farm` takes. Without g++, mksh and
    toybox a phone is a folder with a server in Python that takes seconds to start: then only farms that are to run
    `anywhere` do. Farms whose daemon or workers are an `other_user` compile their golden kernels themselves: the daemon
    must make the state folder.
    """
    if not anywhere:
        need("g++", "mksh", "toybox")
    # another farm's, which start processes of their own meanwhile
    others = {process.pid for process in _started()}
    all_phones = {**phones_of(profiles), **named}
    kept = None if other_user else kept_bundles()
    with virtual_farm(
        all_phones,
        config=config,
        plugged=plugged,
        isolation=isolation,
        gate=gate,
        places=places,
        bundles=kept if kept and kept.exists() else None,
        opencl=opencl,
    ) as farm:
        if kept and not kept.exists():
            shutil.copytree(farm.folder / "state" / "bundles" / "objects", kept)
        if plugged and ready:
            farm.wait_ready(len(all_phones))
        farm.farm = partial(farm_command, farm)  # type: ignore[method-assign]
        try:
            yield farm
        except BaseException as error:
            error.add_note(told(farm))
            raise
        # not a gate that outlives the farm, nor parts of a lab's other hosts
        own = [each for each in _started() if any(os.fspath(farm.folder) in word for word in words_of(each))]
        family = [each for each in own if each.pid not in others]
        parents = tuple(family)
        family += (child for parent in parents for child in descendants(parent))
        farm.daemon.stop()
        log = farm.daemon.log.read_text(errors="replace")
        assert broken_rules(farm) == {}
    assert still_alive(family, HANG_S) == []
    assert leftovers(farm.folder) == []
    assert "Traceback" not in log, log


def broken_rules(farm: VirtualFarm) -> dict[str, list[str]]:
    """The rows that break a rule which holds for every farm, by the rule. Hosts of a lab are judged with it."""
    database = farm.folder / "state" / "farm.db"
    if not database.exists():
        return {}
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.DatabaseError):  # a test has damaged it
        found = {rule: [row[0] for row in connection.execute(query)] for rule, query in RULES_OF_ENDED.items()}
        return {rule: rows for rule, rows in found.items() if rows}
    return {}


def told(farm: VirtualFarm) -> str:
    """What happened in a farm, for people who look at a test that failed: its last events and the end of its log."""
    lines = []
    try:
        newest = farm.status()["seq"]
        for event in farm.events(max(newest - LAST_EVENTS, 0)) if newest else ():
            lines.append(f"{event['at'][11:23]} {event['kind']} {event['subject']} {event['data']}")
            if event["seq"] >= newest:
                break
    except (FarmError, OSError, TimeoutError) as error:
        lines.append(f"the daemon does not answer: {error}")
    return "\n".join(["the last events of the farm:", *lines, "the end of its log:", farm.daemon.log_end()])


def farm_command(
    farm: VirtualFarm, *words: str | os.PathLike[str], timeout_s: float = COMMAND_TIMEOUT_S
) -> CompletedProcess[str]:
    """`VirtualFarm.farm` without a new interpreter, which took a tenth of the tests' processor time."""
    return run_farm(*words, environ=farm.environment(), timeout_s=timeout_s)


def kept_bundles() -> Path:
    """Where this process's first farm leaves its bundle, so that no other compiles the golden kernels again."""
    return _kept_bundles(shutil.which("g++"))


@cache
def _kept_bundles(_compiler: str | None) -> Path:
    """The bundle's server is another one without a compiler."""
    folder = tempfile.mkdtemp(prefix="farm-bundles-")
    atexit.register(shutil.rmtree, folder)
    return Path(folder) / "objects"


def holders(file: Path) -> list[int]:
    """Processes that have it open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) == os.fspath(file):  # noqa: PTH115
                found.append(int(link.parts[2]))
    return found


def leftovers(folder: Path) -> list[str]:
    """Processes and mounts that have to do with `folder`."""
    wanted = os.fspath(folder)
    found = [line for line in Path("/proc/self/mounts").read_text().splitlines() if wanted in line]
    for process in psutil.process_iter():
        if process.pid != os.getpid() and any(wanted in word for word in words_of(process)):
            found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


class Story:
    """What happens in a farm from the moment this is made, read as far as `until` had to."""

    def __init__(self, farm: VirtualFarm, since: int | None = None) -> None:
        self._farm = farm
        self._since = farm.status()["seq"] if since is None else since
        self.events: list[Event] = []

    def until(self, kind: str, **facts: object) -> Event:
        """Read on to the next event of `kind`; `facts` are its subject and data."""
        for event in self._farm.events(self._since):
            self._since = event["seq"]
            self.events.append(event)
            fields = {"subject": event["subject"], **event["data"]}
            if event["kind"] == kind and all(fields.get(name) == value for name, value in facts.items()):
                return event
        raise AssertionError("a stream of events does not end by itself")

    def read(self) -> None:
        """Read on to the newest event there is."""
        newest = self._farm.status()["seq"]
        for event in self._farm.events(self._since) if newest > self._since else ():
            self._since = event["seq"]
            self.events.append(event)
            if self._since >= newest:
                return

    def kinds(self, device: str = "", *, rooms: str = "") -> list[str]:
        """Kinds of the events read but `BESIDE`, of one device and of the rooms named ("lease session") if given."""
        return [
            event["kind"]
            for event in self.events
            if (not device or device in (event["subject"], event["data"].get("device")))
            and (not rooms or event["kind"].partition(".")[0] in rooms.split())
            and event["kind"] not in BESIDE
        ]

    def order(self, *kinds: str, device: str = "") -> None:
        """Assert that these kinds happened in this order, whatever happened between them."""
        happened = iter(self.kinds(device))
        for kind in kinds:
            assert kind in happened, f"no {kind} in its place ({', '.join(kinds)}) among {self.kinds(device)}"


@dataclass(frozen=True)
class Phone:
    """One virtual phone of a farm: as the lab, the daemon and adb see it."""

    farm: VirtualFarm
    nickname: str  # in the lab

    @property
    def serial(self) -> str:
        """As adb lists it when it is plugged in."""
        return self.farm.lab.phone(self.nickname).serial

    @property
    def row(self) -> Mapping[str, Any]:
        """Its row in `farm status`."""
        serial = self.serial
        return next(device for device in self.farm.status()["devices"] if device["serial"] == serial)

    @property
    def name(self) -> str:
        """What the farm calls it."""
        return str(self.row["name"])

    def shell(self, command: str) -> str:
        """What a command prints on it, by way of the real adb; again when it is killed with what a lease left."""
        while (done := self.farm.adb("-s", self.serial, "shell", command)).returncode == KILLED:
            pass
        assert done.returncode == 0, done
        return done.stdout

    def ours(self) -> list[str]:
        """What farm has on it."""
        return self.shell(f"find {ON_PHONE} -mindepth 1").split()

    def programs(self) -> list[str]:
        """Process ids of its RPC server and of the sessions under it."""
        lines = self.shell("ps -A -o PID,ARGS").splitlines()
        return [line.split()[0] for line in lines if "tvm_rpc server" in line]

    def server(self) -> str:
        """The process id of its RPC server, as soon as it is alone: a session's own process ends after its session."""
        while len(found := self.programs()) != 1:
            time.sleep(POLL_S)
        return found[0]

    def spins(self) -> bool:
        """Whether a session on it is inside a kernel that the fault `ignore_sigterm` keeps there."""
        status = "".join(f"cat /proc/{pid}/status 2>/dev/null;" for pid in self.programs())
        ignored = [int(line.split()[1], 16) for line in self.shell(status + "true").splitlines() if "SigIgn" in line]
        return any(mask & 1 << (signal.SIGTERM - 1) for mask in ignored)


def phones(farm: VirtualFarm) -> list[Phone]:
    """The farm's phones in the order of their profiles."""
    return [Phone(farm, nickname) for nickname in farm.lab.status()]


def plug_all(farm: VirtualFarm) -> None:
    """Plug every phone in again."""
    for nickname in farm.lab.status():
        farm.lab.plug(nickname)


def until_status(farm: VirtualFarm, condition: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """`farm status` as soon as `condition` holds for it; it is looked at after each event."""
    while True:
        status = farm.status()
        if condition(status):
            return status
        next(farm.events(status["seq"]))


def until(condition: Callable[[], T]) -> T:
    """What `condition` comes to once it is true; for what no event tells. The test's own time limit ends the wait."""
    while not (found := condition()):
        time.sleep(POLL_S)
    return found


def until_ready(farm: VirtualFarm) -> None:
    """Return when every adopted device can be handed out."""
    until_status(farm, lambda status: all(row["state"] == "ready" for row in status["devices"] if row["adopted"]))


def answer(done: CompletedProcess[str]) -> Any:
    """The JSON that a successful `farm ... --json` printed."""
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def refused(done: CompletedProcess[str], exit_code: int, *expected: str) -> None:
    """Assert that a command failed as people are promised: its exit code, one clear line, a hint, no traceback."""
    assert done.returncode == exit_code, done
    assert "Traceback" not in done.stdout + done.stderr, done
    lines = done.stderr.splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 1, done
    assert len([line for line in lines if line.startswith("  hint: ")]) == 1, done
    for words in expected:
        assert words in done.stderr, done
