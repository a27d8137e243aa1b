"""Adopted devices: their samples of a scrape, and the time that each spends in each state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from farm.devices.health.probe.thermal import one_temperature
from farm.devices.lifecycle.state import LINK_DOWN
from farm.metrics.exposition import Page
from farm.model.device import DeviceView, Heat, Life, Service
from farm.model.health import Battery, Health, SensorGroup, Temperature
from farm.model.requests import LeaseClass

StateAndCause = tuple[str, str]
# States between READY and READY in which a fault, if any, is recovered.
_RECOVERING_IN = frozenset(
    {Life.RECOVERING, Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.QUARANTINED}
)


def state_of(view: DeviceView, *, leased: bool, fault: str = "", lost_with: str = "") -> StateAndCause:
    """The state of an adopted device, and the cause.

    Args:
        view: the device.
        leased: whether a lease has it.
        fault: the fault under recovery, or of its quarantine.
        lost_with: "hub" or "host" while it is lost together with other devices.
    """
    if leased and view.life is Life.READY:
        return "leased", ""
    if view.service is Service.MAINTENANCE:
        return "maintenance", ""
    if view.life in LINK_DOWN:
        return view.life.value, lost_with or "link"
    if view.life is not Life.READY:
        return view.life.value, fault if view.life in _RECOVERING_IN else ""
    if view.service is Service.DRAINING:
        return "draining", ""
    if view.heat is Heat.COOLING:
        return "cooling", "heat"
    if len(view.closed) == len(LeaseClass):
        hot = any(closed.heat for closed in view.closed.values())
        return ("cooling", "heat") if hot else ("closed", "hub")
    return "idle", ""


def interrupted(state: StateAndCause) -> bool:
    """Whether a lost link or a fault keeps it from users. Cleaning after a lease does not count."""
    life, cause = state
    return life in LINK_DOWN or (life in _RECOVERING_IN and bool(cause))


class DeviceTime:
    """Seconds by device, state and cause, and how often each was interrupted. Times are in monotonic seconds."""

    def __init__(self) -> None:
        self._now: dict[str, tuple[str, StateAndCause, float]] = {}  # by serial: name, state, since when
        self._seconds: dict[str, defaultdict[StateAndCause, float]] = {}
        self._interruptions: dict[str, int] = {}

    def enter_state(self, serial: str, name: str, state: StateAndCause, now_s: float) -> None:
        """The device is in this state from now on (or still). Its time is kept by serial: names change."""
        # Both begin at 0: Prometheus does not see the first of a series that was not there before.
        spent = self._seconds.setdefault(serial, defaultdict(float, {("idle", ""): 0.0, ("leased", ""): 0.0}))
        if (before := self._now.get(serial)) is not None:
            _, was, since_s = before
            spent[was] += max(0.0, now_s - since_s)
            if interrupted(state) and not interrupted(was):
                self._interruptions[serial] = self._interruptions.get(serial, 0) + 1
        self._now[serial] = (name, state, now_s)

    def forget(self, serial: str) -> None:
        """Drop a device that is not adopted any more."""
        self._now.pop(serial, None)
        self._seconds.pop(serial, None)
        self._interruptions.pop(serial, None)

    def keep_only(self, serials: Collection[str]) -> None:
        """Forget all others."""
        for serial in self._now.keys() - set(serials):
            self.forget(serial)

    def interruptions(self) -> Mapping[str, int]:
        """How often each lost its link or had a fault, by name."""
        return {name: self._interruptions.get(serial, 0) for serial, (name, _, _) in self._now.items()}

    def read(self, now_s: float) -> Mapping[tuple[str, str, str], float]:
        """Seconds until now, by name, state and cause."""
        for serial, (name, state, _) in tuple(self._now.items()):
            self.enter_state(serial, name, state, now_s)
        return {
            (name, *state): seconds
            for serial, (name, _, _) in self._now.items()
            for state, seconds in self._seconds[serial].items()
        }


MAX_SENSORS = 12  # of a device: some phones have 90, most of them one per core
MAX_NAMES = 48  # of a device's sensors since it was adopted: the hottest core is one now and another then
MAX_CHARACTERS = 64  # of a name that a phone gives
OTHER = "other"
_ORDER = {SensorGroup.SKIN: 0, SensorGroup.BATTERY: 1, SensorGroup.GPU: 2, SensorGroup.CPU: 3, SensorGroup.OTHER: 4}


def add_device(
    page: Page, view: DeviceView, sensors: SensorNames, *, leased: bool, probe_age_s: float | None, fault: str
) -> None:
    """Add one adopted device. `fault`: why it is in quarantine; "": it is not."""
    name = view.name
    labels = view.labels
    page.set("farm_device", 1.0, name, labels.get("model", ""), labels.get("soc", ""), labels.get("gpu", ""), view.pool)
    page.set("farm_device_up", float(view.life is Life.READY), name)
    page.set("farm_device_leased", float(leased), name)
    if fault:
        page.set("farm_device_quarantined", 1.0, name, fault)
    page.set("farm_device_probe_age_seconds", probe_age_s, name)
    if view.life in LINK_DOWN:
        return  # its last readings are no readings of now
    for finding in view.findings:
        page.set("farm_device_finding", 1.0, name, finding.kind.value)
    page.set("farm_device_shown_temperature_celsius", view.temperature_c, name)
    if view.health is not None:
        _add_health(page, name, view.health, sensors)


def shown_sensors(health: Health) -> list[Temperature]:
    """The phone's shown temperature, the hottest of each group, then more by name, so that most series continue."""
    shown = one_temperature(health)
    hottest: dict[SensorGroup, Temperature] = {}
    for each in health.temperatures:
        if (warmer := hottest.get(each.group)) is None or each.celsius >= warmer.celsius:
            hottest[each.group] = each
    found: dict[tuple[SensorGroup, str], Temperature] = {}
    for each in (*([shown] if shown else ()), *hottest.values(), *sorted(health.temperatures, key=_rank)):
        found.setdefault((each.group, each.sensor), each)  # several sources may read sensors of one name
    return list(found.values())[:MAX_SENSORS]


class SensorNames:
    """Which sensors have series of their own: of each device the first `MAX_NAMES`, for good; the rest are "other"."""

    def __init__(self) -> None:
        self._of: dict[str, set[str]] = {}

    def label(self, device: str, sensor: str) -> str:
        """The name of a sensor in metrics. A phone that names its sensors again would make series without end."""
        known, name = self._of.setdefault(device, set()), sensor[:MAX_CHARACTERS]
        if name not in known and len(known) >= MAX_NAMES:
            return OTHER
        known.add(name)
        return name

    def keep_only(self, devices: Collection[str]) -> None:
        """Forget all others."""
        for device in self._of.keys() - set(devices):
            del self._of[device]


def _rank(each: Temperature) -> tuple[int, str, float]:
    return _ORDER[each.group], each.sensor, -each.celsius


def _add_health(page: Page, name: str, health: Health, sensors: SensorNames) -> None:
    for each in sorted(shown_sensors(health), key=lambda each: each.celsius):  # of several "other" the hottest stays
        label = sensors.label(name, each.sensor)
        page.set("farm_device_temperature_celsius", each.celsius, name, each.group.value, label)
    page.set("farm_device_throttle_status", health.throttle, name)
    _add_battery(page, name, health.battery)
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


def _add_battery(page: Page, name: str, battery: Battery) -> None:
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
