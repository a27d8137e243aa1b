"""What a scrape tells of each adopted device."""

from __future__ import annotations

from collections.abc import Iterable

from farm.core.device import DeviceView, Life
from farm.core.health import Battery, Health, SensorGroup, Temperature
from farm.metrics.page import Page

MOST_SENSORS = 12  # of a device: some phones have 90, most of them one per core
MOST_CHARACTERS = 64  # of a name that a phone gives
_FIRST = (SensorGroup.SKIN, SensorGroup.BATTERY, SensorGroup.GPU, SensorGroup.CPU, SensorGroup.OTHER)


def tell_device(page: Page, view: DeviceView, *, leased: bool, probe_age_s: float | None, ailment: str) -> None:
    """Add one adopted device. `ailment`: why it is in quarantine; "" it is not."""
    name = view.name
    labels = view.labels
    page.set("farm_device", 1.0, name, labels.get("model", ""), labels.get("soc", ""), labels.get("gpu", ""), view.pool)
    page.set("farm_device_up", float(view.life is Life.READY), name)
    page.set("farm_device_leased", float(leased), name)
    if ailment:
        page.set("farm_device_quarantined", 1.0, name, ailment)
    for finding in view.findings:
        page.set("farm_device_finding", 1.0, name, finding.kind.value)
    page.set("farm_device_probe_age_seconds", probe_age_s, name)
    if view.health is not None:
        _tell_health(page, name, view.health)


def shown_sensors(temperatures: Iterable[Temperature]) -> list[Temperature]:
    """The hottest of each group, then others by name, so that most series go on from scrape to scrape."""
    by_name = {(each.group, each.sensor): each for each in temperatures}
    if len(by_name) <= MOST_SENSORS:
        return list(by_name.values())
    first = {each.group: each for each in sorted(by_name.values(), key=lambda each: each.celsius)}
    taken = {(each.group, each.sensor) for each in first.values()}
    rest = sorted((each for key, each in by_name.items() if key not in taken), key=_rank)
    return [*first.values(), *rest][:MOST_SENSORS]


def _rank(each: Temperature) -> tuple[int, str]:
    return _FIRST.index(each.group), each.sensor


def _tell_health(page: Page, name: str, health: Health) -> None:
    for each in shown_sensors(health.temperatures):
        page.set("farm_device_temperature_celsius", each.celsius, name, each.group.value, each.sensor[:MOST_CHARACTERS])
    page.set("farm_device_throttle_status", health.throttle, name)
    _tell_battery(page, name, health.battery)
    page.set("farm_device_gpu_clock_hertz", health.gpu.clock_hz, name)
    page.set("farm_device_gpu_clock_limit_hertz", health.gpu.max_hz, name)
    for cluster in health.cpu:
        first = str(min(cluster.cores, default=0))
        page.set("farm_device_cpu_clock_hertz", _times(cluster.khz, 1000), name, first)
        page.set("farm_device_cpu_clock_limit_hertz", _times(cluster.max_khz, 1000), name, first)
    page.set("farm_device_memory_size_bytes", health.memory_total_bytes, name)
    page.set("farm_device_memory_available_bytes", health.memory_available_bytes, name)
    page.set("farm_device_data_size_bytes", health.data_total_bytes, name)
    page.set("farm_device_data_free_bytes", health.data_free_bytes, name)
    page.set("farm_device_load1", health.load_1min, name)
    page.set("farm_device_uptime_seconds", health.uptime_s, name)


def _tell_battery(page: Page, name: str, battery: Battery) -> None:
    page.set("farm_device_battery_level_ratio", _times(battery.percent, 0.01), name)
    page.set("farm_device_battery_temperature_celsius", battery.celsius, name)
    page.set("farm_device_battery_volts", _times(battery.voltage_mv, 0.001), name)
    page.set("farm_device_battery_amperes", _times(battery.current_ma, 0.001), name)
    page.set("farm_device_battery_cycles", battery.cycles, name)
    if battery.full_uah and battery.design_uah:
        page.set("farm_device_battery_capacity_ratio", battery.full_uah / battery.design_uah, name)
    if battery.health:
        page.set("farm_device_battery_healthy", float(battery.health == "good"), name)


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else round(value * scale, 6)
