"""The artifacts of a host in a lab: their rows in the database, and a second copy of each new one.

An upload is answered when this host has it. Its second copy follows in the background: in the lab's object store, where
there is one, else at another host. One that could not be made is tried again as long as the artifact is young.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta

from farm.common.errors import FarmError
from farm.common.tasks import BackgroundTasks
from farm.control.artifact_pull import ArtifactPull
from farm.control.artifact_rules import RECENT_S
from farm.control.artifacts import ArtifactFolder
from farm.store.artifact_copies import ArtifactCopies, ArtifactCopy, changes
from farm.store.database import BackgroundWrites

COPY_EVERY_S = 30.0  # between looks for artifacts with one copy only
MAX_AT_ONCE = 20  # artifacts of one look

log = logging.getLogger(__name__)

# Makes a second copy; False: no other place took it.
SecondCopy = Callable[[str], Awaitable[bool]]


class SecondCopies:
    """Follows a folder: `run` for as long as the daemon, `close` before the store goes."""

    def __init__(
        self,
        folder: ArtifactFolder,
        pull: ArtifactPull,
        copies: ArtifactCopies,
        host: str,
        second_copy: SecondCopy,
    ) -> None:
        """Artifacts of `pull` have another copy already. `host`: this host's name. Create it on the event loop."""
        self._folder = folder
        self._pull = pull
        self._copies = copies
        self._host = host
        self._second_copy = second_copy
        self._loop = asyncio.get_running_loop()
        self._unwritten: dict[str, int | None] = {}  # by SHA-256, as `ArtifactCopies.change` takes them
        self._copied: set[str] = set()  # young artifacts to which this daemon has given a second copy
        self._closed = False
        self._writes = BackgroundWrites()
        self._tasks = BackgroundTasks()
        self.store_problem = self._writes.on_store_problem
        folder.on_change = self._changed

    async def run(self) -> None:
        """Write the rows of the folder, then look for artifacts without a second copy, until cancelled."""
        files = await asyncio.to_thread(self._folder.sizes)
        rows = await self._copies.read(self._copies.of_host, self._host)
        self._write({**changes(rows, files), **self._unwritten})
        while True:
            await asyncio.sleep(COPY_EVERY_S)
            try:
                await self._look()
            except FarmError as error:
                log.debug("no second copies are made now: %s", error)

    async def close(self) -> None:
        """Give up copies under way, and write the rows that wait. `run` finds later artifacts at the next start."""
        self._closed = True
        await self._tasks.end(0.0)
        await self._writes.close()

    def _changed(self, sha256: str, size_bytes: int | None) -> None:
        """In any thread."""
        self._loop.call_soon_threadsafe(self._note, sha256, size_bytes)

    def _note(self, sha256: str, size_bytes: int | None) -> None:
        if self._closed:
            return
        self._write({sha256: size_bytes})
        if size_bytes is not None and not self._pull.brings(sha256):
            self._tasks.spawn(self._copy(sha256), f"second copy of artifact {sha256}")

    def _write(self, sizes: dict[str, int | None]) -> None:
        self._unwritten |= sizes
        if self._unwritten:
            self._writes.replace("artifacts of this host", self._write_down)

    async def _write_down(self) -> None:
        writing = dict(self._unwritten)
        await self._copies.change(self._host, writing)
        for sha256, size_bytes in writing.items():
            if self._unwritten.get(sha256, -1) == size_bytes:
                del self._unwritten[sha256]

    async def _look(self) -> None:
        since = datetime.now(UTC) - timedelta(seconds=RECENT_S)
        alone = await self._copies.in_thread(self._copies.alone, self._host, since)
        young = {each.sha256 for each in alone}
        self._copied &= young
        for each in _foremost(alone, self._copied):
            await self._copy(each.sha256)

    async def _copy(self, sha256: str) -> None:
        try:
            if await self._second_copy(sha256):
                self._copied.add(sha256)
        except FarmError as error:
            log.info("artifact %s has no second copy yet: %s", sha256, error)


def _foremost(alone: Iterable[ArtifactCopy], copied: set[str]) -> list[ArtifactCopy]:
    """The artifacts to copy at this look, the oldest first: farm forgets those soonest."""
    return sorted((each for each in alone if each.sha256 not in copied), key=lambda each: each.at)[:MAX_AT_ONCE]
