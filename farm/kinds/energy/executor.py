"""Jobs of kind `energy`: joules of one inference, by a power meter, or the phone's own rails or fuel gauge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.common.errors import Code, UserError
from farm.devices.health.probe_round import MOMENT_SECTIONS, probe
from farm.jobs.executor import AttemptContext
from farm.kinds.energy.phone import GaugeReader, PowerHost, RailsTraces, rails_period
from farm.kinds.energy.spec import EnergyTask, PowerSource
from farm.kinds.execution import ModelExecutor, is_virtual, measured, quiet_lease
from farm.model.device import DeviceView
from farm.model.health import Battery
from farm.model.specs import ModelTask

BATTERY_LIMIT_S = 10.0
CHARGING = "charging"
BY_PHYSICS = (
    "virtual phones discharge by physics: farm demo --stay --physics; farm demo fault PHONE charge mode=suspend"
)


class PowerExecutor(ModelExecutor):
    """Runs attempts whose worker reads the phone's power: by its meter, else its power rails, else its fuel gauge."""

    async def measured(self, context: AttemptContext, task: ModelTask[Any]) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate.

        Raises:
            FarmError: as `farm.kinds.execution.measured`.
        """
        gauge = GaugeReader(self.parts.client, context.view.serial)
        rails = RailsTraces(self.parts.client, context.view.serial)
        host = PowerHost(context, self.parts, quiet_lease(self.parts, context), gauge, rails)
        worker = f"farm.kinds.{context.spec.kind}.worker"
        try:
            return await measured(self.parts.work, context, worker, task.to_wire(), host)
        finally:
            await gauge.close()
            await rails.close()

    async def source(self, view: DeviceView) -> PowerSource:
        """What a phone has that measures its power; `why_not` says whether it can now.

        Raises:
            PhoneError: the phone does not answer.
        """
        meter = tuple(self.parts.meters.get(view.name, ()))
        found = "" if meter else await rails_period(self.parts.client, view.serial)
        period_s, no_rails = (None, found) if isinstance(found, str) else (found, "")
        return PowerSource(meter=meter, rails_period_s=period_s, no_rails=no_rails)

    async def why_not(self, view: DeviceView, source: PowerSource) -> str:
        """Why a phone's power cannot be measured now, words that follow the phone's name; "" where it can.

        A gauge cannot while a cable feeds the phone, a meter not while the battery is charged.

        Raises:
            PhoneError: the phone does not answer.
        """
        if source.rails_period_s is not None:  # they see what the chip takes, from wherever it comes
            return ""
        health, _ = await probe(self.parts.client, view.serial, MOMENT_SECTIONS, timeout_s=BATTERY_LIMIT_S)
        battery = health.battery
        if source.meter:
            charging = battery.status == CHARGING
            return "charges its battery: its power meter sees the charging current, too" if charging else ""
        why = why_not_by_gauge(battery)
        missing = f"no power meter, no power rails that serve ({source.no_rails})"
        return f"has {missing}, and its own fuel gauge sees only what the battery gives: {why}" if why else ""


class EnergyExecutor(PowerExecutor):
    """Runs attempts of kind energy."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate.

        Raises:
            UserError: the phone's power cannot be measured, or the model or its inputs cannot be used.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the power meter failed, or the worker died.
        """
        task = await self.task(context)
        report = await self.measured(context, task)
        await self._require_measurable(context.view, task.power)
        return report

    async def task(self, context: AttemptContext) -> EnergyTask:
        """The worker's task.

        Raises:
            UserError: the phone's power cannot be measured.
        """
        source = await self.source(context.view)
        await self._require_measurable(context.view, source)
        return EnergyTask(**self.model(context), power=source)

    async def _require_measurable(self, view: DeviceView, source: PowerSource) -> None:
        why = await self.why_not(view, source)
        if not why:
            return
        if source.meter:
            hint = 'wait until it is full, or hold the charge back: [battery] window = "phone" (docs/health.md)'
        elif is_virtual(view):
            hint = BY_PHYSICS
        else:
            hint = f'name the command of a meter: [power.meter] "{view.name}" = ["COMMAND"], or let the battery feed it'
        raise UserError(f"{view.name} {why}", Code.POWER_NOT_MEASURABLE, hint=hint)


def why_not_by_gauge(battery: Battery) -> str:
    """Why the gauge does not see all that the phone takes, a clause; "" where it does. Pure."""
    if battery.powered_by:
        return f"it gets power by {' and '.join(battery.powered_by)}"
    if battery.status != "discharging":
        return f"its battery says {battery.status!r}" if battery.status else "its battery tells no status"
    return ""
