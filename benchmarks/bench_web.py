"""What pages cost with 200 devices and 10,000 jobs: from request to the last byte, through real HTTP on loopback.

The wall is measured over 200 devices that are ready and have a day of readings, made up in a process of their own: so
many virtual phones would measure this host. The other pages are a real daemon's, with a few live phones among 200 that
it knows, and 10,000 jobs that wait. Another client pings the daemon meanwhile: what it waits is what pages hold up.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psutil

from benchmarks.bench_dispatch import add, arrays_of
from benchmarks.bench_scrape import busy_lab, device, holder, process_registry
from benchmarks.harness import Context, Figure, asked, percentile, under
from benchmarks.whole_farm import PROFILES
from farm.common.events import EventLog
from farm.config import WebConfig
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Accounts
from farm.control.server import ControlServer
from farm.control.verbs.device import ReadingsVerbs
from farm.control.verbs.fleet import DaemonFacts, FleetVerbs
from farm.control.verbs.lease import LeaseVerbs
from farm.devices.health.series import COARSE_S, FleetReadings, columns_of
from farm.head.model import WaitingPage
from farm.head.planning import plan
from farm.kinds import KINDS
from farm.leasing.lab_view import LabView
from farm.metrics.exposition import rendered
from farm.model.device import DeviceView
from farm.model.job import Job
from farm.model.specs import spec_from_wire
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm
from farm.store.devices import DeviceRecord
from farm.store.store import Store
from farm.web.app import create_app
from farm.web.server import WebServer
from farm.zoo import small_cnn as build

DEVICES, JOBS, LIVE = 200, 10_000, 3
ROUNDS = 150
WARM_UP = 3  # templates are compiled when they are first used
PROBED_EVERY_S = 10.0
JOB_LIMIT_S = 300.0
GOAL_MS = 100.0
PART = "what changes of it"  # asked for as an open page does
OF_A_FLEET = {
    "fleet wall": "/",
    PART: "/",
    "its filter": "/?text=oneplus",
    "readings of a day": "/devices/oneplus-12-0/readings?seconds=86400",
    "metrics": "/metrics",
}
CONFIG = f"[quota]\njobs = {2 * JOBS}\n"


def run(context: Context) -> list[Figure]:
    """Each page's median and 99th percentile."""
    context.say(f"{DEVICES} devices with a day of readings each")
    with made_up_fleet(context.folder) as (url, pid):
        figures = pages(url, pid, OF_A_FLEET)
    with virtual_farm(phones_of(PROFILES[:LIVE]), config=CONFIG, report=context.say) as farm:
        farm.wait_ready(LIVE)
        name = farm.status()["devices"][0]["name"]
        context.say("a bench and a tuning are done")
        ended = finished(farm, context.folder)
        context.say(f"{JOBS} jobs and {DEVICES - LIVE} absent phones are put into the database")
        job = fill(farm)
        farm.wait_ready(LIVE)
        wanted = {
            "device": f"/devices/{name}", "leases": "/leases", "bundles": "/bundles", "jobs": "/jobs",
            "jobs, searched": "/jobs?text=small", "jobs, sorted": "/jobs?sort=-what",
            "models and phones": "/history", "job": f"/jobs/{job}", "queue": "/queue", **ended,
        }  # fmt: skip
        context.say(f"{ROUNDS} requests for each of {len(wanted)} pages")
        with asked(farm.socket, "ping") as waited_s:
            status = farm.status()
            figures += pages(status["web"], status["pid"], wanted)
    p99_ms = 1e3 * percentile(waited_s, 99)
    return [*figures, Figure("the job door's ping meanwhile, 99th percentile", p99_ms, "ms", None, "", True)]


def pages(url: str, pid: int, wanted: Mapping[str, str]) -> list[Figure]:
    """Median and 99th percentile of each, and what a busy host does not blur: the server's own CPU time."""
    server = psutil.Process(pid)
    figures: list[Figure] = []
    for name, path in wanted.items():
        before_s = sum(server.cpu_times()[:2])
        times_ms, size = requests_ms(url, path, {"hx-request": "true"} if name == PART else {})
        cpu_ms = 1e3 * (sum(server.cpu_times()[:2]) - before_s) / (WARM_UP + ROUNDS)
        p99 = percentile(times_ms, 99)
        figures += [
            Figure(f"{name}, median ({size / 1e3:.0f} kB)", percentile(times_ms, 50), "ms"),
            under(f"{name}, 99th percentile", p99, "ms", GOAL_MS),
            Figure(f"{name}, CPU of the server", cpu_ms, "ms"),
        ]
    return figures


def requests_ms(url: str, path: str, headers: Mapping[str, str]) -> tuple[list[float], int]:
    """Milliseconds of each request over one connection, and the last answer's bytes.

    Raises:
        ValueError: a page is no page.
    """
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
    times_ms: list[float] = []
    body = b""
    for number in range(WARM_UP + ROUNDS):
        begun = time.perf_counter()
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        body = answer.read()
        if number >= WARM_UP:
            times_ms.append(1e3 * (time.perf_counter() - begun))
        if answer.status != 200:
            raise ValueError(f"{path} answers {answer.status}")
    connection.close()
    return times_ms, len(body)


def finished(farm: VirtualFarm, folder: Path) -> dict[str, str]:
    """Pages of what was measured: a bench with its plots, a tuning with its curve, what they left.

    Raises:
        ValueError: a job did not end well.
    """
    model = folder / "small_cnn.onnx"
    model.write_bytes(build().SerializeToString(deterministic=True))
    pages = {"history": f"/history?model={model.name}", "records": "/records"}
    for kind, *options in (("bench", "--measure", "6"), ("tune", "--trials", "16")):
        done = farm.farm(kind, str(model), "--on", "android", *options, timeout_s=JOB_LIMIT_S)
        jobs = farm.client.call("job.list", of_kind=kind, state=["done"], limit=1)["jobs"]
        if not jobs:
            raise ValueError(f"farm {kind} is not done: {done.stderr[-300:]}")
        pages[f"done {kind}"] = f"/jobs/{jobs[0]['id']}"
    return pages


def fill(farm: VirtualFarm) -> str:
    """Jobs that wait for a phone nobody has, and phones that are away; returns the id of a job."""
    model = farm.client.put_artifact(build().SerializeToString(deterministic=True))
    ids = (f"bench-{number:06}" for number in count())
    jobs: list[Job] = []
    for size in arrays_of(JOBS):
        spec = {"kind": "bench", "model": model, "name": "small.onnx", "on": "name=absent-1", "devices": size}
        jobs += plan(spec_from_wire(KINDS, spec), "ann", (), datetime.now(UTC), ids, must_match=False).jobs
    farm.daemon.kill()
    database = farm.folder / "state" / "farm.db"
    asyncio.run(add(database, jobs))
    asyncio.run(add_phones(database))
    farm.daemon.start().close()
    farm.client.close()
    return jobs[0].id


async def add_phones(database: Path) -> None:
    """Phones that were adopted once."""
    store = Store.open(database)
    try:
        phones = [
            DeviceRecord(f"absent-serial-{number}", f"absent-{number}", pool="lab", adopted=True)
            for number in range(1, DEVICES - LIVE + 1)
        ]
        await store.devices.replace([phone.serial for phone in phones], phones)
    finally:
        store.close()


# --- a fleet that is made up --------------------------------------------------------------------------------------


@contextmanager
def made_up_fleet(folder: Path) -> Iterator[tuple[str, int]]:
    """A page over `DEVICES` devices in a process of its own; yields its address and process id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(folder, theirs), daemon=True)
    process.start()
    theirs.close()  # so that its end is seen here
    try:
        assert process.pid is not None
        yield ours.recv(), process.pid
    finally:
        ours.send("stop")
        process.join()


class _Fleet:
    """The devices."""

    def __init__(self) -> None:
        self._views = tuple(device(number) for number in range(DEVICES))

    def note_view(self) -> None:
        """Nothing is looked for while somebody looks."""

    def views(self) -> Sequence[DeviceView]:
        return self._views

    def view(self, name: str) -> DeviceView:
        return next(view for view in self._views if view.name == name)


class _Head:
    """The host is not drained, and nobody waits."""

    drained = ""

    async def waiting(self, _limit: int) -> WaitingPage:
        return WaitingPage(())


class _Leasing:
    """Every other device is held, for no job."""

    def __init__(self, fleet: _Fleet) -> None:
        self.active, self.head, self.wall = self, _Head(), partial(datetime.now, UTC)
        self._holders = tuple(holder(view, number) for number, view in enumerate(fleet.views()) if number % 2)

    def holders(self) -> Any:
        return self._holders


def _serve(folder: Path, pipe: Connection) -> None:
    asyncio.run(_serving(folder, pipe))


async def _serving(folder: Path, pipe: Connection) -> None:
    fleet, events, series = _Fleet(), EventLog(1), FleetReadings()
    _read_a_day(fleet, series)
    desk = ControlServer(folder / "control.sock", artifacts=ArtifactFolder(folder / "artifacts"))

    async def no_problems() -> list[str]:
        return []

    facts = DaemonFacts(
        "bench", 1, lambda: ("127.0.0.1", 9190), lambda: {"server_info": [], "queue_info": {}}, "", no_problems
    )
    leasing, aliases = cast("Any", _Leasing(fleet)), cast("Any", None)
    FleetVerbs(cast("Any", fleet), leasing, aliases, events, facts).register(desk)
    LeaseVerbs(
        cast("Any", fleet), leasing, aliases, events, records=Store.open(folder / "farm.db").leases, lab=LabView(),
        head=leasing.head, adb_key=folder, explain_job=cast("Any", None), notes_of=lambda _: {}, heat_note=str,
    ).register(desk)  # fmt: skip
    ReadingsVerbs(cast("Any", fleet), series).register(desk)
    collector, process = busy_lab(folder), process_registry()

    async def scrape(accept: str) -> tuple[bytes, str]:
        return await asyncio.to_thread(rendered, collector.read(), accept, process=process)

    app = create_app(
        desk,
        Accounts(cast("Any", None)),
        events,
        scrape,
        WebConfig(),
    )
    server = WebServer("127.0.0.1", 0)
    server.start(app)
    gc.collect()
    gc.freeze()  # as the daemon does when it is ready
    pipe.send(server.url)
    await asyncio.to_thread(pipe.recv)
    await server.stop()


def _read_a_day(fleet: _Fleet, series: FleetReadings) -> None:
    """The last hour as often as probes come, the day before it at a tenth of that: the rings are full either way."""
    now_s = time.time()
    clock = [0.0]
    series.clock = lambda: clock[0]
    times = [now_s - COARSE_S + 10 * PROBED_EVERY_S * n for n in range(int(COARSE_S / PROBED_EVERY_S / 10))]
    times += [now_s - 3600.0 + PROBED_EVERY_S * n for n in range(int(3600 / PROBED_EVERY_S))]
    for view in fleet.views():
        assert view.health is not None
        row = columns_of(view.health, 40.0)
        of_it = series._series.setdefault(view.serial, series.of(view.serial))  # noqa: SLF001 (quicker than by probes)
        for at_s in sorted(times):
            of_it.add(at_s, {column: value + at_s % 7 for column, value in row.items()})
    series.clock = time.time
