"""One scrape: what is told of devices, leases and the daemon, and what never is."""

import subprocess
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_plain

from benchmarks.bench_scrape import device, fill, holder
from farm.common.events import EventLog
from farm.common.histogram import Histogram
from farm.common.systemd import ProgressCheck
from farm.head.host_rules import HostState
from farm.leasing.lab_view import HostView, LabPicture
from farm.metrics.catalogue import METRICS
from farm.metrics.collector import FarmCollector, Sources
from farm.metrics.devices import MAX_NAMES, MAX_SENSORS, shown_sensors
from farm.metrics.exposition import OPEN, PLAIN, rendered
from farm.metrics.process import QueueFigures
from farm.model.device import Life, Service
from farm.model.health import Health, SensorGroup, Temperature
from farm.model.requests import LeaseClass
from tests.support.needs import need


class Lab:
    """A collector over made-up parts."""

    def __init__(self, folder):
        self.views = {view.name: view for view in (device(0), device(1), device(2))}
        self.now, self.problem, self.quarantined = 1000.0, "", {}
        self.events, self.listener = EventLog(), lambda _: None
        self.holders = (holder(self.views["oneplus-12-1"], 1),)
        sources = Sources(
            version="1.2.3", epoch=7, state_dir=folder, views=lambda: tuple(self.views.values()),
            quarantined=lambda: self.quarantined,
            away_limit_s=lambda pool: 86400.0 if pool == "spare" else 900.0,
            holders=lambda: self.holders,
            queue=QueueFigures(
                depth=lambda: {LeaseClass.BENCH: 4}, longest_s=lambda: {LeaseClass.BENCH: 30.0},
                jobs=lambda: {("tune", "queued"): 9},
            ),
            toolchains=lambda: {"default": (True, 2)}, store_problem=lambda: self.problem,
            progress=[ProgressCheck("the allocator", lambda: 0.5, 30.0)],
        )  # fmt: skip
        self.collector = FarmCollector(sources, monotonic=lambda: self.now, clock=self.clock)
        self.collector.follow(self.events, self.subscribe)
        self.read = self.collector.read

    def clock(self):
        return datetime.fromtimestamp(self.now, UTC)

    def subscribe(self, listener):
        self.listener = listener
        return lambda: None

    def show(self, view):
        self.views[view.name] = view
        self.listener(view)

    def lease(self, what, lease, **data):
        self.events.publish(f"lease.{what}", lease, device="oneplus-12-2", user="ann", key="", fence=1, **data)

    def value(self, metric, *labels):
        return self.read().values[metric][labels]


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def test_a_scrape(lab, snapshot):
    """States and holders, waiting requests, the watchdog, and readings in base units."""
    body, _ = rendered(lab.read())
    assert lab.value("farm_disk_free_bytes") > 0
    changing = ("#", "farm_disk_", "farm_heap_", "farm_daemon_start_", "farm_scrape_duration_")
    lines = [line for line in body.decode().splitlines() if not line.startswith(changing) and "_bucket{" not in line]
    snapshot("\n".join(lines))


def test_time_goes_to_the_state_it_was_spent_in(lab):
    lab.now += 5
    lab.read()
    lab.quarantined["serial-2"] = "wrong"
    lab.show(replace(lab.views["oneplus-12-2"], life=Life.QUARANTINED))
    lab.now += 7
    seconds = lab.read().values["farm_device_state_seconds"]
    assert seconds["oneplus-12-2", "idle", ""] == 5
    assert seconds["oneplus-12-2", "quarantined", "wrong"] == 7
    assert lab.value("farm_device_quarantined", "oneplus-12-2", "wrong") == 1


def test_leases_between_two_scrapes_are_counted_to_the_second(lab):
    lab.holders = ()
    lab.read()
    for number in range(4):
        lab.now += 0.5
        lab.lease("granted", f"lease-{number}", job="", lease_class="bench", source="tvm", waited_s=0.1)
        lab.now += 14
        lab.lease("released", f"lease-{number}", reason="", held_s=14.0)
        lab.now += 0.5
    seconds = lab.read().values["farm_device_state_seconds"]
    assert seconds["oneplus-12-2", "leased", ""] == 56
    assert seconds["oneplus-12-2", "idle", ""] == 4


def test_a_phone_is_away_from_its_loss_until_it_is_ready_whatever_it_goes_through(lab):
    view = lab.views["oneplus-12-2"]
    for life in (Life.GONE, Life.OFFLINE, Life.GONE, Life.IDENTIFYING, Life.RECOVERING):
        lab.show(replace(view, life=life))
        lab.now += 200.0
    assert lab.value("farm_device_away_seconds", view.name) == 1000.0
    assert lab.value("farm_device_away_seconds", "oneplus-12-1") == 0.0
    assert lab.value("farm_device_away_limit_seconds", view.name) == 900.0
    lab.show(replace(view, life=Life.GONE, pool="spare"))
    assert lab.value("farm_device_away_limit_seconds", view.name) == 86400.0
    for back in ({"life": Life.READY}, {"life": Life.GONE, "service": Service.MAINTENANCE}):
        lab.show(replace(view, **back))
        lab.now += 50.0
        assert lab.value("farm_device_away_seconds", view.name) == 0.0
        lab.show(replace(view, life=Life.GONE))
        lab.now += 50.0
        assert lab.value("farm_device_away_seconds", view.name) == 50.0


@pytest.mark.parametrize("life", [Life.GONE, Life.OFFLINE, Life.UNAUTHORIZED])
def test_a_phone_without_a_link_has_an_age_and_no_readings(lab, life):
    view = lab.views["oneplus-12-2"]
    lab.show(replace(view, life=life, read_at=lab.clock()))
    told = {name for name, values in lab.read().values.items() if any(view.name in labels for labels in values)}
    assert "farm_device_probe_age_seconds" in told
    assert not any("celsius" in name or "battery" in name or "clock" in name for name in told)


def test_an_unknown_phone_is_counted_and_not_named(lab):
    lab.show(replace(device(3), name="stranger", adopted=False))
    page = lab.read()
    assert page.values["farm_devices_unadopted"][()] == 1
    assert b"stranger" not in rendered(page)[0]


def test_no_serial_number_is_told(lab):
    assert b"serial-" not in rendered(lab.read(), OPEN)[0]


def test_a_device_that_is_renamed_or_no_longer_adopted_takes_its_series_along(lab):
    lab.read()
    lab.show(replace(lab.views["oneplus-12-2"], adopted=False))
    assert b'"oneplus-12-2"' not in rendered(lab.read())[0]


def test_the_age_of_a_probe(lab):
    view = lab.views["oneplus-12-0"]
    lab.show(replace(view, read_at=lab.clock()))
    lab.now += 12
    assert lab.value("farm_device_probe_age_seconds", "oneplus-12-0") == 12
    lab.show(replace(view, read_at=lab.clock()))
    assert lab.value("farm_device_probe_age_seconds", "oneplus-12-0") == 0


def test_what_nobody_knows_is_no_sample_and_a_store_with_a_problem_is_not_writable(lab):
    lab.show(replace(lab.views["oneplus-12-0"], health=None))
    lab.problem = "the disk is full"
    values = lab.read().values
    assert ("oneplus-12-0",) not in values["farm_device_battery_level_ratio"]
    assert ("oneplus-12-0",) in values["farm_device_up"]
    assert values["farm_store_writable"][()] == 0


def test_the_hottest_sensor_of_each_group_is_among_the_few_that_are_shown():
    many = [
        Temperature(f"{group}-{number}", 30.0 + number, group, "zone") for group in SensorGroup for number in range(9)
    ]
    shown = shown_sensors(Health(temperatures=tuple(many)))
    assert len(shown) == MAX_SENSORS
    assert {f"{group}-8" for group in SensorGroup} <= {each.sensor for each in shown}


def test_the_one_temperature_is_told_as_status_tells_it(lab):
    zone = Temperature("cpu-1", 40.7, SensorGroup.CPU, "thermal_zone3")
    service = Temperature("cpu-1", 36.0, SensorGroup.CPU, "thermalservice")
    health = Health(temperatures=(service, zone))
    lab.show(replace(lab.views["oneplus-12-0"], health=health, temperature_c=36.0))
    assert lab.value("farm_device_shown_temperature_celsius", "oneplus-12-0") == 36.0
    assert lab.value("farm_device_temperature_celsius", "oneplus-12-0", "cpu", "cpu-1") == 36.0


def test_a_phone_that_names_its_sensors_anew_makes_no_series_without_end(lab):
    told = set()
    for probe in range(20):
        names = [f"zone-{probe}-{number}" for number in range(9)]
        many = tuple(Temperature(name, 30.0, SensorGroup.OTHER, "zone") for name in names)
        lab.show(replace(lab.views["oneplus-12-0"], health=Health(temperatures=many)))
        told |= {key for key in lab.read().values["farm_device_temperature_celsius"] if key[0] == "oneplus-12-0"}
    assert len(told) == MAX_NAMES + 1


@pytest.mark.parametrize(("accept", "read"), [(PLAIN, read_plain), (OPEN, read_open)], ids=["text", "openmetrics"])
def test_prometheus_reads_every_value_of_the_page(lab, accept, read):
    """Also a label with quotes, a backslash and a line's end."""
    lab.show(replace(device(4), pool='a "pool"\\with\neverything'))
    fill(lab.events, tuple(lab.views.values()))
    page = lab.read()
    body, content_type = rendered(page, accept)
    assert content_type == accept
    samples = {
        (each.name, frozenset(each.labels.items())): each.value
        for family in read(body.decode())
        for each in family.samples
    }
    for name, values in page.values.items():
        for labels, value in values.items():
            assert samples[METRICS[name].shown, frozenset(zip(METRICS[name].labels, labels, strict=True))] == value
    for name, histograms in page.histograms.items():
        for labels, (counts, total) in histograms.items():
            own = frozenset(zip(METRICS[name].labels, labels, strict=True))
            assert (samples[f"{name}_count", own], samples[f"{name}_sum", own]) == (counts[-1][1], total)
    assert len(samples) > 300


def test_a_series_of_results_that_stopped_has_the_age_of_its_last_result(tmp_path):
    age = {("net", "pixel", "bench-1"): 90000.0}
    sources = Sources(version="1", epoch=1, state_dir=tmp_path, views=tuple, results_late=lambda: age)
    assert FarmCollector(sources).read().values["farm_results_late_seconds"] == age


def test_every_metric_of_the_catalogue_is_announced(lab):
    body, _ = rendered(lab.read())
    announced = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")}
    assert announced == {metric.shown for metric in METRICS.values()}


def test_what_the_process_says_of_itself_comes_along_in_both_formats(lab):
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    assert b"\nprocess_resident_memory_bytes " in rendered(lab.read(), process=process)[0]
    body, _ = rendered(lab.read(), OPEN, process=process)
    assert b"\nprocess_resident_memory_bytes " in body
    assert body.endswith(b"# EOF\n")
    assert body.count(b"# EOF") == 1


def test_prometheus_finds_nothing_to_complain_of(lab):
    """The real linter over every kind of series."""
    need("promtool")
    fill(lab.events, tuple(lab.views.values()))
    body, _ = rendered(lab.read())
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_histograms_are_cumulative():
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    assert histogram.total == pytest.approx(7.65)


def test_a_lab_of_several_hosts_is_counted_by_state(tmp_path):
    lost = HostView("lab2", None, 1, version="1.0", state=HostState.LOST, silent_s=31.0, phones=2)
    reached = replace(lost, name="lab1", state=HostState.OK, silent_s=0.5, unreached="")
    sources = Sources(
        version="1", epoch=1, state_dir=tmp_path, views=tuple,
        lab=lambda: LabPicture(hosts=(reached, lost), term=9),
        builders_unmatched=lambda: 3,
        round_trip_s=lambda: 0.002,
    )  # fmt: skip
    values = FarmCollector(sources).read().values
    assert values["farm_lab_hosts"][("lost",)] == values["farm_lab_hosts"][("ok",)] == 1
    assert values["farm_lab_hosts"][("silent",)] == 0
    assert values["farm_lab_host_silence_seconds"] == {("lab1",): 0.5, ("lab2",): 31.0}
    assert values["farm_lab_host_reachable"] == {("lab1",): 1.0}
    assert (values["farm_lab_head_term"][()], values["farm_builders_unmatched"][()]) == (9, 3)
    assert values["farm_store_round_trip_seconds"][()] == 0.002
    one = FarmCollector(replace(sources, lab=LabPicture, round_trip_s=lambda: None)).read().values
    assert one["farm_lab_hosts"] == one["farm_store_round_trip_seconds"] == {}
