"""The verb `bench`: a job's steps as they happen, then its results."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from farm.control.router import CallerGoneError
from farm.control.server import ControlCall, ControlServer, Role
from farm.core.error_wire import error_to_wire
from farm.core.errors import FarmError
from farm.core.job import Job, JobState
from farm.jobs.bench import BenchRunner
from farm.jobs.model import BenchSpec
from farm.store.store import Store


class BenchVerbs:
    """Verbs about bench jobs."""

    def __init__(self, runner: BenchRunner, store: Store) -> None:
        self._runner = runner
        self._store = store

    def register(self, server: ControlServer) -> None:
        """Add the verb to the door."""
        server.register("bench", self.bench, Role.USER)

    async def bench(self, call: ControlCall) -> Mapping[str, Any]:
        """Run a bench. The caller's leaving cancels it."""
        spec = BenchSpec.from_wire(call.fields)
        job_id = f"bench-{secrets.token_hex(4)}"
        job = Job(job_id, "bench", call.caller.user, asdict(spec), spec.selector, datetime.now(UTC), JobState.RUNNING)
        await self._store.jobs.add((job,))
        steps: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

        def progress(device: str, step: str, facts: Mapping[str, Any]) -> None:
            steps.put_nowait({"device": device, "step": step, **facts})

        async def tell() -> None:
            with contextlib.suppress(CallerGoneError):  # the door cancels the bench of a caller that left
                while (step := await steps.get()) is not None:
                    await call.progress(**step)

        telling = asyncio.create_task(tell())
        try:
            try:
                result = await self._runner.run(job_id, spec, call.caller.user, progress)
            except BaseException as error:
                await self._end(job, {"error": error_to_wire(error)}, ok=False)
                raise
            answer = result.to_wire()
            await self._end(job, answer, ok=result.ok)
            steps.put_nowait(None)
            await telling  # every step comes before the answer
        finally:
            telling.cancel()
        return answer

    async def _end(self, job: Job, result: Mapping[str, Any], *, ok: bool) -> None:
        """Keep a job's result, whoever gives up waiting meanwhile."""
        ended = replace(job, state=JobState.DONE if ok else JobState.FAILED, ended_at=datetime.now(UTC))
        await asyncio.shield(self._store.jobs.save(ended, expected={JobState.RUNNING}, result=result))


async def give_up_lost_jobs(store: Store) -> None:
    """End the jobs that a killed daemon left running."""
    lost = FarmError("the daemon died while it ran", hint="submit it again")
    for job in store.jobs.live():
        ended = replace(job, state=JobState.FAILED, ended_at=datetime.now(UTC), error=error_to_wire(lost))
        await store.jobs.save(ended, expected={job.state})
