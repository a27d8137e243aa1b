"""Records of leasing for other packages: errors and rows of status; and waiting until a phone is in some state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from farm.common.errors import Code, FarmError, HostError, PhoneError
from farm.devices.fleet import Fleet
from farm.model.device import DeviceView, Life
from farm.model.requests import Lease


class PhoneLostError(PhoneError):
    """A lease ended because its phone went away or did not come back in time."""

    code = "phone_lost"

    @classmethod
    def of(cls, view: DeviceView) -> FarmError:
        """As its phone is now; the host's fault where its adb server or a hub failed."""
        message = f"{view.name} is {view.life}" + (f": {view.reason}" if view.reason else "")
        return HostError(message, Code.HOST_LINK_LOST) if view.external_cause else cls(message)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a device, for status."""

    lease: Lease
    held_s: float
    session: str = ""  # id of the open session
    peer: str = ""  # address of its client
    expires_at: datetime | None = None  # it is given back by then; None: unknown

    @property
    def holder_name(self) -> str:
        """The holder's name: the user, else the address."""
        return self.lease.request.user or self.peer or self.lease.request.source.value


@contextlib.contextmanager
def view_when(devices: Fleet, name: str, fits: Callable[[Life], bool]) -> Iterator[asyncio.Future[DeviceView]]:
    """A future that is done as soon as the life of the phone `name` is one that fits."""
    found: asyncio.Future[DeviceView] = asyncio.get_running_loop().create_future()

    def check(view: DeviceView) -> None:
        if view.name == name and fits(view.life) and not found.done():
            found.set_result(view)

    unsubscribe = devices.subscribe(check)
    try:
        for view in devices.views():
            check(view)
        yield found
    finally:
        unsubscribe()
