"""Jobs of kind `sweep`: one build timed under several placements of its threads on a phone."""

from __future__ import annotations

from farm.jobs.executor import AttemptContext
from farm.kinds.execution import ModelExecutor
from farm.kinds.sweep import SweepSpec, SweepTask


class SweepExecutor(ModelExecutor):
    """Runs attempts of kind sweep."""

    async def task(self, context: AttemptContext) -> SweepTask:
        """The worker's task."""
        spec, view = context.spec, context.view
        assert isinstance(spec, SweepSpec)
        placements, left_out = spec.settings_on(view.identity.cpu if view.identity else (), view.name)
        return SweepTask(**self.model(context), placements=placements, left_out=left_out)
