"""Jobs of kind `run`: a model runs once on a phone, and its outputs are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.jobs.executor import AttemptContext, Executor
from farm.kinds.execution import ExecutorParts, LeaseHost
from farm.kinds.run.spec import RunSpec
from farm.model.specs import ModelTask

WORKER = "farm.kinds.run.worker"


@dataclass(frozen=True, slots=True)
class RunExecutor(Executor):
    """Runs attempts of kind run."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report with the known facts about the phone; arrays are in artifacts it names.

        Raises:
            UserError: the model, its inputs or its labels cannot be used, or the phone has no such target.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the worker died.
        """
        spec, work = context.spec, self.parts.work
        assert isinstance(spec, RunSpec)
        host = LeaseHost(context, self.parts)
        task = ModelTask(spec=spec, target=work.target(context, spec.target), cache=work.cache(context))
        return {**await work.run(context, WORKER, task.to_wire(), host), "target": spec.target}
