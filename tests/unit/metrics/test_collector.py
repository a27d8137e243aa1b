"""One scrape: what is told of devices, leases and the daemon, and what never is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_plain

from benchmarks.bench_scrape import device, fill, holder
from farm.core.device import DeviceView, Life
from farm.core.events import EventLog
from farm.core.health import Health, SensorGroup, Temperature
from farm.core.histogram import Histogram
from farm.core.requests import LeaseClass
from farm.leasing.model import Holder
from farm.metrics import FarmCollector, Sources, exposition
from farm.metrics.catalogue import METRICS
from farm.metrics.devices import MOST_NAMES, MOST_SENSORS, shown_sensors
from farm.metrics.exposition import OPEN, PLAIN, rendered
from farm.metrics.page import Page
from tests.support.stock_metrics import StockPage


class Lab:
    """A collector over made-up parts."""

    def __init__(self, folder: Path) -> None:
        self.views = {view.name: view for view in (device(0), device(1), device(2))}
        self.now = 1000.0
        self.events = EventLog()
        self.quarantined: dict[str, str] = {}
        self.holders: tuple[Holder, ...] = (holder(self.views["oneplus-12-1"], 1),)
        self.problem = ""
        self.listener: Callable[[DeviceView], None] = lambda _: None
        self.collector = FarmCollector(
            Sources(
                version="1.2.3",
                epoch=7,
                state_dir=folder,
                views=lambda: tuple(self.views.values()),
                quarantined=lambda: self.quarantined,
                holders=lambda: self.holders,
                depth=lambda: {LeaseClass.BENCH: 4},
                longest_s=lambda: {LeaseClass.BENCH: 30.0},
                jobs=lambda: {("tune", "queued"): 9},
                toolchains=lambda: {"default": (True, 2)},
                store_problem=lambda: self.problem,
                pulses=lambda: [("the allocator", 0.5, 30.0)],
            ),
            monotonic=lambda: self.now,
        )

    def follow(self) -> None:
        def subscribe(listener: Callable[[DeviceView], None]) -> Callable[[], None]:
            self.listener = listener
            return lambda: None

        self.collector.follow(self.events, subscribe)

    def show(self, view: DeviceView) -> None:
        self.views[view.name] = view
        self.listener(view)

    def lease(self, what: str, lease: str, **data: object) -> None:
        self.events.publish(f"lease.{what}", lease, device="oneplus-12-2", user="ann", key="", fence=1, **data)

    def read(self) -> Page:
        return self.collector.read()

    def value(self, metric: str, *labels: str) -> float:
        return self.read().values[metric][labels]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    lab.follow()
    return lab


def test_states_and_holders(lab: Lab) -> None:
    page = lab.read()
    assert page.values["farm_devices"] == {("idle",): 2, ("leased",): 1, ("quarantined",): 0}
    assert page.values["farm_device_leased"]["oneplus-12-1",] == 1
    assert page.values["farm_user_leases"] == {("user-1",): 1}
    assert page.values["farm_requests_waiting"]["bench",] == 4
    assert page.values["farm_requests_oldest_wait_seconds"]["interactive",] == 0


def test_time_goes_to_the_state_it_was_spent_in(lab: Lab) -> None:
    lab.now += 5
    lab.read()
    lab.quarantined["serial-2"] = "wrong"
    lab.show(replace(lab.views["oneplus-12-2"], life=Life.QUARANTINED))
    lab.now += 7
    seconds = lab.read().values["farm_device_state_seconds"]
    assert seconds["oneplus-12-2", "idle", ""] == 5
    assert seconds["oneplus-12-2", "quarantined", "wrong"] == 7
    assert lab.value("farm_device_quarantined", "oneplus-12-2", "wrong") == 1


def test_leases_between_two_scrapes_are_counted_to_the_second(lab: Lab) -> None:
    lab.holders = ()
    lab.read()
    for number in range(4):
        lab.now += 0.5
        lab.lease("granted", f"lease-{number}", job="", lease_class="bench", door="tvm", waited_s=0.1)
        lab.now += 14
        lab.lease("released", f"lease-{number}", reason="", held_s=14.0)
        lab.now += 0.5
    seconds = lab.read().values["farm_device_state_seconds"]
    assert seconds["oneplus-12-2", "leased", ""] == 56
    assert seconds["oneplus-12-2", "idle", ""] == 4


def test_a_stranger_is_counted_and_not_named(lab: Lab) -> None:
    lab.show(replace(device(3), name="stranger", adopted=False))
    page = lab.read()
    assert page.values["farm_devices_unadopted"][()] == 1
    assert b"stranger" not in rendered(page, openly=False)


def test_no_serial_number_is_told(lab: Lab) -> None:
    assert b"serial-" not in rendered(lab.read(), openly=True)


def test_a_device_that_is_renamed_or_no_longer_adopted_takes_its_series_along(lab: Lab) -> None:
    lab.read()
    lab.show(replace(lab.views["oneplus-12-2"], adopted=False))
    assert b'"oneplus-12-2"' not in rendered(lab.read(), openly=False)


def test_the_age_of_a_probe(lab: Lab) -> None:
    lab.now += 12
    assert lab.value("farm_device_probe_age_seconds", "oneplus-12-0") == 12
    view = lab.views["oneplus-12-0"]
    assert view.health is not None
    lab.show(replace(view, health=replace(view.health, load_1min=3.0)))
    assert lab.value("farm_device_probe_age_seconds", "oneplus-12-0") == 0


def test_readings_in_base_units(lab: Lab) -> None:
    page = lab.read()

    def read(metric: str, *more: str) -> float:
        return page.values[f"farm_device_{metric}"]["oneplus-12-0", *more]

    assert read("battery_level_ratio") == 0.8
    assert read("battery_volts") == 4.1
    assert read("battery_amperes") == 0.25
    assert read("battery_capacity_ratio") == 0.8
    assert read("battery_healthy") == 1
    assert read("cpu_clock_hertz", "4") == 1.8e9
    assert read("gpu_clock_limit_hertz") == 6.8e8


def test_what_nobody_knows_is_no_sample(lab: Lab) -> None:
    lab.show(replace(lab.views["oneplus-12-0"], health=None))
    page = lab.read()
    assert ("oneplus-12-0",) not in page.values["farm_device_battery_level_ratio"]
    assert ("oneplus-12-0",) in page.values["farm_device_up"]


def test_the_hottest_sensor_of_each_group_is_among_the_few_that_are_shown() -> None:
    many = [
        Temperature(f"{group}-{number}", 30.0 + number, group, "zone") for group in SensorGroup for number in range(9)
    ]
    shown = shown_sensors(Health(temperatures=tuple(many)))
    assert len(shown) == MOST_SENSORS
    assert {f"{group}-8" for group in SensorGroup} <= {each.sensor for each in shown}


def test_the_one_temperature_is_told_as_status_tells_it(lab: Lab) -> None:
    zone = Temperature("cpu-1", 40.7, SensorGroup.CPU, "thermal_zone3")
    service = Temperature("cpu-1", 36.0, SensorGroup.CPU, "thermalservice")
    health = Health(temperatures=(service, zone))
    lab.show(replace(lab.views["oneplus-12-0"], health=health, temperature_c=36.0))
    assert lab.value("farm_device_shown_temperature_celsius", "oneplus-12-0") == 36.0
    assert lab.value("farm_device_temperature_celsius", "oneplus-12-0", "cpu", "cpu-1") == 36.0


def test_a_phone_that_names_its_sensors_anew_makes_no_series_without_end(lab: Lab) -> None:
    told: set[tuple[str, ...]] = set()
    for probe in range(20):
        names = [f"zone-{probe}-{number}" for number in range(9)]
        many = tuple(Temperature(name, 30.0, SensorGroup.OTHER, "zone") for name in names)
        lab.show(replace(lab.views["oneplus-12-0"], health=Health(temperatures=many)))
        told |= {key for key in lab.read().values["farm_device_temperature_celsius"] if key[0] == "oneplus-12-0"}
    assert len(told) == MOST_NAMES + 1


def test_the_store_and_the_watchdog(lab: Lab) -> None:
    lab.problem = "the disk is full"
    page = lab.read()
    assert page.values["farm_store_writable"][()] == 0
    assert page.values["farm_watchdog_limit_seconds"]["the allocator",] == 30
    assert page.values["farm_disk_free_bytes"][()] > 0


def rows(families: object) -> set[tuple[object, ...]]:
    """Samples of parsed text."""
    found = set()
    for family in families:  # type: ignore[attr-defined]
        assert isinstance(family, Family)
        for each in family.samples:
            found.add((family.type, family.documentation, each.name, tuple(sorted(each.labels.items())), each.value))
    return found


@pytest.mark.parametrize("openly", [False, True], ids=["text", "openmetrics"])
def test_our_text_is_prometheus_clients(lab: Lab, openly: bool) -> None:
    """The stock renderer over the same page says the same, sample for sample."""
    lab.show(replace(device(4), pool='a "pool"\\with\neverything'))
    fill(lab.events, tuple(lab.views.values()))
    page = lab.collector.read()
    registry = CollectorRegistry()
    registry.register(StockPage(lambda: page))
    if openly:
        from prometheus_client.openmetrics.exposition import generate_latest as generate

        read, accept, end = read_open, OPEN, "# EOF\n"
    else:
        generate, read, accept, end = generate_latest, read_plain, PLAIN, ""
    assert exposition(lab.collector, accept)[1] == accept
    ours, stock = rows(read(rendered(page, openly=openly).decode() + end)), rows(read(generate(registry).decode()))
    assert len(ours) > 300
    assert ours == stock


def test_every_metric_of_the_catalogue_is_announced(lab: Lab) -> None:
    body, _ = exposition(lab.collector)
    announced = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
    assert announced == {metric.shown for metric in METRICS.values()}


def test_what_the_process_says_of_itself_comes_along_in_both_formats(lab: Lab) -> None:
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    assert b"\nprocess_resident_memory_bytes " in exposition(lab.collector, process=process)[0]
    body, _ = exposition(lab.collector, OPEN, process=process)
    assert b"\nprocess_resident_memory_bytes " in body
    assert body.endswith(b"# EOF\n")
    assert body.count(b"# EOF") == 1


def test_prometheus_finds_nothing_to_complain_of(lab: Lab) -> None:
    """The real linter over every kind of series."""
    if shutil.which("promtool") is None:
        pytest.skip("no promtool: Debian's package is called prometheus")
    fill(lab.events, tuple(lab.views.values()))
    body, _ = exposition(lab.collector)
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_histograms_are_cumulative() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    assert histogram.total == pytest.approx(7.65)
