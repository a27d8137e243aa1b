"""Jobs of kind `run`: a model once on one phone, its outputs kept as an artifact. The work is farm.worker.run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.core.errors import UserError
from farm.jobs.executor import Running
from farm.jobs.phone_work import PhoneWork
from farm.jobs.specs import RunSpec
from farm.jobs.tasks import RunTask

WORKER = "farm.worker.run"


class RunExecutor:
    """Runs attempts of kind `run`."""

    def __init__(self, work: PhoneWork) -> None:
        self._work = work

    async def run(self, running: Running) -> Mapping[str, Any]:
        """Run the model; the result names the artifact with its outputs.

        Raises:
            UserError: the model, its inputs or its labels cannot be used.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the worker died.
        """
        spec = running.spec
        assert isinstance(spec, RunSpec)
        if spec.labels and not spec.top_k:
            raise UserError("labels are for the largest elements, and top_k is 0", hint="give top_k too, say 5")
        task = RunTask(
            model=spec.model,
            name=spec.name,
            inputs=spec.inputs,
            target_name=spec.target,
            target=self._work.target(running, spec.target),
            cache=self._work.cache(running),
            fill=spec.fill,
            top_k=spec.top_k,
            labels=spec.labels,
        )
        return {**await self._work.run(running, WORKER, task.to_wire()), "target": spec.target}
