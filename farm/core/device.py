"""A device's life as three facts (life, service, heat), its transition table, and the view others get of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from farm.core.identity import DeviceIdentity


class Life(StrEnum):
    """Where a device is on its way to users' hands."""

    NEW = "new"  # listed by adb, identified read-only, not adopted
    UNAUTHORIZED = "unauthorized"  # waits for someone to accept the farm's adb key on its screen
    OFFLINE = "offline"  # listed by adb, but its transport does not answer
    IDENTIFYING = "identifying"  # read-only commands are running
    PROVISIONING = "provisioning"  # the runtime bundle is being pushed and verified
    STARTING = "starting"  # the RPC server is being started
    CHECKING = "checking"  # the golden kernel runs
    READY = "ready"  # may be leased
    RECOVERING = "recovering"  # something broke; being cleaned up or backed off
    QUARANTINED = "quarantined"  # needs a person; carries a reason
    GONE = "gone"  # not listed by adb any more


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
    battery_percent: int | None = None
    bundle: str = ""  # hash of the bundle on it
    since: datetime | None = None  # when `life` last changed

    @property
    def leasable(self) -> bool:
        """Whether it could be handed out now, were nobody holding it."""
        return self.adopted and self.life is Life.READY and self.service is Service.IN and self.heat is Heat.OK
