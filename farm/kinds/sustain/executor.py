"""Jobs of kind `sustain`: a model that heats a phone for minutes. The daemon says at which temperature it must end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from farm.common.errors import PhoneError
from farm.jobs.executor import AttemptContext
from farm.kinds.energy import PowerSource
from farm.kinds.energy.executor import PowerExecutor
from farm.kinds.execution import placement_on
from farm.kinds.sustain import SustainTask

BELOW_LIMIT_C = 2.0  # of the finding that takes the phone away: readings are seconds apart


class SustainExecutor(PowerExecutor):
    """Runs attempts of kind sustain."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate. A power meter that saw a charger is noted."""
        task = await self.task(context)
        report = await self.measured(context, task)
        if task.power.meter:
            with suppress(PhoneError):  # one that is silent now has done its run
                if why := await self.why_not(context.view, task.power):
                    report["certificate"]["notes"].append(f"{context.view.name} {why}")
        return report

    async def task(self, context: AttemptContext) -> SustainTask:
        """The worker's task. A phone whose power nothing measures runs, too."""
        placements = placement_on(context.spec, context.view)
        stop_c = self.parts.fleet.findings.battery_hot_c - BELOW_LIMIT_C
        power = await self.source(context.view)
        if why := await self.why_not(context.view, power):
            power = PowerSource(none=f"it {why}")
        return SustainTask(**self.model(context), placements=placements, stop_c=stop_c, power=power)
