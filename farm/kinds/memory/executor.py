"""Jobs of kind `memory`: the phases of a model's life on a phone, with its memory in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.jobs.executor import AttemptContext
from farm.kinds.execution import ModelExecutor, quiet_lease
from farm.kinds.memory.phone import MemoryHost

WORKER = "farm.kinds.memory.worker"


class MemoryExecutor(ModelExecutor):
    """Runs attempts of kind memory."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone and its quiet.

        Raises:
            UserError: the model or its inputs cannot be used, or the phone has no such target.
            PhoneError: the phone failed, computed wrong numbers, or does not show its processes.
            HostError: the worker died.
        """
        task = await self.task(context)
        host = MemoryHost(context, self.parts, quiet_lease(self.parts, context))
        try:
            report = await self.parts.work.run(context, WORKER, task.to_wire(), host)
        finally:
            await host.quiet.end()
        notes = [*report["notes"], *host.quiet.notes()]
        return {**report, "target": task.spec.target, "quiesce": host.quiet.to_wire(), "notes": notes}
