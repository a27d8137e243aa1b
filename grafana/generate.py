"""Writes the dashboards beside this file: `python grafana/generate.py`. A test says that they are current.

Each panel is one line: title, unit, and its queries with their legends.
"""

# ruff: noqa: E501 - a table of panels reads line by line

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 8, 8  # of a panel; Grafana's grid has 24 columns
FARM = 'job=~"$job", instance=~"$instance"'
ONE = f'{FARM}, device=~"$device"'
# Results come from `farm export --format openmetrics`, not from a scrape: they have no job, and are days apart.
RESULT = 'model=~"$model", device=~"$device"'


@dataclass(frozen=True)
class Panel:
    """One graph, or one number."""

    title: str
    unit: str  # Grafana's: s, bytes, celsius, percentunit, short, hertz, ...
    queries: tuple[tuple[str, str], ...]  # expression, legend
    kind: str = "timeseries"  # or stat, table, state-timeline
    stacked: bool = False


def _sum(metric: str, by: str, labels: str = FARM) -> str:
    return f"sum by ({by}) ({metric}{{{labels}}})"


def _rate(metric: str, by: str, labels: str = FARM) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def _p95(metric: str, by: str = "", labels: str = FARM) -> str:
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile(0.95, sum by ({groups}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))"


def _latest(name: str, labels: str = RESULT) -> str:
    return f"last_over_time(farm_result_{name}_seconds{{{labels}}}[30d])"


DASHBOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "fleet": (
        "Farm: fleet",
        (
            Panel("Phones in service", "percentunit", ((f"farm:devices_ready:ratio{{{FARM}}}", "{{instance}}"),), "stat"),
            Panel("Requests waiting", "short", ((_sum("farm_requests_waiting", "instance"), "{{instance}}"),), "stat"),
            Panel("Alerts that page", "short", (('count(ALERTS{alertstate="firing", severity="critical"}) or vector(0)', ""),), "stat"),
            Panel("Phones by state", "short", ((_sum("farm_devices", "state"), "{{state}}"),), stacked=True),
            Panel("Device minutes of the last hour", "m", ((f"sum by (state, cause) (farm:device_minutes:by_state_1h{{{FARM}}})", "{{state}} {{cause}}"),), stacked=True),
            Panel("Time with a lease", "percentunit", ((f"farm:devices_leased:ratio_1h{{{FARM}}}", "{{instance}}"),)),
            Panel("Time to a phone, 95 %", "s", ((f"farm:time_to_device_seconds:p95_1h{{{FARM}}}", "{{class}}"),)),
            Panel("Requests waiting by class", "short", ((_sum("farm_requests_waiting", "class"), "{{class}}"),), stacked=True),
            Panel("Quarantines now", "short", ((_sum("farm_device_quarantined", "device, fault"), "{{device}}: {{fault}}"),), "table"),
            Panel("Temperature of each phone", "celsius", ((f"farm_device_shown_temperature_celsius{{{FARM}}}", "{{device}}"),)),
            Panel("Findings of probes", "short", ((_sum("farm_device_finding", "finding"), "{{finding}}"),), stacked=True),
            Panel("Recovery actions per hour", "short", ((f"sum by (action) (increase(farm_recovery_actions_total{{{FARM}}}[1h]))", "{{action}}"),), stacked=True),
            Panel("Mean time to repair, by fault", "s", ((f"farm:repair_seconds:mean_1d{{{FARM}}}", "{{fault}}"),)),
            Panel("Hubs that lost their phones", "short", ((_sum("farm_usb_fault", "hub"), "{{hub}}"),)),
            Panel("Battery: lowest charge", "percentunit", ((f"bottomk(10, farm_device_battery_level_ratio{{{FARM}}})", "{{device}}"),)),
        ),
    ),
    "device": (
        "Farm: device",
        (
            Panel("What it is", "short", ((f"farm_device_info{{{ONE}}}", "{{device}}"),), "table"),
            Panel("Ready", "short", ((f"farm_device_up{{{ONE}}}", "{{device}}"), (f"farm_device_leased{{{ONE}}}", "{{device}} leased")), "state-timeline"),
            Panel("Time by state", "percentunit", ((_rate("farm_device_state_seconds_total", "state, cause", ONE), "{{state}} {{cause}}"),), stacked=True),
            Panel("Temperatures", "celsius", ((f"farm_device_temperature_celsius{{{ONE}}}", "{{group}} {{sensor}}"), (f"farm_device_shown_temperature_celsius{{{ONE}}}", "TEMP"))),
            Panel("Thermal severity", "short", ((f"farm_device_throttle_status{{{ONE}}}", "{{device}}"),)),
            Panel("GPU clock", "hertz", ((f"farm_device_gpu_clock_hertz{{{ONE}}}", "clock"), (f"farm_device_gpu_clock_limit_hertz{{{ONE}}}", "allowed"))),
            Panel("CPU clocks", "hertz", ((f"farm_device_cpu_clock_hertz{{{ONE}}}", "{{cluster}}"), (f"farm_device_cpu_clock_limit_hertz{{{ONE}}}", "{{cluster}} allowed"))),
            Panel("Charge", "percentunit", ((f"farm_device_battery_level_ratio{{{ONE}}}", "charge"), (f"farm_device_battery_capacity_ratio{{{ONE}}}", "capacity of new"))),
            Panel("Battery temperature", "celsius", ((f"farm_device_battery_temperature_celsius{{{ONE}}}", "{{device}}"),)),
            Panel("Battery voltage and current", "short", ((f"farm_device_battery_volts{{{ONE}}}", "V"), (f"farm_device_battery_amperes{{{ONE}}}", "A"))),
            Panel("Charge cycles, healthy", "short", ((f"farm_device_battery_cycles{{{ONE}}}", "cycles"), (f"farm_device_battery_healthy{{{ONE}}}", "healthy"))),
            Panel("Memory", "bytes", ((f"farm_device_memory_available_bytes{{{ONE}}}", "available"), (f"farm_device_memory_size_bytes{{{ONE}}}", "size"))),
            Panel("/data", "bytes", ((f"farm_device_data_free_bytes{{{ONE}}}", "free"), (f"farm_device_data_size_bytes{{{ONE}}}", "size"))),
            Panel("Load", "short", ((f"farm_device_load1{{{ONE}}}", "{{device}}"),)),
            Panel("Time since boot", "s", ((f"farm_device_uptime_seconds{{{ONE}}}", "{{device}}"),)),
            Panel("Age of the probe", "s", ((f"farm_device_probe_age_seconds{{{ONE}}}", "{{device}}"),)),
            Panel("Probes that failed per hour", "short", ((f"increase(farm_device_probe_failures_total{{{ONE}}}[1h])", "{{device}}"),)),
        ),
    ),
    "jobs": (
        "Farm: jobs and queue",
        (
            Panel("Requests waiting by class", "short", ((_sum("farm_requests_waiting", "class"), "{{class}}"), (f"sum(farm_requests_servable{{{FARM}}})", "servable"))),
            Panel("Longest wait", "s", ((f"max by (class) (farm_requests_oldest_wait_seconds{{{FARM}}})", "{{class}}"),)),
            Panel("Time to a phone, 95 %, by interface", "s", ((_p95("farm_time_to_device_seconds", "class, source"), "{{class}} {{source}}"),)),
            Panel("Grants per minute", "short", ((f"60 * {_rate('farm_time_to_device_seconds_count', 'class, source')}", "{{class}} {{source}}"),), stacked=True),
            Panel("Leases", "short", ((_sum("farm_leases", "class, source"), "{{class}} {{source}}"),), stacked=True),
            Panel("Leases by user", "short", ((_sum("farm_user_leases", "user"), "{{user}}"),), stacked=True),
            Panel("Phones used by user", "short", ((_rate("farm_user_device_seconds_total", "user"), "{{user}}"),), stacked=True),
            Panel("Length of leases, 95 %", "s", ((_p95("farm_lease_duration_seconds"), ""),)),
            Panel("Leases taken away per hour", "short", ((f"sum(increase(farm_lease_revocations_total{{{FARM}}}[1h]))", ""),)),
            Panel("Jobs", "short", ((_sum("farm_jobs", "kind, state"), "{{kind}} {{state}}"),), stacked=True),
            Panel("Jobs that came and ended per hour", "short", ((f"sum(increase(farm_jobs_submitted_total{{{FARM}}}[1h]))", "came"), (f"sum by (state) (increase(farm_jobs_ended_total{{{FARM}}}[1h]))", "{{state}}"))),
            Panel("Attempts that failed per hour, by fault", "short", ((f'sum by (fault) (increase(farm_attempts_ended_total{{{FARM}, state="failed"}}[1h]))', "{{fault}}"),), stacked=True),
            Panel("Trials per hour", "short", ((f"farm:tuning_trials:per_hour{{{FARM}}}", "{{instance}}"),)),
            Panel("Candidates built per second, and what builders have", "short", ((_rate("farm_tuning_builds_total", "where"), "{{where}}"), (f"sum(farm_builder_slots{{{FARM}}})", "slots"), (f"sum(farm_builders{{{FARM}}})", "builders"))),
            Panel("Sessions", "short", ((f"sum(farm_sessions_open{{{FARM}}})", "open"), (f"60 * {_rate('farm_sessions_total', 'outcome')}", "{{outcome}} per minute"))),
            Panel("Length of sessions, 95 %", "s", ((_p95("farm_session_duration_seconds"), ""),)),
            Panel("Bytes of ended sessions", "Bps", ((_rate("farm_relay_bytes_total", "direction"), "{{direction}}"),)),
            Panel("Workers that ended per hour", "short", ((f"sum by (toolchain, outcome) (increase(farm_workers_ended_total{{{FARM}}}[1h]))", "{{toolchain}} {{outcome}}"),), stacked=True),
            Panel("Workers", "short", ((_sum("farm_workers_running", "toolchain"), "{{toolchain}} running"), (_sum("farm_toolchain_up", "toolchain"), "{{toolchain}} up"))),
            Panel("Libraries that killed what ran them", "short", ((f"sum(increase(farm_poisons_total{{{FARM}}}[1h]))", "per hour"),)),
        ),
    ),
    "results": (
        "Farm: results",
        (
            Panel("Median", "s", ((_latest("median"), "{{model}} {{device}} {{target}} {{precision}}"),)),
            Panel("Width of the interval", "percentunit", ((f"({_latest('high')} - {_latest('low')}) / {_latest('median')}", "{{model}} {{device}} {{target}}"),)),
            Panel("Trusted results only", "s", ((_latest("median", f'{RESULT}, verdict="trusted"'), "{{model}} {{device}} {{target}} {{precision}}"),)),
            Panel("Newest results", "s", ((_latest("median"), ""),), "table"),
            Panel("Results per day by verdict", "short", ((f"sum by (verdict) (count_over_time(farm_result_median_seconds{{{RESULT}}}[1d]))", "{{verdict}}"),), stacked=True),
        ),
    ),
    "daemon": (
        "Farm: host and daemon",
        (
            Panel("Release", "short", ((f"farm_build_info{{{FARM}}}", "{{instance}} {{version}}"),), "table"),
            Panel("Up for", "s", ((f"time() - farm_daemon_start_time_seconds{{{FARM}}}", "{{instance}}"),), "stat"),
            Panel("Database can be written", "short", ((f"farm_store_writable{{{FARM}}}", "{{instance}}"),), "stat"),
            Panel("CPU", "percentunit", ((f"rate(process_cpu_seconds_total{{{FARM}}}[$__rate_interval])", "{{instance}}"),)),
            Panel("Memory", "bytes", (
                (f"process_resident_memory_bytes{{{FARM}}}", "{{instance}} resident"),
                (f"farm_heap_bytes{{{FARM}}}", "{{instance}} heap in use"),
            )),
            Panel("Open files", "short", ((f"process_open_fds{{{FARM}}}", "open"), (f"process_max_fds{{{FARM}}}", "allowed"))),
            Panel("Event loop late by, 99 %", "s", ((f"farm:event_loop_delay_seconds:p99_5m{{{FARM}}}", "{{instance}}"),)),
            Panel("Commits, 99 %", "s", ((f"farm:store_commit_seconds:p99_5m{{{FARM}}}", "{{instance}}"),)),
            Panel("Commits per second", "short", ((_rate("farm_store_commit_seconds_count", "instance"), "{{instance}}"),)),
            Panel("adb round trip, 99 %", "s", ((f"farm:adb_round_trip_seconds:p99_5m{{{FARM}}}", "{{to}}"),)),
            Panel("adb server", "short", ((f"farm_adb_server_up{{{FARM}}}", "up"), (f"farm_adb_server_hangs{{{FARM}}}", "hangs"), (f"increase(farm_adb_server_losses_total{{{FARM}}}[1h])", "lost per hour"))),
            Panel("Allocator, 95 %", "s", ((_p95("farm_allocator_decision_seconds"), ""),)),
            Panel("Hosts of the lab", "short", ((f"max by (state) (farm_lab_hosts{{{FARM}}})", "{{state}}"),), stacked=True),
            Panel("Silence of hosts", "s", ((f"min by (host) (farm_lab_host_silence_seconds{{{FARM}}})", "{{host}}"),)),
            Panel("Head: term, letters, waiting requests", "short", (("sum(farm_lab_head_decides)", "heads that decide"), (f"max(farm_lab_head_term{{{FARM}}})", "term"), (f"max(farm_lab_letters{{{FARM}}})", "letters"), (f"max(farm_lab_requests_waiting{{{FARM}}})", "waiting"))),
            Panel("Database round trip", "s", ((f"farm_store_round_trip_seconds{{{FARM}}}", "{{instance}}"),)),
            Panel("Watchdog: silence of its limit", "percentunit", ((f"farm_watchdog_silence_seconds{{{FARM}}} / farm_watchdog_limit_seconds{{{FARM}}}", "{{component}}"),)),
            Panel("Disk of the state folder", "bytes", ((f"farm_disk_free_bytes{{{FARM}}}", "free"), (f"farm_store_size_bytes{{{FARM}}}", "database"))),
            Panel("Events per second", "short", ((_rate("farm_events_total", "topic"), "{{topic}}"),), stacked=True),
            Panel("Calls that change something, per minute", "short", ((f"60 * {_rate('farm_calls_total', 'outcome')}", "{{outcome}}"), (f"60 * sum(rate(farm_auth_failures_total{{{FARM}}}[$__rate_interval]))", "wrong tokens and keys"))),
            Panel("A scrape costs", "s", ((f"farm_scrape_duration_seconds{{{FARM}}}", "{{instance}}"),)),
        ),
    ),
}  # fmt: skip


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana imports it (schema 38: Grafana 10)."""
    title, panels = DASHBOARDS[name]
    variables = [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
    if name == "results":
        variables += [_variable(label, "farm_result_median_seconds") for label in ("model", "device")]
    else:
        variables += [_variable("job", "farm_build_info"), _variable("instance", 'farm_build_info{job=~"$job"}')]
    if name == "device":
        variables.append(_variable("device", f"farm_device_info{{{FARM}}}"))
    return {
        "uid": f"farm-{name}",
        "title": title,
        "tags": ["farm"],
        "schemaVersion": 38,
        "refresh": "30s",
        "time": {"from": "now-90d" if name == "results" else "now-6h", "to": "now"},
        "templating": {"list": variables},
        "links": [{"title": "Farm", "type": "dashboards", "tags": ["farm"], "asDropdown": True, "keepTime": True}],
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def text(name: str) -> str:
    """The file."""
    return json.dumps(dashboard(name), indent=1) + "\n"


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "sort": 1,
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + index),
            "expr": expr,
            "legendFormat": legend,
            "instant": table,
            "range": not table,
            "format": "table" if table else "time_series",
        }
        for index, (expr, legend) in enumerate(panel.queries)
    ]
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.stacked else {}
    per_row = 24 // WIDTH
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": number % per_row * WIDTH, "y": number // per_row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": targets,
    }


if __name__ == "__main__":
    for each in DASHBOARDS:
        Path(__file__).with_name(f"{each}.json").write_text(text(each))
