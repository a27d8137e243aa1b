"""The other hosts of the lab by their rows, and TLS with exactly their certificates."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from farm.common.errors import HostError
from farm.common.tasks import SharedCall
from farm.lab.identity import LabIdentity
from farm.lab.tls import client_context, is_certificate, server_context
from farm.store.mailbox import HostRecord

READ_LIMIT_S = 2.0  # a server that does not answer must not keep hosts that are there from each other
RECENT_S = 5.0  # rows read within that time are used to dial: reading them takes as long as a handshake

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PinnedHosts:
    """The other hosts that belong to the lab and have a certificate."""

    hosts: Mapping[str, HostRecord]  # by name
    names: Mapping[bytes, str]  # by certificate (DER)
    server: ssl.SSLContext
    client: ssl.SSLContext


class KnownHosts:
    """Reads the rows of hosts when a connection needs them; while the database is away, it uses the rows read last.

    A connection that fails by rows read before is tried again by those of now: a new host is let in at once.
    """

    def __init__(self, identity: LabIdentity, read: Callable[[], Awaitable[Sequence[HostRecord]]]) -> None:
        """`read` returns every row of the host table."""
        self._identity = identity
        self._read = read
        self._rows: Sequence[HostRecord] = ()
        self._table = _table(identity, ())
        self._read_at = float("-inf")
        self._shared = SharedCall(self._reread)

    async def now(self) -> PinnedHosts:
        """The hosts by the rows of now."""
        return await self._shared(())

    async def recent(self) -> PinnedHosts:
        """The hosts by rows that were read within `RECENT_S`."""
        if asyncio.get_running_loop().time() - self._read_at <= RECENT_S:
            return self._table
        return await self.now()

    async def any(self) -> PinnedHosts:
        """The hosts by the rows read last, however old; those of now are read for the next connection."""
        reading = self._shared(())
        return await reading if self._read_at == float("-inf") else self._table

    async def _reread(self, _: object) -> PinnedHosts:
        read_before = self._read_at != float("-inf")
        try:
            async with asyncio.timeout(READ_LIMIT_S if read_before else None):
                rows = [each for each in await self._read() if _counts(each, self._identity.name)]
        except (HostError, TimeoutError) as error:
            log.debug("the rows of hosts cannot be read, the rows read last are used: %s", error)
            if read_before:  # for as long as rows that were read
                self._read_at = asyncio.get_running_loop().time()
            return self._table
        self._read_at = asyncio.get_running_loop().time()
        if _certified(rows) != _certified(self._rows):
            self._table = _table(self._identity, rows)
        elif rows != self._rows:
            self._table = replace(self._table, hosts={each.name: each for each in rows})
        self._rows = rows
        return self._table


def _counts(row: HostRecord, own: str) -> bool:
    return bool(row.certificate) and row.removed_at is None and row.name != own


def _certified(rows: Sequence[HostRecord]) -> dict[str, str]:
    return {each.name: each.certificate for each in rows}


def _table(identity: LabIdentity, rows: Sequence[HostRecord]) -> PinnedHosts:
    usable = [each for each in rows if is_certificate(each.certificate)]
    names = {ssl.PEM_cert_to_DER_cert(each.certificate): each.name for each in usable}
    certificates = [each.certificate for each in usable]
    known = {each.name: each for each in rows}
    return PinnedHosts(known, names, server_context(identity, certificates), client_context(identity, certificates))
