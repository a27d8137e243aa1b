"""What a scrape tells of each adopted device."""

from __future__ import annotations

from collections.abc import Collection

from farm.core.device import DeviceView, Life
from farm.core.health import Battery, Health, SensorGroup, Temperature
from farm.core.sensors import one_temperature
from farm.metrics.page import Page

MOST_SENSORS = 12  # of a device: some phones have 90, most of them one per core
MOST_NAMES = 48  # of a device's sensors since it was adopted: the hottest core is one now and another then
MOST_CHARACTERS = 64  # of a name that a phone gives
OTHER = "other"
_FIRST = (SensorGroup.SKIN, SensorGroup.BATTERY, SensorGroup.GPU, SensorGroup.CPU, SensorGroup.OTHER)


def tell_device(
    page: Page, view: DeviceView, sensors: SensorNames, *, leased: bool, probe_age_s: float | None, ailment: str
) -> None:
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
    page.set("farm_device_shown_temperature_celsius", view.temperature_c, name)
    page.set("farm_device_probe_age_seconds", probe_age_s, name)
    if view.health is not None:
        _tell_health(page, name, view.health, sensors)


def shown_sensors(health: Health) -> list[Temperature]:
    """The one temperature, the hottest of each group, then others by name, so that most series go on."""
    shown = one_temperature(health)
    hottest = {each.group: each for each in sorted(health.temperatures, key=lambda each: each.celsius)}
    found: dict[tuple[SensorGroup, str], Temperature] = {}
    for each in (*([shown] if shown else ()), *hottest.values(), *sorted(health.temperatures, key=_rank)):
        found.setdefault((each.group, each.sensor), each)  # several sources may read sensors of one name
    return list(found.values())[:MOST_SENSORS]


class SensorNames:
    """Which sensors have series of their own: of each device the first `MOST_NAMES`, for good; the rest are "other"."""

    def __init__(self) -> None:
        self._of: dict[str, set[str]] = {}

    def label(self, device: str, sensor: str) -> str:
        """What a sensor is called in metrics. A phone that names its sensors anew would make series without end."""
        known, name = self._of.setdefault(device, set()), sensor[:MOST_CHARACTERS]
        if name not in known and len(known) >= MOST_NAMES:
            return OTHER
        known.add(name)
        return name

    def keep_only(self, devices: Collection[str]) -> None:
        """Forget all others."""
        for device in self._of.keys() - set(devices):
            del self._of[device]


def _rank(each: Temperature) -> tuple[int, str, float]:
    return _FIRST.index(each.group), each.sensor, -each.celsius


def _tell_health(page: Page, name: str, health: Health, sensors: SensorNames) -> None:
    for each in sorted(shown_sensors(health), key=lambda each: each.celsius):  # of several "other" the hottest stays
        label = sensors.label(name, each.sensor)
        page.set("farm_device_temperature_celsius", each.celsius, name, each.group.value, label)
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
