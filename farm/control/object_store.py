"""A lab's object store: a second place for artifacts, through obstore (S3, Google Cloud, Azure, a folder).

An object's name is its artifact's SHA-256 below the configured prefix, so no object is ever written twice. Farm deletes
no object: a rule of the bucket says how long they stay. Credentials come from the environment, as the
vendors' tools read them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_...).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from farm.common.errors import Code, FarmError, HostError, UserError
from farm.common.install import pip_install
from farm.control.artifact_pull import ArtifactStream
from farm.control.artifacts import no_such_artifact_error
from farm.control.messages import MAX_FRAME_BYTES


class ObjectStore:
    """An `ArtifactSource` that also takes artifacts."""

    def __init__(self, url: str) -> None:
        """Prepare; nothing is asked of the store yet. Imports obstore.

        Raises:
            UserError: obstore is not installed, or it knows no such URL.
        """
        self._url = url
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            raise UserError(
                "[lab] object_store needs the package obstore, which is not installed",
                Code.BAD_CONFIG,
                hint=pip_install("objectstore", sys.executable),
            ) from error
        self._obstore: Any = obstore
        try:
            self._store: Any = from_url(url)
        except (BaseError, ValueError) as error:
            raise UserError(
                f"[lab] object_store: {url!r} is no object store: {_first_line(error)}",
                Code.BAD_CONFIG,
                hint="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER",
            ) from error

    @property
    def name(self) -> str:
        """For people."""
        return f"the object store {self._url}"

    @asynccontextmanager
    async def read(self, sha256: str, offset: int) -> AsyncIterator[ArtifactStream]:
        """See `ArtifactSource.read`."""
        with self._reported():
            try:
                size_bytes = (await self._obstore.head_async(self._store, sha256))["size"]
            except FileNotFoundError as error:
                raise no_such_artifact_error(sha256) from error
        yield ArtifactStream(size_bytes, self._chunks(sha256, offset, size_bytes))

    async def _chunks(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        if offset >= size_bytes:
            return
        with self._reported():
            found = await self._obstore.get_async(self._store, sha256, options={"range": {"offset": offset}})
            async for chunk in found.stream(min_chunk_size=MAX_FRAME_BYTES):
                yield bytes(chunk)

    async def keep(self, sha256: str, path: Path) -> None:
        """Put an artifact there, unless it is there.

        Raises:
            HostError: the store does not take it.
        """
        with self._reported():
            try:
                await self._obstore.head_async(self._store, sha256)
            except FileNotFoundError:
                await self._obstore.put_async(self._store, sha256, path)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except FarmError:
            raise
        except Exception as error:  # a panic of its Rust code is none of obstore's exceptions
            raise HostError(
                f"{self.name} cannot be used: {_first_line(error)}",
                Code.ARTIFACT_AWAY,
                hint="look at [lab] object_store and its credentials in the daemon's environment",
                evidence=str(error),
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
