"""Verbs about one phone: in and out of service, recovery by hand, readings, screen and files.

Files travel as artifacts, so the caller needs no access to the daemon's disk, nor the daemon to the caller's.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar
from weakref import WeakValueDictionary

from pydantic import Field

from farm.adb import tools
from farm.adb.client import AdbClient
from farm.common.durations import format_duration
from farm.common.errors import Code, NotAllowedError, UserError
from farm.common.phone_text import decode
from farm.common.verbs import FieldError, verb
from farm.control.artifact_rules import SHARE
from farm.control.artifacts import MAX_ARTIFACT_BYTES, ArtifactFolder
from farm.control.callers import Role
from farm.control.limits import BusyError
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup
from farm.control.verbs.explain_device import DeviceFacts
from farm.devices.fleet import Fleet
from farm.devices.health.probe.parse import parse_probe
from farm.devices.health.probe_round import raw_probe
from farm.devices.health.series import COARSE_S, FINE_S, UNITS, FleetReadings
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.thermal.thermal_gates import others_on_hub
from farm.leasing.leases import Leasing
from farm.model.device import DeviceView, Life, Service
from farm.model.health import Quarantine, ReleaseRule

MAX_REASON = 500  # characters of a reason that a person types
CHECK_EVERY_S = 0.5  # how often the holder is checked: a job that got the phone begins with compiling
TURN_LIMIT_S = 10.0  # a file that waits longer for the ones before it is refused
T = TypeVar("T")


class DeviceOrderVerbs(VerbGroup):
    """Orders of an operator about one phone."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @verb("device.service", Role.OPERATOR, subject="device", order=("service",))
    async def set_service(self, call: ControlCall, device: str, service: Service) -> Mapping[str, Any]:
        """Drain, maintain or release a phone; `holder` keeps it until its lease ends."""
        before = self._fleet.view(device)
        kept = self._fleet.recovery.state(before.name).quarantine
        still: list[str] = []
        if service is Service.IN and kept is not None:
            still = self._still(before, kept)
        view = await self._fleet.admin.set_service(device, service, call.caller.user)
        return {
            "name": view.name,
            "service": view.service.value,
            "before": before.service.value,
            "life": view.life.value,
            "quarantine": "" if kept is None else kept.cause,
            "holder": self._fleet.recovery.holder(view.name),
            "released": service is Service.IN and kept is not None,
            "still": still,
        }

    def _still(self, view: DeviceView, kept: Quarantine) -> list[str]:
        """The findings of a quarantine's fault that remain; a person may release the phone despite them.

        Raises:
            UserError: the next probe would take it out again, and ends the quarantine by itself once the fault is gone.
        """
        found = [each for each in self._fleet.find(view.name).findings if each.fault is kept.fault]
        if found and kept.rule is ReleaseRule.WELL:
            model = view.identity.model if view.identity else "MODEL"
            raise UserError(
                f"{view.name} stays in quarantine: {found[0].cause}",
                hint=f"{found[0].hint}. If this model says so for nothing: "
                f'[health.model."{model}"] ignore = ["{found[0].kind}"]',
            )
        return [each.cause for each in found]

    @verb("device.reboot", Role.OPERATOR, subject="device")
    async def reboot(self, call: ControlCall, device: str, force: bool = False) -> Mapping[str, Any]:
        """Reboot a phone; unless forced, one without a holder."""
        name = free_device(self._fleet, device, f"farm device reboot {device} --force", force=force)
        self._none_under_way(name, RecoveryAction.REBOOT)
        await self._fleet.recovery.reboot(name, call.caller.user, force=force)
        return {"name": name}

    @verb("device.power_cycle", Role.OPERATOR, subject="device")
    async def power_cycle(self, call: ControlCall, device: str, force: bool = False) -> Mapping[str, Any]:
        """Cut the power of a phone's USB port for a moment; `beside` are others that may lose it too."""
        name = free_device(self._fleet, device, f"farm device power-cycle {device} --force", force=force)
        self._none_under_way(name, RecoveryAction.POWER_CYCLE)
        others = await self._fleet.recovery.power_cycle(name, call.caller.user, force=force)
        return {"name": name, "beside": list(others)}

    @verb("device.quarantine", Role.OPERATOR, subject="device")
    async def quarantine(self, call: ControlCall, device: str, reason: str, force: bool = False) -> Mapping[str, Any]:
        """Keep a phone away from users until it is released; unless forced, one without a holder."""
        reason = " ".join(reason.split())[:MAX_REASON]
        if not reason:
            raise FieldError("device.quarantine", "reason", "is missing", hint="say what is wrong with it")
        name = free_device(self._fleet, device, f"add --force: {device} is taken away from them", force=force)
        holder = self._fleet.recovery.holder(name)
        by = f" (by {call.caller.user})" if call.caller.user else ""
        await self._fleet.recovery.quarantine(name, reason + by, force=force)
        view = self._fleet.view(name)
        return {"name": name, "reason": reason, "connected": view.life is not Life.GONE, "holder": holder}

    def _none_under_way(self, name: str, action: RecoveryAction) -> None:
        """Refuse a recovery action that is under way already."""
        under_way = self._fleet.recovery.state(name).progress.under_way
        if under_way is not None and under_way.action is action:
            since = format_duration(max(0.0, time.monotonic() - under_way.began_s))
            raise UserError(
                f"a {action} of {name} is already under way, for {since}: {under_way.cause}",
                hint=f"farm explain device {name}",
            )


def free_device(fleet: Fleet, name: str, otherwise: str = "", *, force: bool = False) -> str:
    """The phone's own name, if it has no holder or `force` is given; `otherwise`: a milder order for held phones.

    Raises:
        NoSuchDeviceError: there is no such phone; the hint names the nearest.
        UserError: it has a holder.
    """
    view = fleet.view(name)
    if not force and (holder := fleet.recovery.holder(view.name)):
        hint = f"wait, or end it: farm lease kick {view.name}"
        hint += f"; or: {otherwise}" if otherwise else ""
        raise UserError(f"{holder} holds {view.name}", Code.DEVICE_HELD, hint=hint)
    return view.name


async def device_facts(fleet: Fleet, name: str) -> DeviceFacts:
    """The facts that explain one phone. The store is read in a thread.

    Raises:
        NoSuchDeviceError: there is no such phone; the hint names the nearest.
        HostError: the database cannot be read.
    """
    view = fleet.view(name)
    agent = fleet.find(view.name)
    context = fleet.recovery.context_of(agent)
    log = fleet.recovery.log
    now_s = time.monotonic()
    others = [other.name for other in others_on_hub(view, fleet.views())]
    return DeviceFacts(
        view=view,
        state=agent.state,
        context=context,
        holder=context.holder,
        findings=agent.findings,
        probed_s_ago=None if view.read_at is None else max(0.0, (fleet.wall() - view.read_at).total_seconds()),
        beside=others,
        busy_beside={other: holder for other in others if (holder := fleet.recovery.holder(other))},
        actions=await log.in_thread(log.actions, view.serial),
        quarantined_at=log.quarantined_at(view.serial),
        transitions=agent.transitions,
        now_s=now_s,
        bundles=fleet.rollouts.explain(agent),
        ordered=fleet.admin.out_of_service_by(view.name),
    )


class ReadingsVerbs(VerbGroup):
    """Verbs over the readings of probes."""

    def __init__(self, fleet: Fleet, series: FleetReadings) -> None:
        self._fleet = fleet
        self._series = series

    @verb("device.readings", Role.VIEWER, subject="device")
    async def readings(
        self, device: str, seconds: Annotated[float, Field(gt=0, le=COARSE_S)] = FINE_S
    ) -> Mapping[str, Any]:
        """Columns over the last `seconds`: {at: [seconds since 1970], columns: [{quantity, name, unit, values}]}."""
        view = self._fleet.view(device)
        at, columns = self._series.of(view.serial).read(self._series.clock() - seconds)
        return {
            "device": view.name,
            "at": at,
            "columns": [
                {"quantity": quantity.value, "name": name, "unit": UNITS[quantity], "values": values}
                for (quantity, name), values in columns.items()
                if any(value is not None for value in values)
            ],
        }

    @verb("fleet.trends", Role.VIEWER, subject="host")
    async def trends(self, host: str = "") -> Mapping[str, Any]:  # noqa: ARG002 (another host of the lab answers its own)
        """The shown temperature of a host's devices over the last hour, oldest first; None where nothing was read."""
        now_s = self._series.clock()
        return {
            "celsius": {
                view.name: self._series.of(view.serial).line(now_s) for view in self._fleet.views() if view.adopted
            },
            "span_s": FINE_S,
        }

    @verb("device.battery", Role.VIEWER, subject="device")
    async def battery(self, device: str) -> Mapping[str, Any]:
        """The latest reading, the last days, farm's control of its charge, and signs of swelling."""
        record = await self._fleet.battery(device)
        days = [{**asdict(day), "capacity": day.capacity} for day in record.days]
        return {**asdict(record), "days": days}


class ToolVerbs(VerbGroup):
    """Verbs over farm.adb.tools."""

    def __init__(self, fleet: Fleet, leasing: Leasing, artifacts: ArtifactFolder, client: AdbClient) -> None:
        self._fleet = fleet
        self._leasing = leasing
        self._artifacts = artifacts
        self._client = client
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @verb("device.screenshot", Role.USER, subject="device")
    async def screenshot(self, call: ControlCall, device: str) -> Mapping[str, Any]:
        """The screen as a PNG artifact."""
        async with self._turn(call, device) as serial:
            with self._artifacts.scratch() as scratch:
                taken = tools.screenshot(self._client, serial, scratch.path)
                width, height = await self._until_taken(call, device, taken)
                kept = await asyncio.to_thread(self._artifacts.take, scratch, call.caller.user)
        return {"artifact": kept, "width": width, "height": height}

    @verb("device.pull", Role.USER, subject="device", order=("path",))
    async def pull(self, call: ControlCall, device: str, path: str) -> Mapping[str, Any]:
        """A file of the phone as an artifact."""
        max_bytes = min(MAX_ARTIFACT_BYTES, self._artifacts.rules.budget_bytes // SHARE)
        async with self._turn(call, device) as serial:
            with self._artifacts.scratch() as scratch:
                pulled = tools.pull(self._client, serial, path, scratch.path, max_bytes=max_bytes, room=scratch.grow)
                size_bytes = await self._until_taken(call, device, pulled)
                kept = await asyncio.to_thread(self._artifacts.take, scratch, call.caller.user)
        return {"artifact": kept, "size_bytes": size_bytes}

    @verb("device.install", Role.OPERATOR, subject="device", order=("package",))
    async def install(self, call: ControlCall, device: str, package: str, name: str) -> Mapping[str, Any]:
        """Install an uploaded .apk."""
        serial = self._usable(call, device)
        with tempfile.TemporaryDirectory(prefix="farm-tools-") as folder:
            local = Path(folder) / "package.apk"
            local.symlink_to(await self._artifacts.ensure(package))
            await tools.install(self._client, serial, local)
        return {"device": device, "name": name}

    @verb("device.adb", Role.USER, subject="device")
    async def facts(self, call: ControlCall, device: str) -> Mapping[str, Any]:
        """Versions and facts of adb and the phone, for support requests."""
        return asdict(await tools.facts(self._client, self._usable(call, device)))

    @verb("device.probe", Role.USER, subject="device")
    async def probe(self, call: ControlCall, device: str) -> Mapping[str, Any]:
        """One probe, as the phone printed it and as farm reads it."""
        serial = self._usable(call, device)
        output = await raw_probe(self._client, serial)
        health = await asyncio.to_thread(parse_probe, output)  # of a phone that may print anything
        return {"probe": decode(output), "health": asdict(health)}

    @asynccontextmanager
    async def _turn(self, call: ControlCall, name: str) -> AsyncIterator[str]:
        """One file of a user at a time, and one of a phone: each may be as large as a share of the artifacts' disk.

        Yields the phone's serial.

        Raises:
            BusyError: the files before it take too long.
        """
        mine = self._turns.setdefault(f"user {call.caller.user}", asyncio.Lock())
        phones = self._turns.setdefault(f"phone {self._usable(call, name)}", asyncio.Lock())
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(TURN_LIMIT_S):
                    await stack.enter_async_context(mine)
                    await stack.enter_async_context(phones)
            except TimeoutError as error:
                raise BusyError(
                    f"other files of yours or of {name} are copied for more than {TURN_LIMIT_S:g} s",
                    hint="one file at a time: try again when it is done",
                ) from error
            yield self._usable(call, name)

    async def _until_taken(self, call: ControlCall, name: str, work: Coroutine[Any, Any, T]) -> T:
        """Do it, unless another user gets the phone meanwhile: their measurement would be disturbed."""
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({working}, timeout=CHECK_EVERY_S))[0]:
                self._usable(call, name)
            return working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})

    def _usable(self, call: ControlCall, name: str) -> str:
        """The serial of an adopted phone that no other user holds: screens and files are its holder's.

        Raises:
            UserError: it is not adopted.
            NotAllowedError: another user holds it, and the caller is no operator.
        """
        view, caller = self._fleet.adopted_view(name), call.caller
        holder = self._leasing.active.holder(view.name)
        if holder is not None and holder.lease.request.user != caller.user and caller.role < Role.OPERATOR:
            holder_name = holder.lease.request.user or holder.peer
            raise NotAllowedError(f"{holder_name} holds {view.name}", hint="wait until it is free, or ask an operator")
        return view.serial
