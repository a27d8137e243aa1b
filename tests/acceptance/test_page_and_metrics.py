"""The web page and /metrics of a real daemon with a virtual phone: every page, a token from its making, what counts."""

import subprocess

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from farm.client import Client
from farm.metrics.catalogue import METRICS
from farm.metrics.exposition import OPEN, PLAIN
from tests.support.needs import need
from tests.support.whole_farm import phones, until, until_ready

pytestmark = pytest.mark.farm("oneplus-12", config="[probe]\nevery_s = 0.2\n")


def scrape(farm, accept=OPEN):
    answer = httpx.get(f"{farm.status()['web']}metrics", headers={"accept": accept})
    assert answer.status_code == 200
    return answer


def samples(farm):
    """Value by name and label values, in the catalogue's order."""
    order = {name: metric.labels for metric in METRICS.values() for name in metric.series}
    families = text_string_to_metric_families(scrape(farm).text)
    return {
        (each.name, *(each.labels[label] for label in order.get(each.name, sorted(each.labels)))): each.value
        for family in families
        for each in family.samples
    }


def test_both_formats_and_no_complaint(farm):
    assert scrape(farm).headers["content-type"] == OPEN
    plain = scrape(farm, "text/html")
    assert plain.headers["content-type"] == PLAIN
    assert b"\nprocess_resident_memory_bytes " in plain.content
    need("promtool")
    done = subprocess.run(["promtool", "check", "metrics"], input=plain.content, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_way_to_a_ready_phone_is_counted(farm):
    (phone,) = phones(farm)
    name = phone.name
    until(lambda: ("farm_device_battery_level_ratio", name) in samples(farm))
    found = samples(farm)
    assert found["farm_devices", "idle"] == 1
    assert found["farm_device_up", name] == 1
    assert found["farm_device_state_seconds_total", name, "provisioning", ""] > 0
    assert 0 <= found["farm_device_probe_age_seconds", name] < 60
    assert any(key[:2] == ("farm_device_temperature_celsius", name) for key in found)
    for counted in (
        ("farm_adb_round_trip_seconds_count", "phone"),
        ("farm_adb_round_trip_seconds_count", "server"),
        ("farm_store_commit_seconds_count",),
        ("farm_allocator_decision_seconds_count",),
        ("farm_event_loop_delay_seconds_count",),
        ("farm_toolchain_starts_total", "default"),
        ("farm_workers_ended_total", "default", "done"),  # golden kernels
        ("farm_sessions_total", "closed"),
        ("farm_relay_bytes_total", "up"),
        ("farm_store_size_bytes",),
        ("farm_disk_free_bytes",),
        ("farm_watchdog_limit_seconds", "the allocator"),
        ("farm_watchdog_limit_seconds", "the store"),
    ):
        until(lambda counted=counted: samples(farm).get(counted, 0) > 0)


def test_a_lease_is_counted_while_it_lasts_and_when_it_ends(farm):
    (phone,) = phones(farm)
    with Client(farm.socket) as client, client.lease(on=phone.name):
        found = samples(farm)
        assert found["farm_devices", "leased"] == 1
        assert found["farm_leases", "interactive", "job"] == 1
        assert found["farm_time_to_device_seconds_count", "interactive", "job"] == 1
        assert found["farm_jobs", "lease", "running"] == 1
    until_ready(farm)
    until(lambda: samples(farm)["farm_devices", "idle"] == 1)
    found = samples(farm)
    assert found["farm_lease_duration_seconds_count",] == 1
    assert found["farm_jobs_submitted_total", "lease"] == 1
    assert sum(value for key, value in found.items() if key[0] == "farm_jobs_ended_total") == 1
    assert sum(value for key, value in found.items() if key[0] == "farm_user_device_seconds_total") > 0
    assert found["farm_calls_total", "ok"] >= 1
