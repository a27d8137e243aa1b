"""A device's life as three facts (life, service, heat), and the view others get of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from farm.core.attribution import UsbPlace
from farm.core.health import Health
from farm.core.health_rules import Finding
from farm.core.identity import DeviceIdentity
from farm.core.requests import LeaseClass


class Life(StrEnum):
    """Where a device is on its way to users' hands; `farm.core.lifecycle.MEANING` says it in words."""

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


LIFE_EVENTS = frozenset(f"device.{life}" for life in Life)  # other events of a device move it nowhere


class Service(StrEnum):
    """What operators decided."""

    IN = "in"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"


class Heat(StrEnum):
    """What the thermal gate says."""

    OK = "ok"
    COOLING = "cooling"


@dataclass(frozen=True, slots=True)
class Closed:
    """Why leases of a class do not get a device now."""

    reason: str  # one line for a person, with the figure and the limit
    opens_in_s: float | None = None  # about; None: nobody can say
    heat: bool = True  # else it is about something that passes by itself

    def __str__(self) -> str:
        return self.reason if self.opens_in_s is None else f"{self.reason}; about {_roughly(self.opens_in_s)}"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as leasing, the doors and people see it: one immutable snapshot."""

    name: str  # unique in the farm; also a stock TVM key
    serial: str  # as adb lists it
    life: Life
    service: Service = Service.IN
    heat: Heat = Heat.OK
    reason: str = ""  # why it is not ready, one line for a person
    adopted: bool = False
    pool: str = ""
    identity: DeviceIdentity | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # normalised values
    aliases: tuple[str, ...] = ()  # stock TVM keys it answers to
    temperature_c: float | None = None
    temperature_of: str = ""  # the sensor's name
    battery_percent: int | None = None
    bundle: str = ""  # hash of the bundle on it
    since: datetime | None = None  # when `life` last changed
    health: Health | None = None  # the latest probe
    findings: tuple[Finding, ...] = ()  # what is wrong by the latest probes
    checked: str = ""  # what the latest golden check said
    place: UsbPlace | None = None  # where it is plugged in, if anybody knows
    sent_away: bool = False  # it was rebooted or power-cycled by the farm, and is not back yet
    closed: Mapping[LeaseClass, Closed] = field(default_factory=dict)  # classes not served now; empty: all are
    too_hot: str = ""  # why not even its holder may go on with it, for its heat

    @property
    def leasable(self) -> bool:
        """Whether it could be handed out now to some class, were nobody holding it."""
        return self.adopted and self.life is Life.READY and self.service is Service.IN and self.heat is Heat.OK

    def serves(self, lease_class: LeaseClass) -> bool:
        """Whether it could be handed out now to this class, were nobody holding it."""
        return self.leasable and lease_class not in self.closed


def _roughly(seconds: float) -> str:
    """An estimate for a person, no finer than it deserves."""
    return f"{max(1.0, seconds / 60):.0f} min" if seconds >= 90 else f"{10 * max(1, round(seconds / 10))} s"
