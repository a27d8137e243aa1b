"""What one scrape of /metrics costs the daemon's event loop with 200 devices, a full ledger and 10,000 jobs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from benchmarks.harness import Context, Figure, percentile, under
from farm.core.device import DeviceView, Life
from farm.core.events import EventLog
from farm.core.health import Battery, ClusterReading, GpuReading, Health, SensorGroup, Temperature, ThrottleStatus
from farm.core.histogram import QUICK_S, Histogram
from farm.core.requests import Door, Lease, LeaseClass, LeaseRequest
from farm.core.selector import Selector
from farm.leasing.model import Holder
from farm.metrics import FarmCollector, Sources, exposition
from farm.metrics.exposition import OPEN, PLAIN
from tests.support.stock_metrics import StockPage

DEVICES, JOBS, ROUNDS = 200, 10_000, 40
GOAL_MS = 50.0
SENSORS = dict.fromkeys(SensorGroup, 6)  # of a device: 30, of which 12 are told


def run(context: Context) -> list[Figure]:
    """The event loop waits for the whole of it; the first one fills the cache of labels. With HTTP: `bench web`."""
    collector, process = busy_lab(context.folder), process_registry()
    first_ms, _, size = timed(lambda: exposition(collector, OPEN, process=process)[0])
    rounds = [timed(lambda: exposition(collector, OPEN, process=process)[0]) for _ in range(ROUNDS)]
    opened, busy = [wall_ms for wall_ms, _, _ in rounds], [cpu_ms for _, cpu_ms, _ in rounds]
    plain = [timed(lambda: exposition(collector, PLAIN, process=process)[0])[0] for _ in range(ROUNDS)]
    registry = process_registry()
    registry.register(StockPage(collector.read))
    stock = [timed(lambda: generate_latest(registry))[0] for _ in range(5)]
    text = exposition(collector, PLAIN, process=process)[0]
    samples = sum(not line.startswith(b"#") for line in text.splitlines())
    return [
        under(f"{DEVICES} devices: the first scrape", first_ms, "ms", GOAL_MS),
        under(f"{DEVICES} devices: OpenMetrics, p95", percentile(opened, 95), "ms", GOAL_MS),
        Figure(f"{DEVICES} devices: OpenMetrics, processor time, median", percentile(busy, 50), "ms"),
        Figure(f"{DEVICES} devices: text format, median", percentile(plain, 50), "ms", percentile(stock, 50)),
        Figure("samples", samples, ""),
        Figure("size", size / 1e3, "kB"),
    ]


def busy_lab(folder: Path) -> FarmCollector:
    """A collector over `DEVICES` devices, every other one leased, `JOBS` jobs and a full ledger."""
    views = tuple(device(number) for number in range(DEVICES))
    jobs = [("bench", "queued")] * (JOBS // 2) + [("tune", "running")] * (JOBS // 2)
    holders = tuple(holder(view, number) for number, view in enumerate(views) if number % 2)
    collector = FarmCollector(
        Sources(
            version="bench", epoch=1, state_dir=folder, views=lambda: views, holders=lambda: holders,
            jobs=lambda: Counter(jobs),
            round_trips={"server": Histogram(QUICK_S), "phone": Histogram(QUICK_S)},
        )
    )  # fmt: skip
    events = EventLog()
    collector.follow(events, subscribe)
    fill(events, views)
    return collector


def process_registry() -> CollectorRegistry:
    """What the daemon's page has besides (farm.daemon.metering)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def timed(scrape: Callable[[], bytes]) -> tuple[float, float, int]:
    """Milliseconds, those of the processor, and bytes of one scrape."""
    begun, busy = time.perf_counter(), time.thread_time()
    size = len(scrape())
    return 1e3 * (time.perf_counter() - begun), 1e3 * (time.thread_time() - busy), size


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
    request = LeaseRequest(Selector(), f"user-{number}", Door.JOB, lease_class=tuple(LeaseClass)[number % 3])
    return Holder(Lease(f"lease-1-{number}", view.name, number, request, 0.0), 10.0 + number)


def fill(events: EventLog, views: tuple[DeviceView, ...]) -> None:
    """Every kind of series that a bad day brings."""
    for number, view in enumerate(views):
        for kind in ("ready", "recovering", "offline", "ready"):
            events.publish(f"device.{kind}", view.name)
        rung = ("reap", "restart-server", "re-push", "reconnect", "reboot", "power-cycle", "quarantine")[number % 7]
        ailment = ("session", "server", "start", "check", "wrong", "stuck", "gpu", "mute", "offline")[number % 9]
        events.publish("recovery.rung", view.name, rung=rung, ailment=ailment)
        outcome = ("mended", "failed", "cut")[number % 3]
        events.publish("recovery.ended", view.name, rung=rung, outcome=outcome, took_s=3.0)
        events.publish(
            "lease.granted", f"lease-1-{number}", lease_class=("interactive", "bench", "tune")[number % 3],
            door=("tvm", "job")[number % 2], waited_s=1.0,
        )  # fmt: skip
