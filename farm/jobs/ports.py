"""What jobs need of leasing, as a protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

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
