"""From `job.submit` to user code at work in a forked worker, on an idle phone, with 10,000 jobs queued that compete.

A phone is idle although thousands wait because whoever waits for it has as many phones as their quota allows; all
others wait for phones that are held (`MIX`). So each grant has to look past jobs of the very same key, and of higher
priority. Others' jobs are put into the database while the daemon is down: a benchmark is one user.

Times are the daemon's own, in its event log, against the client's clock before the submit; both read the same clock.
The worker's first word counts, so forking, its setting up and its way back to the daemon are in it.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.harness import Context, Figure, percentile, under
from benchmarks.whole_farm import PROFILES
from farm.common.errors import HostError
from farm.common.events import EPOCH_SHIFT
from farm.common.limits import MAX_JOBS_AT_ONCE
from farm.common.selector import Selector
from farm.control.client import ControlClient
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import AllocatorPolicy
from farm.head.config import UserConfig
from farm.head.planning import plan
from farm.kinds import KINDS
from farm.model.device import DeviceView, Life
from farm.model.job import Job
from farm.model.requests import LeaseClass, LeaseRequest, LeaseSource
from farm.model.specs import spec_from_wire
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm
from farm.store.store import Store
from farm.zoo import small_cnn as build

ALONE = 250  # of each of our own parts submitted one by one, the rest as arrays
SAMPLES = 300  # of which three are slower than the 99th percentile
WARM_UP = 3  # the first compiles the model, which later ones find in the cache
ANY = "android"
FIRST_STEP, IN_SESSION = "reading the model", "uploading"
QUIET_SAMPLES = 20  # at each level
WAIT_S = 60.0
HOLD_S = 4 * 3600.0  # longer than all this lasts
GOAL_MEDIAN_MS, GOAL_P99_MS, GOAL_ALLOCATOR_MS, GOAL_QUIET_MS = 100.0, 200.0, 5.0, 300.0


OURS, BOB, CLEO = "", "bob", "cleo"  # the submitter, and two who hold the phone that their quota allows
IDLE, BOBS, CLEOS = range(3)  # phones


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs of one user that wait for the same."""

    jobs: int
    user: str
    phone: int | None = None  # None: any phone, by the key that all share
    priority: int = 1


MIX = (
    Part(3_000, BOB),  # what the idle phone's next job asks for, too
    Part(2_000, CLEO, IDLE, 5),  # the idle phone itself, and more urgently
    Part(3_000, OURS, BOBS),
    Part(1_000, OURS, CLEOS, 2),
    Part(1_000, BOB, CLEOS),
)
QUEUED = sum(part.jobs for part in MIX)
CONFIG = f"""
[quota]
jobs = {2 * QUEUED}
[user.{BOB}]
devices = 1
jobs = {2 * QUEUED}
[user.{CLEO}]
devices = 1
jobs = {2 * QUEUED}
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One job: milliseconds since its submit began."""

    answered_ms: float
    granted_ms: float
    working_ms: float
    session_ms: float  # its first session is there


def run(context: Context) -> list[Figure]:
    """The way through the farm, the same with an empty queue, and the allocator's part by itself."""
    with virtual_farm(phones_of(PROFILES[:3]), config=CONFIG, report=context.say) as farm:
        farm.wait_ready(3)
        phones = [device["name"] for device in farm.status()["devices"]]
        model = farm.client.put_artifact(build().SerializeToString(deterministic=True))
        spec = {"kind": "bench", "model": model, "name": "tiny.onnx", "repeat": 1, "number": 1}
        ours = {**spec, "on": ANY}
        context.say("two phones are taken; the others' jobs are held yet")
        arrays = others(farm, spec, phones)
        context.say(f"{SAMPLES} jobs with an empty queue")
        empty = list(samples(farm, ours, SAMPLES))
        context.say("the same at each level of quiesce")
        quiet_ms = {level: to_session_ms(farm, {**ours, "quiesce": level}) for level in ("off", "gentle")}
        context.say(f"{QUEUED} jobs of three users wait")
        for array in arrays:
            farm.client.call("job.resume", job=array)
        for part in MIX:
            if part.user == OURS:
                fill(farm.client, part, wanted(part, spec, phones))
        context.say(f"{SAMPLES} jobs beside them")
        beside = list(samples(farm, ours, SAMPLES))
        leases = farm.client.call("lease.list")
        if (waiting := len(leases["waiting"]) + leases["waiting_more"]) != QUEUED:
            raise HostError(f"{waiting} requests wait, not {QUEUED}: this measured something else")
    allocator_ms = [1e3 * each for each in allocator_s(SAMPLES)]
    working = [each.working_ms for each in beside]
    median, p99, allocator_p99 = statistics.median(working), percentile(working, 99), percentile(allocator_ms, 99)
    return [
        under(f"submit to code in a worker, {QUEUED} jobs competing, median", median, "ms", GOAL_MEDIAN_MS),
        under("99th percentile", p99, "ms", GOAL_P99_MS),
        Figure("of it until the job was kept and answered", statistics.median(e.answered_ms for e in beside), "ms"),
        Figure("of it until the lease was granted", statistics.median(e.granted_ms for e in beside), "ms"),
        Figure("median with an empty queue", statistics.median(e.working_ms for e in empty), "ms"),
        Figure("99th percentile with an empty queue", percentile([e.working_ms for e in empty], 99), "ms"),
        Figure("from grant to first session, quiesce off, median", quiet_ms["off"], "ms"),
        under("what quiesce gentle adds to that", quiet_ms["gentle"] - quiet_ms["off"], "ms", GOAL_QUIET_MS),
        Figure("the allocator alone, that queue starving, median", statistics.median(allocator_ms), "ms"),
        under("the allocator alone, 99th percentile", allocator_p99, "ms", GOAL_ALLOCATOR_MS),
    ]  # fmt: skip


def wanted(part: Part, spec: Mapping[str, Any], phones: Sequence[str]) -> dict[str, Any]:
    """The spec of the part's jobs."""
    return {**spec, "on": ANY if part.phone is None else f"name={phones[part.phone]}", "priority": part.priority}


def others(farm: VirtualFarm, spec: Mapping[str, Any], phones: Sequence[str]) -> list[str]:
    """Give Bob and Cleo their phones, and their parts of the queue as arrays on hold: the arrays' ids."""
    arrays: list[str] = []
    jobs: list[Job] = []
    ids = (f"bench-{number:06}" for number in count())
    for user, phone in ((BOB, BOBS), (CLEO, CLEOS)):
        lease = {"kind": "lease", "on": f"name={phones[phone]}", "seconds": HOLD_S}
        jobs += plan(spec_from_wire(KINDS, lease), user, (), datetime.now(UTC), ids, must_match=False).jobs
    for part in MIX:
        for size in arrays_of(part.jobs) if part.user != OURS else ():
            held = {**wanted(part, spec, phones), "devices": size, "hold": True}
            made = plan(spec_from_wire(KINDS, held), part.user, (), datetime.now(UTC), ids, must_match=False)
            arrays.append(made.array)
            jobs += made.jobs
    farm.daemon.kill()
    asyncio.run(add(farm.folder / "state" / "farm.db", jobs))
    farm.daemon.start().close()
    farm.client.close()
    missing = {phones[BOBS], phones[CLEOS]}
    for event in farm.events(farm.status()["seq"] >> EPOCH_SHIFT << EPOCH_SHIFT, timeout_s=WAIT_S):
        if event["kind"] == "job.progress" and event["data"]["step"] == "granted":
            missing.discard(event["data"]["device"])
        if not missing:
            return arrays
    raise AssertionError("a stream of events does not end by itself")


async def add(database: Path, jobs: Sequence[Job]) -> None:
    """Put jobs into the database of a daemon that is down."""
    store = Store.open(database)
    try:
        await store.jobs.add(jobs)
    finally:
        store.close()


def arrays_of(jobs: int) -> Iterator[int]:
    """Sizes of the arrays that make so many jobs."""
    while jobs:
        size = min(jobs, MAX_JOBS_AT_ONCE)
        yield size
        jobs -= size


def fill(client: ControlClient, part: Part, spec: Mapping[str, Any]) -> None:
    """Queue a part of our own: some jobs alone, most in arrays."""
    for _ in range(ALONE):
        client.call("job.submit", spec=spec)
    for size in arrays_of(part.jobs - ALONE):
        client.call("job.submit", spec={**spec, "devices": size})


def samples(farm: VirtualFarm, spec: Mapping[str, Any], jobs: int) -> Iterator[Sample]:
    """`jobs` jobs, each when the one before it has given the phone back."""
    for number in range(WARM_UP + jobs):
        seq = farm.status()["seq"]
        begun = time.time()
        job = farm.client.call("job.submit", spec=dict(spec))["jobs"][0]["id"]
        answered = time.time()
        sample = one(farm, seq, job, begun, answered)
        if number >= WARM_UP:
            yield sample


def to_session_ms(farm: VirtualFarm, spec: Mapping[str, Any]) -> float:
    """The median from a job's grant to its first session, the model being compiled already."""
    return statistics.median(each.session_ms - each.granted_ms for each in samples(farm, spec, QUIET_SAMPLES))


def one(farm: VirtualFarm, seq: int, job: str, begun: float, answered: float) -> Sample:
    """Follow a job until its lease has ended.

    Raises:
        HostError: it failed, or did not come so far in time.
    """
    granted = working = session = 0.0
    try:
        for event in farm.events(seq, timeout_s=WAIT_S):
            at, told = datetime.fromisoformat(event["at"]).timestamp(), event["data"]
            if event["kind"] == "lease.granted" and told.get("job") == job:
                granted, lease = at, event["subject"]
            elif event["kind"] == "job.progress" and event["subject"] == job and told["step"] == FIRST_STEP:
                working = working or at
            elif event["kind"] == "job.progress" and event["subject"] == job and told["step"] == IN_SESSION:
                session = session or at
            elif event["kind"] == "job.failed" and event["subject"] == job:
                raise HostError(f"job {job} failed: {farm.client.call('job.show', job=job)['job']['error']}")
            elif event["kind"] == "lease.released" and granted and event["subject"] == lease:
                break
    except TimeoutError as error:
        raise HostError(f"job {job} did not come to its end: {error}") from error
    if not working or not session:
        raise HostError(f"job {job} never said {FIRST_STEP!r} or {IN_SESSION!r}")
    return Sample(*(1e3 * (at - begun) for at in (answered, granted, working, session)))


def allocator_s(samples: int) -> Iterator[float]:
    """What a request costs that is granted at once beside that queue, when all of it has come to starve: seconds."""
    policy = AllocatorPolicy()
    allocator, now_s = Allocator(policy), 1000.0
    allocator.quotas_changed(UserConfig(), {user: UserConfig(devices=1) for user in (BOB, CLEO)}, now_s)
    for phone in (IDLE, BOBS, CLEOS):
        allocator.device_changed(_phone(phone), now_s)
    for user, phone in ((BOB, BOBS), (CLEO, CLEOS)):
        allocator.request_added(f"holds-{phone}", _request(Part(1, user, phone)), now_s)
    for place, part in enumerate(MIX):
        for number in range(part.jobs):
            allocator.request_added(f"waits-{place}-{number}", _request(part), now_s)
    now_s += policy.starved_s
    for number in range(samples):
        now_s += 1.0
        begun = time.perf_counter()
        grants = allocator.request_added(f"asks-{number}", _request(Part(1, OURS)), now_s)
        seconds = time.perf_counter() - begun
        if [grant.device for grant in grants] != [str(IDLE)]:
            raise AssertionError(f"an idle phone was not granted: {grants}")
        begun = time.perf_counter()
        allocator.lease_ended(str(IDLE), "", now_s + 0.5)
        yield seconds + time.perf_counter() - begun


def _phone(number: int) -> DeviceView:
    name = str(number)
    return DeviceView(name, f"serial-{name}", Life.READY, adopted=True, aliases=(ANY, name), labels={"name": name})


def _request(part: Part) -> LeaseRequest:
    selector = Selector.parse(ANY if part.phone is None else f"name={part.phone}")
    return LeaseRequest(selector, part.user, LeaseSource.JOB, part.priority, LeaseClass.BENCH, worker=True)
