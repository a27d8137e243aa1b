"""What jobs need of the floors below: leasing and the fleet, as protocols."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from farm.core.device import DeviceView, Life
from farm.core.errors import FarmError
from farm.core.requests import Lease, LeaseRequest


class Leases(Protocol):
    """Leasing (farm.leasing.Leasing), as jobs need it."""

    def ask(self, request: LeaseRequest, granted: Callable[[Lease], None]) -> str:
        """Wish for a phone; `granted` is called once, when the lease is committed. Returns the request's id."""
        ...

    def withdraw(self, request_id: str) -> None:
        """Take a wish back: `granted` is not called any more."""
        ...

    def release(self, lease_id: str, reason: str = ...) -> None:
        """Give a phone back."""
        ...

    def restore(self, lease: Lease) -> None:
        """A lease of the daemon before this one goes on."""
        ...

    def why(self, request_ids: Iterable[str]) -> Mapping[str, str]:
        """Why each of these requests waits, one short sentence; empty when it does not."""
        ...

    def taken_away(self, lease_id: str) -> asyncio.Future[FarmError]:
        """Told why when a lease is taken from its holder."""
        ...

    def keep_place(self, lease_id: str) -> None:
        """Let the worker place that came with the lease outlast it, until `free_place`."""
        ...

    def free_place(self, lease_id: str) -> None:
        """The worker place that came with this lease is needed no more."""
        ...

    def place_wanted(self, lease_id: str) -> bool:
        """Whether others lack only the worker place that came with this lease, and its keeper should end soon."""
        ...

    def yield_wanted(self, lease_id: str) -> bool:
        """Whether others wait for this phone, and the holder should give it back when it can."""
        ...


class Devices(Protocol):
    """The fleet, as jobs need it."""

    def views(self) -> tuple[DeviceView, ...]:
        """Every device."""
        ...

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view; returns the function that ends it."""
        ...


@contextlib.contextmanager
def seen(devices: Devices, name: str, fits: Callable[[Life], bool]) -> Iterator[asyncio.Future[DeviceView]]:
    """A future that is done as soon as the life of the phone `name` is one that fits."""
    found: asyncio.Future[DeviceView] = asyncio.get_running_loop().create_future()

    def look(view: DeviceView) -> None:
        if view.name == name and fits(view.life) and not found.done():
            found.set_result(view)

    unsubscribe = devices.subscribe(look)
    try:
        for view in devices.views():
            look(view)
        yield found
    finally:
        unsubscribe()
