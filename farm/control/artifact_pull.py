"""Artifacts that this host lacks, from the other hosts of a lab and from its object store.

`ArtifactPull` is the folder's `pull`: it asks the sources of the artifact in turn, continues where an earlier one was
cut off, and lets the folder check the hash, the room and the budget as of an upload.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from farm.common.errors import Code, FarmError, HostError
from farm.common.files import short_hash
from farm.common.tasks import SharedCall
from farm.control.artifacts import MAX_ARTIFACT_BYTES, ArtifactFolder, no_such_artifact_error
from farm.control.messages import MAX_FRAME_BYTES

SENDER = "other hosts"  # of pulled artifacts, in the folder's budget


@dataclass(frozen=True, slots=True)
class ArtifactStream:
    """An artifact on its way here."""

    total_bytes: int  # of all of it
    chunks: AsyncIterator[bytes]  # from the offset on that was asked for


class ArtifactSource(Protocol):
    """Another place that may have artifacts: a host of the lab, or its object store."""

    @property
    def name(self) -> str:
        """For people."""

    def read(self, sha256: str, offset: int) -> AbstractAsyncContextManager[ArtifactStream]:
        """The artifact from an offset on.

        Raises:
            FarmError: it is not there, or the source does not answer; also while chunks are read.
        """


class ArtifactPull:
    """Pulls artifacts by their hash, each once for all callers that wait for it."""

    def __init__(self, folder: ArtifactFolder, sources: Callable[[str], Awaitable[Sequence[ArtifactSource]]]) -> None:
        """`sources` names the sources that may have an artifact, the best first."""
        self._folder = folder
        self._sources = sources
        self._shared = SharedCall(self._pull)
        self._under_way: set[str] = set()

    async def __call__(self, sha256: str) -> None:
        """Get the artifact into the folder.

        Raises:
            UserError: no source has it.
            HostError: every source that may have it failed, or there is no room here.
        """
        await self._shared(sha256)

    def brings(self, sha256: str) -> bool:
        """Whether a pull of that artifact is under way."""
        return sha256 in self._under_way

    async def _pull(self, sha256: str) -> None:
        failed = []
        self._under_way.add(sha256)
        try:
            for source in await self._sources(sha256):
                try:
                    await self._pull_from(source, sha256)
                except FarmError as error:
                    if error.code == Code.ARTIFACT_NOT_STORED:
                        raise
                    failed.append(f"{source.name}: {error.message}")
                else:
                    return
        finally:
            self._under_way.discard(sha256)
        if not failed:
            raise no_such_artifact_error(sha256)
        raise HostError(
            f"artifact {short_hash(sha256)} cannot be pulled from another host: {'; '.join(failed)}",
            Code.ARTIFACT_AWAY,
            hint="see whether these hosts run (farm host list), or upload it again",
        )

    async def _pull_from(self, source: ArtifactSource, sha256: str) -> None:
        """Get it from one source; asks again as long as each try brings more bytes."""
        there = begun = await self._there(sha256)
        while True:
            try:
                there = await self._go_on(source, sha256, there)
            except FarmError as error:
                if error.code == Code.BAD_ARTIFACT and begun > 0:  # the part of another source may be the wrong one
                    self._folder.drop_partial(sha256, SENDER)
                    there = begun = 0
                    continue
                after = await self._there(sha256)
                if error.code in (Code.BAD_ARTIFACT, Code.ARTIFACT_NOT_STORED) or after <= there:
                    raise
                there = after
            else:
                if self._folder.has(sha256):
                    return
                raise HostError(f"its {there} bytes are not all of it", Code.ARTIFACT_AWAY)

    async def _go_on(self, source: ArtifactSource, sha256: str, there: int) -> int:
        """Read until the source ends; returns the size of the part here, in bytes."""
        async with source.read(sha256, there) as stream:
            async for chunk in stream.chunks:
                for begin in range(0, len(chunk), MAX_FRAME_BYTES):
                    part = chunk[begin : begin + MAX_FRAME_BYTES]
                    there = (await self._folder.put(sha256, there, part, stream.total_bytes, SENDER)).size_bytes
        return (await self._folder.put(sha256, there, b"", stream.total_bytes, SENDER)).size_bytes

    async def _there(self, sha256: str) -> int:
        """The size of the part that earlier pulls left here, in bytes."""
        return (await self._folder.put(sha256, 0, b"", MAX_ARTIFACT_BYTES, SENDER)).size_bytes
