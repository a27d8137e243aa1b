"""Jobs of kind `energy`: joules of one inference, by the power meter of its phone or its own fuel gauge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.common.errors import Code, UserError
from farm.devices.health.probe_round import MOMENT_SECTIONS, probe
from farm.jobs.executor import AttemptContext
from farm.kinds.energy.phone import GaugeHost, GaugeReader
from farm.kinds.energy.spec import EnergyTask
from farm.kinds.execution import ExecutorParts, ModelExecutor, measured, quiet_lease
from farm.model.device import DeviceView
from farm.model.health import Battery

BATTERY_LIMIT_S = 10.0
CHARGING = "charging"
WORKER = "farm.kinds.energy.worker"


class EnergyExecutor(ModelExecutor):
    """Runs attempts of kind energy."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate.

        Raises:
            UserError: the phone's power cannot be measured, or the model or its inputs cannot be used.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the power meter failed, or the worker died.
        """
        task = await self.task(context)
        gauge = GaugeReader(self.parts.client, context.view.serial)
        host = GaugeHost(context, self.parts, quiet_lease(self.parts, context), gauge)
        try:
            report = await measured(self.parts.work, context, WORKER, task.to_wire(), host)
        finally:
            await gauge.close()
        await self._refuse_fed(context.view, metered=bool(task.meter))
        return report

    async def task(self, context: AttemptContext) -> EnergyTask:
        """The worker's task.

        Raises:
            UserError: the phone's power cannot be measured.
        """
        view = context.view
        meter = self.parts.meters.get(view.name, ())
        await self._refuse_fed(view, metered=bool(meter))
        return EnergyTask(**self.model(context), meter=tuple(meter))

    async def _refuse_fed(self, view: DeviceView, *, metered: bool) -> None:
        battery = await battery_of(self.parts, view)
        if not metered and (why := why_not_by_gauge(battery)):
            raise UserError(
                f"{view.name} has no power meter, and its own fuel gauge sees only what the battery gives: {why}",
                Code.POWER_NOT_MEASURABLE,
                hint=f'name the command of a meter: [power.meter] "{view.name}" = ["COMMAND"], or let the battery feed'
                " the phone (docs/energy.md)",
            )
        if metered and battery.status == CHARGING:
            raise UserError(
                f"{view.name} charges its battery: its power meter sees the charging current, too",
                Code.POWER_NOT_MEASURABLE,
                hint="wait until it is full, or hold the charge back (docs/configuration.md, [charge])",
            )


async def charges(parts: ExecutorParts, view: DeviceView) -> bool:
    """Whether a phone charges its battery: it is given less while the phone needs more, and no meter sees that.

    Raises:
        PhoneError: the phone does not answer.
    """
    return (await battery_of(parts, view)).status == CHARGING


async def battery_of(parts: ExecutorParts, view: DeviceView) -> Battery:
    """The state of a phone's battery now.

    Raises:
        PhoneError: the phone does not answer.
    """
    health, _ = await probe(parts.client, view.serial, MOMENT_SECTIONS, timeout_s=BATTERY_LIMIT_S)
    return health.battery


def why_not_by_gauge(battery: Battery) -> str:
    """Why the gauge does not see all that the phone takes, a clause; "" where it does. Pure."""
    if battery.powered_by:
        return f"it gets power by {' and '.join(battery.powered_by)}"
    if battery.status != "discharging":
        return f"its battery says {battery.status!r}" if battery.status else "its battery tells no status"
    return ""
