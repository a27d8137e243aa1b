"""The workers' door: one socket for all workers, each admitted by a token bound to its attempt and fence.

A worker may only speak for its own attempt. When the attempt has ended, so has its token: a late report is refused as
stale.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.control.artifacts import ArtifactFolder
from farm.control.entrances import UnixEntrance
from farm.control.router import Answer, Call, Router
from farm.control.server import get_artifact, put_artifact
from farm.core.errors import NotAllowedError
from farm.jobs.attempt import StaleAttemptError, Verbs

TOKEN_BYTES = 24  # 192 random bits


@dataclass(frozen=True, slots=True)
class _Admitted:
    fence: int
    token: str
    verbs: Verbs


class WorkerDoor:
    """Implements farm.jobs.attempt.Door."""

    def __init__(self, path: Path, artifacts: ArtifactFolder, *, gid: int | None = None) -> None:
        """`gid` is the workers' group when they run as another user."""
        self._path = path
        self._router = Router(UnixEntrance(path, gid), self._answer)
        self._artifacts = artifacts
        self._admitted: dict[str, _Admitted] = {}

    @property
    def socket_path(self) -> str:
        """The socket workers connect to."""
        return str(self._path)

    @property
    def parts(self) -> Sequence[asyncio.Task[None]]:
        """What runs for as long as the door is open."""
        return self._router.parts

    async def start(self) -> None:
        """Open the door.

        Raises:
            DoorError: the socket cannot be opened.
        """
        await self._router.start()

    async def stop(self) -> None:
        """Close the door."""
        await self._router.stop()

    def admit(self, attempt: str, fence: int, verbs: Verbs) -> str:
        """Let the worker of `attempt` in from now on; returns the token it must show."""
        if attempt in self._admitted:
            raise ValueError(f"attempt {attempt} runs already")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._admitted[attempt] = _Admitted(fence, token, verbs)
        return token

    def dismiss(self, attempt: str) -> None:
        """Refuse this attempt's worker from now on."""
        self._admitted.pop(attempt, None)

    async def _answer(self, call: Call) -> Answer:
        request = call.request
        admitted = self._admitted.get(request.attempt)
        if admitted is None or admitted.fence != request.fence:
            raise StaleAttemptError(f"attempt {request.attempt or '(none)'} with fence {request.fence} is not running")
        if not hmac.compare_digest(admitted.token, request.token):
            raise NotAllowedError(f"that is not the token of attempt {request.attempt}")
        if request.kind in ("artifact.get", "artifact.put"):
            await admitted.verbs.handle("heartbeat", {})  # a long transfer is a sign of life
            if request.kind == "artifact.get":
                return await get_artifact(self._artifacts, request)
            return Answer(await put_artifact(self._artifacts, request, f"attempt {request.attempt}"))
        return Answer(await admitted.verbs.handle(request.kind, request.fields))
