"""Jobs of kind `sustain`: a model that heats a phone for minutes. The daemon says at which temperature it must end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from farm.common.errors import FarmError
from farm.jobs.executor import AttemptContext
from farm.kinds.energy.executor import charges
from farm.kinds.execution import ModelExecutor, placement_on
from farm.kinds.sustain.spec import SustainTask

CHARGED = "its battery is charged, which its power meter sees, too"
BELOW_LIMIT_C = 2.0  # of the finding that takes the phone away: readings are seconds apart


class SustainExecutor(ModelExecutor):
    """Runs attempts of kind sustain."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate. A power meter that saw a charger is noted.

        Raises:
            FarmError: as `ModelExecutor.run`.
        """
        report = await ModelExecutor.run(self, context)
        certificate = report["certificate"]
        with suppress(FarmError):  # a phone that is silent now has done its run
            if certificate["meter"] and await charges(self.parts, context.view):
                certificate["notes"].append(CHARGED)
        return report

    async def task(self, context: AttemptContext) -> SustainTask:
        """The worker's task.

        Raises:
            PhoneError: the phone does not answer.
        """
        placements = placement_on(context.spec, context.view)
        stop_c = self.parts.fleet.findings.battery_hot_c - BELOW_LIMIT_C
        meter = tuple(self.parts.meters.get(context.view.name, ()))
        no_meter = CHARGED if meter and await charges(self.parts, context.view) else ""
        return SustainTask(
            **self.model(context), placements=placements, stop_c=stop_c, meter=() if no_meter else meter,
            no_meter=no_meter,
        )  # fmt: skip
