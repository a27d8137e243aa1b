"""Bundles of a lab of several hosts: each is added at one host, for every host with phones of its ABI."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select

from farm.store.database import TableAccess, values_of
from farm.store.schema import shared_bundle


@dataclass(frozen=True, slots=True)
class SharedBundle:
    """A name of a bundle, and where its files are."""

    name: str
    bundle: str  # hash
    abi: str
    platform: str
    artifact: str  # SHA-256 of the bundle as one file
    host: str  # where it was added
    at: datetime


class SharedBundleTable(TableAccess):
    """Statements over shared bundles."""

    def all(self) -> tuple[SharedBundle, ...]:
        """Every name, in the order in which they were given."""
        rows = self._database.rows(select(shared_bundle).order_by(shared_bundle.c.at, shared_bundle.c.name))
        return tuple(SharedBundle(**row) for row in rows)

    async def share(self, shared: SharedBundle) -> None:
        """Offer a bundle to every host; its name may have been another bundle's."""
        await self._database.put(shared_bundle, values_of(shared))

    async def withdraw(self, names: Collection[str]) -> None:
        """Offer these names no more; hosts keep the bundles that they have."""
        await self._database.execute(delete(shared_bundle).where(shared_bundle.c.name.in_(names)))
