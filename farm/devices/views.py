"""The latest view of each device, and events for every change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from farm.adb.push import PushProgress
from farm.common.events import EventLog
from farm.common.phone_text import REASON, plain
from farm.common.selector import natural
from farm.devices.agent import Agent
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.registry import DeviceRegistry
from farm.devices.thermal.thermal_gates import DISTURBS_HUB, LOOK_EVERY_S, ThermalGates, others_on_hub
from farm.model.device import Closed, DeviceView, Life, Service, UsbPlace
from farm.model.requests import LeaseClass

PROGRESS_EVERY_S = 0.25  # between two pieces of news about one push; people see no more, the log keeps less


LosingPower = Callable[[UsbPlace, Mapping[str, UsbPlace]], Collection[str]]


class DeviceViews:
    """Views by serial. Used from the event loop's thread, except where a method says otherwise."""

    def __init__(
        self, registry: DeviceRegistry, events: EventLog, gates: ThermalGates, losing_power: LosingPower
    ) -> None:
        """`losing_power`: which of the places, by serial, lose their power with that port (`Switchboard`)."""
        self._registry = registry
        self._events = events
        self._gates = gates
        self._losing_power = losing_power
        self._cut: dict[str, tuple[str, UsbPlace]] = {}  # name and port of those whose power is cut, by serial
        self._kept: Mapping[str, str] = {}  # why a device gets no new lease, by serial
        self._views: dict[str, DeviceView] = {}
        self._watching: list[Callable[[DeviceView], None]] = []
        self._pushing_at: dict[str, float] = {}  # monotonic seconds of the last news about a push, by serial

    def views(self) -> tuple[DeviceView, ...]:
        """Every device, by name. May be called from any thread."""
        return tuple(sorted(self._views.values(), key=lambda view: natural(view.name)))

    def view(self, serial: str) -> DeviceView:
        """One device that is shown."""
        return self._views[serial]

    def bundles_in_use(self, installing: Collection[tuple[str, str]] = ()) -> dict[str, tuple[str, ...]]:
        """Bundle hash -> names of the devices that have it or, as in `installing`, get it. From any thread."""
        users: dict[str, set[str]] = {}
        had = ((view.bundle, view.name) for view in self.views() if view.life is not Life.QUARANTINED)
        for bundle, name in (*installing, *had):
            if bundle:
                users.setdefault(bundle, set()).add(name)
        return {bundle: tuple(sorted(names)) for bundle, names in users.items()}

    def other_keys(self, serial: str) -> set[str]:
        """The keys of the other devices: names, and aliases that may mean several of them."""
        others = [view for view in self._views.values() if view.serial != serial]
        return {view.name for view in others}.union(*(view.aliases for view in others))

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view, at once and in order; returns the function that ends it."""
        self._watching.append(callback)
        return lambda: self._watching.remove(callback)

    def update(self, agent: Agent) -> bool:
        """Publish the agent's view if it differs from the last one; returns whether its life changed."""
        before = self._views.get(agent.serial)
        shut, opened = self._update_gates(agent)
        taken = agent.state.progress.under_way
        self._set_power_cut(
            agent.serial, agent.name, agent.place if taken and taken.action is RecoveryAction.POWER_CYCLE else None
        )
        view = self._gated(self._view_of(agent))
        if view == before:
            return False
        self._views[agent.serial] = view
        if before is not None and before.name != view.name:  # no device has the old name any more
            self._publish(replace(before, life=Life.GONE, adopted=False, reason=f"it is called {view.name} now"))
        changed = before is None or before.life is not view.life
        if changed:
            self._events.publish(
                f"device.{view.life}",
                view.name,
                serial=view.serial,
                reason=view.reason,
                evidence=view.evidence,
                hint=view.hint,
            )
        self._publish_heat(view.name, shut, opened)
        self._publish(view)
        if before is not None and before.place != view.place:
            self._refresh_neighbours(before)
        if before is None or (before.place, before.life, before.sent_away) != (view.place, view.life, view.sent_away):
            self._refresh_neighbours(view)
        return changed

    async def run(self) -> None:
        """Until cancelled: look at closed devices now and then, as readings become old and estimates run out."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for view in self.views():
                if view.closed:
                    self._refresh(view)

    def keep_from_leases(self, kept: Mapping[str, str]) -> None:
        """Close these devices, by serial, to new leases for that reason; open those that it names no more."""
        changed = {serial for serial, _ in self._kept.items() ^ kept.items()}
        self._kept = kept
        for serial in changed & self._views.keys():
            self._refresh(self._views[serial])

    def take_down(self, serial: str, reason: str) -> None:
        """Publish the last view of a device that farm no longer knows: not adopted and gone."""
        last = self._views.get(serial)
        self.move_away(serial)
        if last is not None:
            self._publish(replace(last, life=Life.GONE, adopted=False, reason=reason))
            self._refresh_neighbours(last)

    def move_away(self, serial: str) -> None:
        """The device is shown under another serial from now on."""
        self._views.pop(serial, None)
        self._pushing_at.pop(serial, None)
        self._gates.forget(serial)
        self._set_power_cut(serial, "", None)

    def pushing(self, agent: Agent, progress: PushProgress) -> None:
        """Publish the progress of a push, not more often than people can see."""
        now = time.monotonic()
        if (
            now - self._pushing_at.get(agent.serial, 0.0) < PROGRESS_EVERY_S
            and progress.sent_bytes < progress.total_bytes
        ):
            return
        self._pushing_at[agent.serial] = now
        self._events.publish(
            "device.pushing", agent.name, sent_bytes=progress.sent_bytes, total_bytes=progress.total_bytes
        )

    def tidied(self, agent: Agent, done: Mapping[str, int]) -> None:
        """Publish the residue that was removed after a person's lease."""
        self._events.publish("device.tidied", agent.name, **done)

    def repaired(self, agent: Agent, files: int) -> None:
        """Say that farm's files on it had been changed."""
        self._events.publish("device.repaired", agent.name, files=files)

    def publish_service(self, agent: Agent, service: Service, before: Service, by: str) -> None:
        """Publish that an operator takes the device out of service or back."""
        self._events.publish(
            "device.service", agent.name, serial=agent.serial, service=service.value, before=before.value, by=by,
            reason=f"{by or 'an operator'}: {before} -> {service}",
        )  # fmt: skip

    def _view_of(self, agent: Agent) -> DeviceView:
        state = agent.state
        external_cause = agent.external_cause if agent.external_cause not in state.reason else ""
        pool, labels, aliases = self._registry.called(
            agent.serial, agent.name, agent.identity, state.bundle, adopted=state.adopted
        )
        return DeviceView(
            name=agent.name,
            serial=agent.serial,
            life=state.life,
            service=state.service,
            external_cause=agent.external_cause,
            reason=plain("; ".join(filter(None, (external_cause, state.reason))), REASON),
            hint=state.hint.replace("NAME", agent.name),
            released=state.quarantine.rule.ends(agent.name) if state.quarantine else "",
            adopted=state.adopted,
            pool=pool,
            identity=agent.identity,
            labels=labels,
            aliases=aliases,
            temperature_c=agent.temperature_c,
            temperature_of=agent.temperature_of,
            battery_percent=agent.battery_percent,
            bundle=state.bundle,
            since=agent.since,
            health=agent.health,
            read_at=agent.read_at,
            findings=agent.findings,
            checked=agent.checked,
            place=agent.place,
            withheld=agent.withheld or agent.other_link,
            sent_away=state.progress.sent_away,
        )

    def _update_gates(self, agent: Agent) -> tuple[Mapping[LeaseClass, Closed], Collection[LeaseClass]]:
        """Pass the latest probe to the thermal gates; returns the classes that it closed and opened."""
        if agent.health is None or not agent.health_at:
            return {}, ()
        idle = agent.state.life not in DISTURBS_HUB and not self._gates.holds(agent.name)
        model = agent.identity.model if agent.identity else ""
        return self._gates.take(agent.serial, model, agent.health, agent.health_at, idle=idle)

    def _gated(self, view: DeviceView) -> DeviceView:
        """The view with its reasons to be closed: heat, hub, a power cycle that takes its power, or an order."""
        gated = self._gates.apply(view, others_on_hub(view, self._views.values()))
        by = sorted(
            name
            for serial, (name, port) in self._cut.items()
            if view.place is not None and serial != view.serial and self._losing_power(port, {view.serial: view.place})
        )
        reason = f"its USB power is cut with that of {', '.join(by)}" if by else self._kept.get(view.serial, "")
        if not reason:
            return gated
        why = Closed(reason, heat=False)
        return replace(gated, closed={**dict.fromkeys(LeaseClass, why), **gated.closed})

    def _set_power_cut(self, serial: str, name: str, port: UsbPlace | None) -> None:
        """A device's port is about to lose power, or (None) is not any more. Other devices may lose power with it."""
        _, before = self._cut.pop(serial, ("", None))
        if port is not None:
            self._cut[serial] = (name, port)
        places = {view.serial: view.place for view in self._views.values() if view.place is not None}
        if port != before:
            changed = {each for place in (before, port) if place for each in self._losing_power(place, places)}
            for other in changed - {serial}:
                self._refresh(self._views[other])

    def _refresh_neighbours(self, view: DeviceView) -> None:
        """The work of a device may close other devices on its hub, and open them again."""
        for other in others_on_hub(view, tuple(self._views.values())):
            self._refresh(other)

    def _refresh(self, view: DeviceView) -> None:
        now = self._gated(view)
        if now != view:
            self._views[view.serial] = now
            self._publish(now)

    def _publish_heat(self, name: str, shut: Mapping[LeaseClass, Closed], opened: Collection[LeaseClass]) -> None:
        """Publish when a class closes or opens, not with every reading."""
        if shut:
            worst = next(shut[each] for each in LeaseClass if each in shut)
            self._events.publish(
                "device.cooling", name, classes=sorted(shut), reason=worst.reason, opens_in_s=worst.opens_in_s
            )
        if opened:
            self._events.publish(
                "device.cool",
                name,
                classes=sorted(opened),
                reason=f"open again for {', '.join(sorted(opened))}",
            )

    def _publish(self, view: DeviceView) -> None:
        for callback in tuple(self._watching):
            callback(view)
