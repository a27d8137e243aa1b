"""Jobs of kind `bench`: a model timed on a phone; the phone's conditions go into the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.jobs.executor import AttemptContext, Executor
from farm.kinds.bench.spec import BenchSpec
from farm.kinds.execution import (
    ExecutorParts,
    MeasuringHost,
    epoch_of,
    is_virtual,
    measured,
    quiet_lease,
)
from farm.model.specs import ModelTask


@dataclass(frozen=True, slots=True)
class BenchExecutor(Executor):
    """Runs attempts of kind bench."""

    parts: ExecutorParts

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate.

        Raises:
            UserError: the model or its inputs cannot be used, or the phone has no such target.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the worker died.
        """
        spec, parts, work = context.spec, self.parts, self.parts.work
        assert isinstance(spec, BenchSpec)
        nominals = await parts.nominals(context.view.name, epoch_of(context.view))
        task = ModelTask(
            spec=spec, target=work.target(context, spec.target), cache=work.cache(context), nominals=nominals,
            virtual=is_virtual(context.view),
        )  # fmt: skip
        host = MeasuringHost(context, parts, quiet_lease(parts, context))
        return await measured(work, context, "farm.kinds.bench.worker", task.to_wire(), host)
