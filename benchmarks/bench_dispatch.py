"""From `job.submit` to user code at work in a forked worker, on an idle phone, with 10,000 jobs queued for another.

Times are the daemon's own, in its event log, against the client's clock before the submit; both read the same clock.
The worker's first word counts, so forking, its setting up and its way back to the daemon are in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from benchmarks.harness import Context, Figure, percentile
from benchmarks.whole_farm import PROFILES
from farm.cli.virtual_farm import VirtualFarm, phones_of, virtual_farm
from farm.control.client import ControlClient
from farm.core.allocator import Allocator
from farm.core.allocator_events import DeviceChanged, LeaseEnded, RequestCame
from farm.core.device import DeviceView, Life
from farm.core.errors import HostError
from farm.core.limits import MAX_JOBS_AT_ONCE
from farm.core.requests import Door, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.worker.small_cnn import build

QUEUED = 10_000
ALONE = 500  # of them submitted one by one, the rest as arrays
SAMPLES = 60
WARM_UP = 3  # the first compiles the model, which later ones find in the cache
NEVER = "name=never-there"
FIRST_STEP = "reading the model"
WAIT_S = 60.0
GOAL_MEDIAN_MS, GOAL_P99_MS, GOAL_ALLOCATOR_MS = 100.0, 200.0, 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One job: milliseconds since its submit began."""

    answered_ms: float
    granted_ms: float
    working_ms: float


def run(context: Context) -> list[Figure]:
    """The way through the farm, the same with an empty queue, and the allocator's part by itself."""
    config = "[quota]\njobs = 20000\n"
    with virtual_farm(phones_of(PROFILES[:1]), config=config, tell=context.say) as farm:
        farm.wait_ready(1)
        model = farm.client.put_artifact(build().SerializeToString(deterministic=True))
        spec = {"kind": "bench", "on": "android", "model": model, "name": "tiny.onnx", "repeat": 1, "number": 1}
        context.say(f"{SAMPLES} jobs with an empty queue")
        empty = list(samples(farm, spec, SAMPLES))
        context.say(f"{QUEUED} jobs for a phone that never comes")
        fill(farm.client, {**spec, "on": NEVER})
        context.say(f"{SAMPLES} jobs beside them")
        beside = list(samples(farm, spec, SAMPLES))
    allocator_ms = [1e3 * each for each in allocator_s(QUEUED, SAMPLES)]
    working = [each.working_ms for each in beside]
    median, p99, allocator_p99 = statistics.median(working), percentile(working, 99), percentile(allocator_ms, 99)
    return [
        Figure("submit to code in a worker, median", median, "ms", None, f"under {GOAL_MEDIAN_MS:g}",
               median < GOAL_MEDIAN_MS),
        Figure("99th percentile", p99, "ms", None, f"under {GOAL_P99_MS:g}", p99 < GOAL_P99_MS),
        Figure("of it until the job was kept and answered", statistics.median(e.answered_ms for e in beside), "ms"),
        Figure("of it until the lease was granted", statistics.median(e.granted_ms for e in beside), "ms"),
        Figure("median with an empty queue", statistics.median(e.working_ms for e in empty), "ms"),
        Figure("99th percentile with an empty queue", percentile([e.working_ms for e in empty], 99), "ms"),
        Figure("the allocator alone, same state, median", statistics.median(allocator_ms), "ms"),
        Figure("the allocator alone, 99th percentile", allocator_p99, "ms", None, f"under {GOAL_ALLOCATOR_MS:g}",
               allocator_p99 < GOAL_ALLOCATOR_MS),
    ]  # fmt: skip


def fill(client: ControlClient, spec: Mapping[str, Any]) -> None:
    """Queue `QUEUED` jobs: some alone, most in arrays."""
    for _ in range(ALONE):
        client.call("job.submit", spec=dict(spec))
    left = QUEUED - ALONE
    while left:
        count = min(left, MAX_JOBS_AT_ONCE)
        client.call("job.submit", spec={**spec, "devices": count})
        left -= count


def samples(farm: VirtualFarm, spec: Mapping[str, Any], count: int) -> Iterator[Sample]:
    """`count` jobs, each when the one before it has given the phone back."""
    for number in range(WARM_UP + count):
        seq = farm.status()["seq"]
        begun = time.time()
        job = farm.client.call("job.submit", spec=dict(spec))["jobs"][0]["id"]
        answered = time.time()
        sample = one(farm, seq, job, begun, answered)
        if number >= WARM_UP:
            yield sample


def one(farm: VirtualFarm, seq: int, job: str, begun: float, answered: float) -> Sample:
    """Follow a job until its lease has ended.

    Raises:
        HostError: it failed, or did not come so far in time.
    """
    granted = working = 0.0
    try:
        for event in farm.events(seq, timeout_s=WAIT_S):
            at, told = datetime.fromisoformat(event["at"]).timestamp(), event["data"]
            if event["kind"] == "lease.granted" and told.get("job") == job:
                granted, lease = at, event["subject"]
            elif event["kind"] == "job.progress" and event["subject"] == job and told["step"] == FIRST_STEP:
                working = working or at
            elif event["kind"] == "job.failed" and event["subject"] == job:
                raise HostError(f"job {job} failed: {farm.client.call('job.show', job=job)['job']['error']}")
            elif event["kind"] == "lease.released" and granted and event["subject"] == lease:
                break
    except TimeoutError as error:
        raise HostError(f"job {job} did not come to its end: {error}") from error
    if not working:
        raise HostError(f"job {job} never said {FIRST_STEP!r}")
    return Sample(1e3 * (answered - begun), 1e3 * (granted - begun), 1e3 * (working - begun))


def allocator_s(waiting: int, count: int) -> Iterator[float]:
    """What a request costs that is granted at once, with `waiting` others that are not: seconds."""
    allocator, now_s = Allocator(), 1000.0
    allocator.apply(DeviceChanged(_phone("idle")), now_s)
    for number in range(waiting):
        allocator.apply(RequestCame(f"waits-{number}", _request(NEVER)), now_s)
    for number in range(count):
        now_s += 1.0
        begun = time.perf_counter()
        decision = allocator.apply(RequestCame(f"asks-{number}", _request("android")), now_s)
        seconds = time.perf_counter() - begun
        if [grant.device for grant in decision.grants] != ["idle"]:
            raise AssertionError(f"an idle phone was not granted: {decision}")
        begun = time.perf_counter()
        allocator.apply(LeaseEnded("idle"), now_s + 0.5)
        yield seconds + time.perf_counter() - begun


def _phone(name: str) -> DeviceView:
    return DeviceView(
        name, f"serial-{name}", Life.READY, adopted=True, aliases=("android", name), labels={"name": name}
    )


def _request(selector: str) -> LeaseRequest:
    return LeaseRequest(Selector.parse(selector), "ann", Door.JOB, lease_class=LeaseClass.BENCH, worker=True)
