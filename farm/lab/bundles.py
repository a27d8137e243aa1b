"""Bundles between hosts: a bundle that is added at one host becomes an artifact with a row in the database.

Each host with phones of its ABI takes it into its own library. Each host rolls it out to its own phones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from farm.bundle.library import BundleLibrary, NoSuchBundleError
from farm.bundle.model import Bundle
from farm.common.errors import FarmError
from farm.control.artifacts import ArtifactFolder
from farm.store.shared_bundles import SharedBundle, SharedBundleTable

log = logging.getLogger(__name__)


class HostBundles:
    """Shares this host's bundles, and takes in those of other hosts whenever `look` is called."""

    def __init__(
        self,
        host: str,
        library: BundleLibrary,
        artifacts: ArtifactFolder,
        table: SharedBundleTable,
        groups: Callable[[], Collection[tuple[str, str]]],
        changed: Callable[[str], Awaitable[None]],
        offered: Path,
    ) -> None:
        """Prepare.

        Args:
            host: this host's name.
            library: its bundles.
            artifacts: its artifacts, which other hosts can pull.
            table: the bundles that hosts share.
            groups: ABI and platform of the phones here.
            changed: called with the hash of each bundle that was taken in.
            offered: a file that is there once the bundles from before this host joined are offered.
        """
        self._host = host
        self._library = library
        self._artifacts = artifacts
        self._table = table
        self._groups = groups
        self._changed = changed
        self._offered = offered
        self._seen: tuple[tuple[SharedBundle, ...], frozenset[tuple[str, str]]] = (), frozenset()

    async def share(self, bundle: Bundle, name: str = "") -> None:
        """Offer a bundle of this host, under this or its newest name, to every host.

        Raises:
            HostError: there is no room for it as an artifact, or the database cannot be written now.
        """
        artifact = await asyncio.to_thread(self._packed, bundle)
        await self._table.share(
            SharedBundle(
                name or bundle.name, bundle.hash, bundle.abi, bundle.platform or "", artifact, self._host,
                datetime.now(UTC),
            )
        )  # fmt: skip

    async def withdraw(self, names: Collection[str]) -> None:
        """Offer bundles that were removed here no more; hosts that have them keep them."""
        await self._table.withdraw(names)

    async def look(self) -> None:
        """Take in the shared bundles that phones here can use.

        Raises:
            FarmError: one cannot be had now; the others were taken in.
        """
        shared = await self._table.in_thread(self._table.all)
        if not self._offered.exists():
            await self._offer({each.name for each in shared})
            shared = await self._table.in_thread(self._table.all)
        groups = frozenset(self._groups())
        if (shared, groups) == self._seen:
            return
        problems: list[FarmError] = []
        for each in shared:
            if (each.abi, each.platform) not in groups or await asyncio.to_thread(self._has, each):
                continue
            if each in await self._table.in_thread(self._table.all):  # else it was removed meanwhile
                try:
                    await self._take_in(each)
                except FarmError as error:
                    problems.append(error)
        if problems:
            raise problems[0]
        self._seen = shared, groups

    async def _take_in(self, shared: SharedBundle) -> None:
        packed = await self._artifacts.ensure(shared.artifact)
        await asyncio.to_thread(self._library.take_in, packed, shared.bundle, shared.name)
        log.info("bundle %s of host %s is here now", shared.name, shared.host)
        await self._changed(shared.bundle)

    async def _offer(self, taken: Collection[str]) -> None:
        """Offer, once, the bundles from before this host joined: hosts without a bundle quarantine their phones."""
        for bundle in await asyncio.to_thread(self._library.list):
            whole = not await asyncio.to_thread(self._library.verify, bundle.hash)
            for name in bundle.names if whole else ():
                if name not in taken:
                    await self.share(bundle, name)
        self._offered.touch()

    def _has(self, shared: SharedBundle) -> bool:
        try:
            return self._library.get(shared.name).hash == shared.bundle
        except NoSuchBundleError:
            return False

    def _packed(self, bundle: Bundle) -> str:
        with self._artifacts.scratch() as scratch:
            with scratch.path.open("wb") as file:
                self._library.pack(bundle.hash, file)
            return self._artifacts.take(scratch)
