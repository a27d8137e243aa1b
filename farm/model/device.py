"""A device's life as three facts (life, service, heat), its USB port, and the view others get of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from farm.common.causes import fold_cause
from farm.model.health import Finding, Health
from farm.model.identity import DeviceIdentity
from farm.model.requests import LeaseClass

# Buses, root ports and hubs in a row that Linux and USB know (drivers/usb/core/hcd.c: USB_MAXBUS; USB 3.2, 10.1).
_MAX_BUS = 64  # macOS counts locations instead, `231-1`: no place on this host


_PATH = re.compile(r"([1-9]\d{0,2})-([1-9]\d{0,2}(?:\.[1-9]\d{0,2}){0,5})")


_NETWORK = re.compile(r":\d+$|\._adb[\w-]*\._tcp")


@dataclass(frozen=True, slots=True)
class UsbPlace:
    """One port of one hub, as sysfs names it: hub "1-4", port 2, path "1-4.2". The root hub of bus 1 is "usb1"."""

    hub: str
    port: int
    path: str


def parse_place(text: str) -> UsbPlace | None:
    """A USB path, `1-4.2` or `usb:1-4.2`; None for anything else (macOS's, libusb's old `336675328X`)."""
    match = _PATH.fullmatch(text.removeprefix("usb:"))
    if match is None or int(match[1]) > _MAX_BUS:
        return None
    path = match[0]
    above, dot, port = path.rpartition(".")
    return UsbPlace(above, int(port), path) if dot else UsbPlace(f"usb{match[1]}", int(match[2]), path)


def is_network(serial: str) -> bool:
    """Whether adb lists a phone by its address: HOST:PORT, or an mDNS name."""
    return _NETWORK.search(serial) is not None


def hubs_above(place: UsbPlace) -> tuple[str, ...]:
    """Every hub between the device and the host, the nearest first; the last is the root hub."""
    hubs = [place.hub]
    while (above := parse_place(hubs[-1])) is not None:
        hubs.append(above.hub)
    return tuple(hubs)


class Life(StrEnum):
    """Where a device is on its way to users' hands; `farm.model.device.MEANING` says it in words."""

    NEW = "new"
    UNAUTHORIZED = "unauthorized"
    OFFLINE = "offline"
    IDENTIFYING = "identifying"
    PROVISIONING = "provisioning"
    STARTING = "starting"
    CHECKING = "checking"
    READY = "ready"
    RECOVERING = "recovering"
    QUARANTINED = "quarantined"
    GONE = "gone"


# On its way back to READY by itself.
RETURNING = frozenset({Life.IDENTIFYING, Life.PROVISIONING, Life.STARTING, Life.CHECKING, Life.RECOVERING})
LIFE_EVENTS = frozenset(f"device.{life}" for life in Life)  # other events of a device move it nowhere


class Service(StrEnum):
    """The operators' decision."""

    IN = "in"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"

    @property
    def words(self) -> str:
        """What a phone is by it: in service, draining, in maintenance."""
        return {Service.IN: "in service", Service.MAINTENANCE: "in maintenance"}.get(self, self.value)


class Heat(StrEnum):
    """The answer of the thermal gate."""

    OK = "ok"
    COOLING = "cooling"


@dataclass(frozen=True, slots=True)
class Closed:
    """Why leases of a class do not get a device now."""

    reason: str  # one line for a person, with the figure and the limit
    opens_in_s: float | None = None  # about; None: unknown
    heat: bool = True  # else it is about something that passes by itself
    evidence: str = ""

    def __post_init__(self) -> None:
        fold_cause(self, "reason")

    def __str__(self) -> str:
        return self.reason if self.opens_in_s is None else f"{self.reason}, about {_roughly(self.opens_in_s)}"


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device as the head knows it: sent by its host, without readings."""

    name: str  # unique in the farm; also a stock TVM key
    serial: str  # as adb lists it
    life: Life
    service: Service = Service.IN
    heat: Heat = Heat.OK
    reason: str = ""  # the cause of its not being ready
    released: str = ""  # who or what ends its quarantine; "" it is in none
    adopted: bool = False
    identity: DeviceIdentity | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # normalised values
    aliases: tuple[str, ...] = ()  # stock TVM keys it answers to
    bundle: str = ""  # hash of the bundle on it
    place: UsbPlace | None = None  # where it is plugged in, if known
    closed: Mapping[LeaseClass, Closed] = field(default_factory=dict)  # classes not served now; empty: all are
    host: str = ""  # set by a head apart: its host; "": the only one
    withheld: str = ""  # why its host does not use it, or a head apart does not hand it out; "": neither

    @property
    def leasable(self) -> bool:
        """Whether it could be handed out now to some class, were it not leased."""
        ready = self.life is Life.READY and not self.withheld
        return self.adopted and ready and self.service is Service.IN and self.heat is Heat.OK

    @property
    def in_service(self) -> bool:
        """Whether a job may wait for it: it is ready, or will be without help."""
        serves = self.adopted and self.service is Service.IN and not self.withheld
        return serves and (self.life is Life.READY or self.life in RETURNING)

    def serves(self, lease_class: LeaseClass) -> bool:
        """Whether it could be handed out now to this class, were it not leased."""
        return self.leasable and lease_class not in self.closed

    def same_but_figures(self, other: DeviceState) -> bool:
        """Whether nothing is different but figures in the reasons for which classes are closed, if anything."""
        heat = {each: why.heat for each, why in self.closed.items()}
        return heat == {each: why.heat for each, why in other.closed.items()} and self == replace(
            other, closed=self.closed
        )


@dataclass(frozen=True, slots=True)
class DeviceView(DeviceState):
    """A device as its host, the servers and people see it: one immutable snapshot."""

    external_cause: str = ""  # the failure of its hub or the host that explains its state; "": none is known
    evidence: str = ""  # details of `reason`
    hint: str = ""  # what a person can do about it
    pool: str = ""
    temperature_c: float | None = None
    temperature_of: str = ""  # the sensor's name
    battery_percent: int | None = None
    since: datetime | None = None  # when `life` last changed
    health: Health | None = None  # the latest probe
    read_at: datetime | None = None  # when that was read, perhaps before the daemon's start
    findings: tuple[Finding, ...] = ()  # what is wrong by the latest probes
    checked: str = ""  # what the latest golden check said
    sent_away: bool = False  # it was rebooted or power-cycled by the farm, and is not back yet
    too_hot: str = ""  # why not even its holder may continue with it, for its heat

    def __post_init__(self) -> None:
        fold_cause(self, "reason")

    def state(self) -> DeviceState:
        """The part of it that the head needs."""
        return DeviceState(*[getattr(self, name) for name in _STATE])


_STATE = [each.name for each in fields(DeviceState)]


def state_word(view: DeviceState, *, held: bool) -> str:
    """One word for a device's three facts and its lease: the obstacle to the next user, else `ready`."""
    if view.life is not Life.READY:
        return view.life.value
    if held:
        return "busy" if view.service is Service.IN else f"busy, {view.service.value}"
    if view.service is not Service.IN:
        return view.service.value
    return view.heat.value if view.heat is not Heat.OK else Life.READY.value


def _roughly(seconds: float) -> str:
    """An estimate for a person, no finer than it deserves."""
    return f"{max(1.0, seconds / 60):.0f} min" if seconds >= 90 else f"{10 * max(1, round(seconds / 10))} s"


MEANING: Mapping[Life, str] = MappingProxyType(
    {
        Life.NEW: "listed and identified, but not adopted: nothing is written to it",
        Life.UNAUTHORIZED: "waits for someone to accept the farm's adb key on its screen",
        Life.OFFLINE: "listed by adb, but it cannot be talked to",
        Life.IDENTIFYING: "read-only commands find out what it is",
        Life.PROVISIONING: "the runtime bundle is being verified or pushed",
        Life.STARTING: "its RPC server is being started or taken over",
        Life.CHECKING: "golden kernels run; their results are compared",
        Life.READY: "may be leased",
        Life.RECOVERING: "something broke; it is being cleaned up or waits for the next attempt",
        Life.QUARANTINED: "needs a person; the reason says why",
        Life.GONE: "not listed by adb",
    }
)
