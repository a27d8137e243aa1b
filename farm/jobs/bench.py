"""Jobs of kind `bench`: a model checked and timed on one phone. The work is farm.worker.bench's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.jobs.executor import Running
from farm.jobs.phone_work import PhoneWork
from farm.jobs.specs import BenchSpec
from farm.jobs.tasks import BenchTask

WORKER = "farm.worker.bench"


class BenchExecutor:
    """Runs attempts of kind `bench`."""

    def __init__(self, work: PhoneWork) -> None:
        self._work = work

    async def run(self, running: Running) -> Mapping[str, Any]:
        """Bench the model; the result has its samples, how far its numbers are off, and what was measured how.

        Raises:
            UserError: the model or its inputs cannot be used, or the phone has no such target.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the worker died.
        """
        spec = running.spec
        assert isinstance(spec, BenchSpec)
        task = BenchTask(
            model=spec.model,
            name=spec.name,
            inputs=spec.inputs,
            target_name=spec.target,
            target=self._work.target(running, spec.target),
            cache=self._work.cache(running),
            repeat=spec.repeat,
            number=spec.number,
            min_repeat_ms=spec.min_repeat_ms,
        )
        return {**await self._work.run(running, WORKER, task.to_wire()), "target": spec.target}
