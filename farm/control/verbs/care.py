"""Verbs about the care of one phone: taking it out and back, its recovery by hand, and what explains it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from farm.control.callers import Role
from farm.control.forms import FieldError, Verbs, form, verb
from farm.control.server import ControlCall
from farm.control.verbs.explain_device import DeviceFacts
from farm.core.device import DeviceView, Life, Service
from farm.core.durations import format_duration
from farm.core.errors import UserError
from farm.core.recovery import Quarantine, ReleaseRule, Rung
from farm.fleet.fleet import Fleet
from farm.fleet.gates import beside

MOST_REASON = 500  # characters of a reason somebody types


@form
class SetService:
    """`device.service`."""

    device: str
    service: Service


@form
class Forced:
    """`device.reboot` and `device.power_cycle`. `force`: even while somebody has it, or a neighbour."""

    device: str
    force: bool = False


@form
class DistrustDevice:
    """`device.quarantine`."""

    device: str
    reason: str
    force: bool = False


class CareVerbs(Verbs):
    """What an operator may do with one phone."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @verb("device.service", Role.OPERATOR)
    async def set_service(self, asked: SetService, call: ControlCall) -> Mapping[str, Any]:
        """Drain, maintain or release a phone; `holder` still has it."""
        before = self._fleet.view(asked.device)
        kept = self._fleet.care.state(before.name).quarantine
        still: list[str] = []
        if asked.service is Service.IN and kept is not None:
            still = self._still(before, kept)
        view = await self._fleet.orders.set_service(asked.device, asked.service, call.caller.user)
        return {
            "name": view.name,
            "service": view.service.value,
            "before": before.service.value,
            "life": view.life.value,
            "quarantine": "" if kept is None else kept.reason,
            "holder": self._holder(view.name),
            "released": asked.service is Service.IN and kept is not None,
            "still": still,
        }

    def _still(self, view: DeviceView, kept: Quarantine) -> list[str]:
        """What probes still find of the reason that keeps a phone away; a person may have judged it.

        Raises:
            UserError: the next probe would take it out again, and ends the quarantine by itself once it is mended.
        """
        found = [each for each in self._fleet.care.look(view.name).findings if each.ailment is kept.ailment]
        if found and kept.rule is ReleaseRule.WELL:
            model = view.identity.model if view.identity else "MODEL"
            raise UserError(
                f"{view.name} stays in quarantine: {found[0].what}",
                hint=f"{found[0].hint}. If this model says so for nothing: "
                f'[health.model."{model}"] ignore = ["{found[0].kind}"]',
            )
        return [each.what for each in found]

    @verb("device.reboot", Role.OPERATOR)
    async def reboot(self, asked: Forced, call: ControlCall) -> Mapping[str, Any]:
        """Reboot a phone; unless forced, one that nobody has."""
        name = self._free(asked.device, f"farm device reboot {asked.device} --force", force=asked.force)
        self._none_under_way(name, Rung.REBOOT)
        await self._fleet.care.reboot(name, call.caller.user, force=asked.force)
        return {"name": name}

    @verb("device.power_cycle", Role.OPERATOR)
    async def power_cycle(self, asked: Forced, call: ControlCall) -> Mapping[str, Any]:
        """Cut the power of a phone's USB port for a moment; `beside` are others that may lose it too."""
        name = self._free(asked.device, f"farm device power-cycle {asked.device} --force", force=asked.force)
        self._none_under_way(name, Rung.POWER_CYCLE)
        others = await self._fleet.care.power_cycle(name, call.caller.user, force=asked.force)
        return {"name": name, "beside": list(others)}

    @verb("device.quarantine", Role.OPERATOR)
    async def quarantine(self, asked: DistrustDevice, call: ControlCall) -> Mapping[str, Any]:
        """Keep a phone away from users until it is released; unless forced, one that nobody has."""
        reason = " ".join(asked.reason.split())[:MOST_REASON]
        if not reason:
            raise FieldError("device.quarantine", "reason", "is missing", hint='--reason "what is wrong with it"')
        name = self._free(asked.device, f"add --force: {asked.device} is taken away from them", force=asked.force)
        holder = self._holder(name)
        by = f" (by {call.caller.user})" if call.caller.user else ""
        await self._fleet.care.quarantine(name, reason + by, force=asked.force)
        view = self._fleet.view(name)
        return {"name": name, "reason": reason, "connected": view.life is not Life.GONE, "holder": holder}

    def _none_under_way(self, name: str, rung: Rung) -> None:
        """Refuse what is being done already."""
        under_way = self._fleet.care.state(name).climb.under_way
        if under_way is not None and under_way.rung is rung:
            since = format_duration(max(0.0, time.monotonic() - under_way.began_s))
            raise UserError(
                f"a {rung} of {name} is already under way, for {since}: {under_way.cause}",
                hint=f"farm explain device {name}",
            )

    def _free(self, name: str, otherwise: str, *, force: bool) -> str:
        """The phone's own name, if nobody has it or `force` is given.

        Raises:
            NoSuchDeviceError: there is no such phone; the hint names the nearest.
            UserError: somebody has it.
        """
        view = self._fleet.view(name)
        holder = self._holder(view.name)
        if holder and not force:
            raise UserError(
                f"{holder} holds {view.name}", hint=f"wait; end it: farm lease kick {view.name}; or: {otherwise}"
            )
        return view.name

    def _holder(self, name: str) -> str:
        return self._fleet.care.holder(name)


async def device_facts(fleet: Fleet, name: str) -> DeviceFacts:
    """What explains one phone. The store is read in a thread.

    Raises:
        NoSuchDeviceError: there is no such phone; the hint names the nearest.
        StoreReadError: the database cannot be read.
    """
    view = fleet.view(name)
    seen = fleet.care.look(view.name)
    log = fleet.care.log
    now_s = time.monotonic()
    others = [other.name for other in beside(view, fleet.views())]
    return DeviceFacts(
        view=view,
        state=seen.state,
        around=seen.around,
        holder=seen.around.holder,
        findings=seen.findings,
        probed_s_ago=None if view.health is None else max(0.0, now_s - seen.probed_at_s),
        beside=others,
        busy_beside={other: holder for other in others if (holder := fleet.care.holder(other))},
        rungs=await asyncio.to_thread(log.taken, view.serial),
        quarantined_at=log.quarantined_at(view.serial),
        story=seen.story,
        now_s=now_s,
        ordered=fleet.orders.ordered(view.name),
    )
