"""Jobs of kind `bench`: a model timed on a phone; the phone's conditions go into the certificate."""

from __future__ import annotations

from typing import Any

from farm.jobs.executor import AttemptContext
from farm.kinds.execution import ModelExecutor, epoch_of, placement_on
from farm.model.specs import ModelTask


class BenchExecutor(ModelExecutor):
    """Runs attempts of kind bench."""

    async def task(self, context: AttemptContext) -> ModelTask[Any]:
        """The worker's task, with the phone's seconds of reference kernels."""
        of = (context.view.name, epoch_of(context.view), context.job.user)
        nominals = await self.parts.nominals(*of)
        earlier = await self.parts.earlier(*of, str(context.job.spec.get("model", "")))
        placements = placement_on(context.spec, context.view)
        return ModelTask(**self.model(context), nominals=nominals, placements=placements, earlier=earlier)
