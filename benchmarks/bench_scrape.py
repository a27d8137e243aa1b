"""What one scrape of /metrics costs the daemon's event loop with 200 devices, a full ledger and 10,000 jobs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, GCCollector, ProcessCollector, generate_latest

from benchmarks.harness import Context, Figure, percentile, under
from farm.common.events import EventLog
from farm.common.histogram import QUICK_S, Histogram
from farm.common.selector import Selector
from farm.leasing.model import Holder
from farm.metrics.collector import FarmCollector, Sources
from farm.metrics.exposition import OPEN, PLAIN, rendered
from farm.metrics.process import QueueFigures
from farm.model.device import DeviceView, Life
from farm.model.health import Battery, ClusterReading, GpuReading, Health, SensorGroup, Temperature, ThrottleStatus
from farm.model.requests import Lease, LeaseClass, LeaseRequest, LeaseSource

DEVICES, JOBS, ROUNDS = 200, 10_000, 40
GOAL_MS = 50.0
GOAL_OF_BARE = 0.3  # of the processor, on the event loop
SENSORS = dict.fromkeys(SensorGroup, 6)  # of a device: 30, of which 12 are told


def run(context: Context) -> list[Figure]:
    """The event loop waits until the page is read; a thread renders it. With HTTP: `bench web`."""
    collector, process = busy_lab(context.folder), process_registry()
    first_ms, first_busy_ms = timed(collector.read)
    rounds = [timed(collector.read) for _ in range(ROUNDS)]
    page = collector.read()
    opened = [timed(lambda: rendered(page, OPEN, process=process))[0] for _ in range(ROUNDS)]
    plain = [timed(lambda: rendered(page, PLAIN, process=process))[0] for _ in range(ROUNDS)]
    text = rendered(page, PLAIN, process=process)[0]
    samples = sum(not line.startswith(b"#") for line in text.splitlines())
    bare = bare_registry(samples)
    bare_ms = percentile([timed(lambda: generate_latest(bare))[1] for _ in range(ROUNDS)], 50)
    busy_ms = percentile([cpu for _, cpu in rounds], 50)
    return [
        Figure("the first page read, processor time; stock: a bare exposition", first_busy_ms, "ms", bare_ms),
        under("a page read, processor time by that of a bare exposition", busy_ms / bare_ms, "times", GOAL_OF_BARE),
        under(f"{DEVICES} devices: the first page read on the event loop", first_ms, "ms", GOAL_MS),
        under(f"{DEVICES} devices: a page read, p95", percentile([wall for wall, _ in rounds], 95), "ms", GOAL_MS),
        Figure(f"{DEVICES} devices: a page read, processor time, median", busy_ms, "ms", bare_ms),
        Figure(f"{DEVICES} devices: OpenMetrics rendered in a thread, median", percentile(opened, 50), "ms"),
        Figure(f"{DEVICES} devices: text format rendered in a thread, median", percentile(plain, 50), "ms"),
        Figure("samples", samples, ""),
        Figure("size", len(text) / 1e3, "kB"),
    ]


def busy_lab(folder: Path) -> FarmCollector:
    """A collector over `DEVICES` devices, every other one leased, `JOBS` jobs and a full ledger."""
    views = tuple(device(number) for number in range(DEVICES))
    jobs = [("bench", "queued")] * (JOBS // 2) + [("tune", "running")] * (JOBS // 2)
    holders = tuple(holder(view, number) for number, view in enumerate(views) if number % 2)
    collector = FarmCollector(
        Sources(
            version="bench", epoch=1, state_dir=folder, views=lambda: views, holders=lambda: holders,
            queue=QueueFigures(jobs=lambda: Counter(jobs)),
            round_trips={"server": Histogram(QUICK_S), "phone": Histogram(QUICK_S)},
        )
    )  # fmt: skip
    events = EventLog()
    collector.follow(events, subscribe)
    fill(events, views)
    return collector


def process_registry() -> CollectorRegistry:
    """What the daemon's page has besides (farm.daemon.monitoring)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def bare_registry(samples: int) -> CollectorRegistry:
    """As many series as a page has, and nothing else."""
    registry = CollectorRegistry()
    gauge = Gauge("bare", "Nothing.", ("device", "sensor"), registry=registry)
    for number in range(samples):
        gauge.labels(f"oneplus-12-{number % DEVICES}", f"sensor-{number // DEVICES}").set(number / 10)
    return registry


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds, and those of the processor."""
    begun, busy = time.perf_counter(), time.thread_time()
    work()
    return 1e3 * (time.perf_counter() - begun), 1e3 * (time.thread_time() - busy)


def subscribe(_: Callable[[DeviceView], None]) -> Callable[[], None]:
    """Nothing changes here."""
    return lambda: None


def device(number: int) -> DeviceView:
    """One phone with everything a probe can tell."""
    temperatures = tuple(
        Temperature(f"{group}-therm-{sensor}", 30.0 + sensor + number / 100, group, "thermalservice")
        for group, count in SENSORS.items()
        for sensor in range(count)
    )
    health = Health(
        uptime_s=1000.0 + number, load_1min=0.4, temperatures=temperatures, throttle=ThrottleStatus.NONE,
        battery=Battery(80, 31.5, 4100, 250.0, "good", "charging", ("usb",), 312, 4_000_000, 5_000_000),
        gpu=GpuReading(clock_hz=680_000_000, max_hz=680_000_000),
        cpu=tuple(ClusterReading((first,), 1_800_000, 300_000, 2_800_000) for first in (0, 4, 7)),
        memory_total_bytes=8 << 30, memory_available_bytes=3 << 30,
        data_total_bytes=100 << 30, data_free_bytes=60 << 30,
    )  # fmt: skip
    name = f"oneplus-12-{number}"
    labels = {"model": "cph2581", "soc": "sm8650", "gpu": "adreno-750"}
    return DeviceView(
        name, f"serial-{number}", Life.READY, adopted=True, pool="lab", labels=labels, health=health,
        since=datetime.now(UTC),
    )  # fmt: skip


def holder(view: DeviceView, number: int) -> Holder:
    """Somebody who has it."""
    request = LeaseRequest(Selector(), f"user-{number}", LeaseSource.JOB, lease_class=tuple(LeaseClass)[number % 3])
    return Holder(Lease(f"lease-1-{number}", view.name, number, request, 0.0), 10.0 + number)


def fill(events: EventLog, views: tuple[DeviceView, ...]) -> None:
    """Every kind of series that a bad day brings."""
    for number, view in enumerate(views):
        for kind in ("ready", "recovering", "offline", "ready"):
            events.publish(f"device.{kind}", view.name)
        action = ("reap", "restart-server", "re-push", "reconnect", "reboot", "power-cycle", "quarantine")[number % 7]
        fault = ("session", "server", "start", "check", "wrong", "stuck", "gpu", "mute", "offline")[number % 9]
        events.publish("recovery.action", view.name, action=action, fault=fault)
        outcome = ("repaired", "failed", "cut")[number % 3]
        events.publish("recovery.ended", view.name, action=action, outcome=outcome, took_s=3.0)
        events.publish(
            "lease.granted", f"lease-1-{number}", lease_class=("interactive", "bench", "tune")[number % 3],
            source=("tvm", "job")[number % 2], waited_s=1.0,
        )  # fmt: skip
