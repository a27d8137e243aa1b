"""Phones of other hosts under leases of this host's jobs: their match keys, their loss, and requests to yield them.

The job's host invents the match key and asks with its SHA-256; sessions lead through its own gate (`elsewhere`). The
phone's host holds the lease. The head reports the end of the lease, and that others wait for the phone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from farm.common.errors import FarmError
from farm.leasing.model import PhoneLostError
from farm.model.requests import Lease


@dataclass(slots=True, eq=False)
class BorrowedPhone:
    """A phone of another host."""

    lease: Lease
    host: str
    match_key: str
    yield_wanted: bool = False
    revocation: asyncio.Future[FarmError] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class BorrowedPhones:
    """The borrowed phones of this host's jobs, by their leases."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}  # match key by request, until the request has a lease
        self._phones: dict[str, BorrowedPhone] = {}

    def asked(self, request_id: str, match_key: str) -> None:
        """A job has asked with the digest of this match key."""
        self._keys[request_id] = match_key

    def answered(self, request_id: str) -> None:
        """The request was withdrawn, or got a phone of this host."""
        self._keys.pop(request_id, None)

    def add(self, request_id: str, lease: Lease, host: str) -> None:
        """The host holds the lease of this request; ignored unless a job has asked."""
        if (match_key := self._keys.pop(request_id, None)) is not None:
            self._phones[lease.id] = BorrowedPhone(lease, host, match_key)

    def get(self, lease_id: str) -> BorrowedPhone | None:
        """The phone under that lease; None: it is not a borrowed one, or was lost."""
        return self._phones.get(lease_id)

    def give_back(self, lease_id: str) -> str:
        """Forget the lease; returns its phone's host, "" if it is not a borrowed one."""
        phone = self._phones.pop(lease_id, None)
        return "" if phone is None else phone.host

    def lost(self, lease_id: str, reason: str) -> None:
        """The phone's host holds the lease no more."""
        if (phone := self._phones.pop(lease_id, None)) is not None:
            why = f"{phone.lease.device} of host {phone.host} was lost" + (f": {reason}" if reason else "")
            phone.revocation.set_result(PhoneLostError(why))

    def want_back(self, device: str) -> None:
        """Others wait for this device."""
        for phone in self._phones.values():
            if phone.lease.device == device:
                phone.yield_wanted = True
