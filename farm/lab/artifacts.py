"""Artifacts between hosts: the services `artifact` and `artifact.keep`, other hosts as sources, and second copies.

artifact {sha256, offset} -> {total_bytes}, then its bytes from the offset on
artifact.keep {sha256} -> {}, then a line of JSON when the host that was asked has pulled it: {"error": null or ...}
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from farm.common.errors import Code, FarmError, HostError, error_from_wire, error_to_wire
from farm.common.files import short_hash
from farm.common.tasks import SharedCall
from farm.control.artifact_pull import ArtifactPull, ArtifactSource, ArtifactStream
from farm.control.artifacts import ArtifactFolder, artifact_error, checked_sha256, read_frame
from farm.control.messages import MAX_FRAME_BYTES
from farm.control.object_store import ObjectStore
from farm.lab.link import HostLink, LinkCall
from farm.store.artifact_copies import ArtifactCopies

IDLE_S = 30.0  # without a byte of an artifact under way
COPY_LIMIT_S = 600.0  # for another host to pull one: the largest have some GB


class HostArtifacts:
    """Sends this host's artifacts to other hosts, and pulls theirs."""

    def __init__(
        self, link: HostLink, folder: ArtifactFolder, copies: ArtifactCopies, object_store: ObjectStore | None = None
    ) -> None:
        """Serve the other hosts from now on, and let the folder pull the artifacts that it lacks."""
        self._link = link
        self._folder = folder
        self._copies = copies
        self._store = object_store
        self._offered: dict[str, str] = {}  # by SHA-256: the host that wants a copy made here
        self.pull = ArtifactPull(folder, self._sources)
        self.second_copy = SharedCall(self._second_copy)
        folder.pull = self.pull
        link.serve("artifact", self._send)
        link.serve("artifact.keep", self._keep)

    async def _second_copy(self, sha256: str) -> bool:
        """Give an artifact that is here a copy at another place; False: there is no other place.

        Raises:
            HostError: none of the other places takes it.
        """
        if self._store is not None:
            await self._store.keep(sha256, self._folder.path(sha256))
            return True
        failed = []
        for host in in_order(sha256, await self._link.hosts()):
            try:
                await self._have_kept(host, sha256)
            except FarmError as error:
                failed.append(f"{host}: {error.message}")
            else:
                return True
        if failed:
            raise HostError(f"artifact {short_hash(sha256)} has one copy: {'; '.join(failed)}", Code.ARTIFACT_AWAY)
        return False

    async def _sources(self, sha256: str) -> Sequence[ArtifactSource]:
        hosts = [self._offered[sha256]] if sha256 in self._offered else []
        hosts += [each.host for each in await self._copies.read(self._copies.of, sha256)]
        own = self._link.identity.name
        sources: list[ArtifactSource] = [_OtherHost(self._link, each) for each in dict.fromkeys(hosts) if each != own]
        return sources if self._store is None else [*sources, self._store]

    async def _have_kept(self, host: str, sha256: str) -> None:
        connection = await self._link.dial(host, "artifact.keep", {"sha256": sha256})
        try:
            reader, _ = await connection.streams()
            async with asyncio.timeout(COPY_LIMIT_S):
                failure = json.loads(await reader.readline())["error"]
        except (OSError, ValueError, LookupError, TypeError, TimeoutError) as error:
            raise HostError(f"the copy was broken off: {error}", Code.ARTIFACT_AWAY) from error
        finally:
            await connection.close()
        if failure is not None:
            raise error_from_wire(failure)

    # --- for other hosts ------------------------------------------------------------------------------------------

    async def _send(self, call: LinkCall) -> None:
        """The service `artifact`: sends an artifact that is here, and pulls none for it."""
        sha256, offset = str(call.fields.get("sha256")), call.fields.get("offset")
        path = await asyncio.to_thread(self._folder.path, sha256)
        size_bytes = await asyncio.to_thread(lambda: path.stat().st_size)
        if not isinstance(offset, int) or not 0 <= offset <= size_bytes:
            raise artifact_error(f"offset {offset} is outside artifact {short_hash(sha256)} of {size_bytes} bytes")
        await call.accept(total_bytes=size_bytes)
        _, writer = await call.streams()
        while offset < size_bytes and (data := await asyncio.to_thread(read_frame, path, offset)):
            writer.write(data)
            await call.drain()
            offset += len(data)

    async def _keep(self, call: LinkCall) -> None:
        """The service `artifact.keep`: pull an artifact from the host that asks."""
        sha256 = checked_sha256(str(call.fields.get("sha256")))
        await call.accept()
        _, writer = await call.streams()
        error = None
        self._offered[sha256] = call.host
        try:
            await self._folder.ensure(sha256)
        except FarmError as failed:
            error = error_to_wire(failed)
        finally:
            self._offered.pop(sha256, None)
        writer.write(json.dumps({"error": error}).encode() + b"\n")
        await call.drain()


@dataclass(frozen=True, slots=True)
class _OtherHost:
    """Another host as an `ArtifactSource`."""

    link: HostLink
    host: str

    @property
    def name(self) -> str:
        return f"host {self.host}"

    @asynccontextmanager
    async def read(self, sha256: str, offset: int) -> AsyncIterator[ArtifactStream]:
        connection = await self.link.dial(self.host, "artifact", {"sha256": sha256, "offset": offset})
        try:
            reader, _ = await connection.streams()
            total_bytes = connection.fields.get("total_bytes")
            if not isinstance(total_bytes, int):
                raise HostError("it does not name the size", Code.ARTIFACT_AWAY)
            yield ArtifactStream(total_bytes, _chunks(reader, total_bytes - offset))
        finally:
            await connection.close()


async def _chunks(reader: asyncio.StreamReader, left_bytes: int) -> AsyncIterator[bytes]:
    while left_bytes > 0:
        try:
            async with asyncio.timeout(IDLE_S):
                data = await reader.readexactly(min(left_bytes, MAX_FRAME_BYTES))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial
            reason = f"the connection ended {left_bytes - len(error.partial)} bytes too early"
            raise HostError(reason, Code.ARTIFACT_AWAY) from error
        except (OSError, TimeoutError) as error:
            raise HostError(f"it was cut off: {error or 'nothing came any more'}", Code.ARTIFACT_AWAY) from error
        yield data
        left_bytes -= len(data)


def in_order(sha256: str, hosts: Iterable[str]) -> list[str]:
    """The hosts in the order in which they are asked to keep a copy; the order differs from artifact to artifact."""
    return sorted(hosts, key=lambda host: hashlib.sha256(f"{sha256} {host}".encode()).digest())
