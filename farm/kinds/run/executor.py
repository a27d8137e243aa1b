"""Jobs of kind `run`: a model runs once on a phone, and its outputs are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.jobs.executor import AttemptContext
from farm.kinds.execution import LeaseHost, ModelExecutor, certified

WORKER = "farm.kinds.run.worker"


class RunExecutor(ModelExecutor):
    """Runs attempts of kind run."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report with the known facts about the phone; arrays are in artifacts it names."""
        task = await self.task(context)
        report = await self.parts.work.run(context, WORKER, task.to_wire(), LeaseHost(context, self.parts))
        certificate = {"certificate": certified(report, context.view)} if "certificate" in report else {}
        return {**report, **certificate, "target": task.spec.target}
