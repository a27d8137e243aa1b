"""What everybody sees of the devices: the latest view of each, and news of every change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from farm.adb.push import PushProgress
from farm.core.attribution import UsbPlace
from farm.core.device import Closed, DeviceView, Life, Service
from farm.core.events import EventLog
from farm.core.phone_text import REASON, plain
from farm.core.recovery import Rung
from farm.core.requests import LeaseClass
from farm.fleet.agent import Agent
from farm.fleet.gates import LOOK_EVERY_S, LOUD, Gates, Turned, beside
from farm.fleet.registry import Registry
from farm.fleet.traces import Tidied

PROGRESS_EVERY_S = 0.25  # between two pieces of news about one push; people see no more, the log keeps less


Hurt = Callable[[UsbPlace, Mapping[str, UsbPlace]], Collection[str]]


class Board:
    """Views by serial. Used from the event loop's thread, except where a method says otherwise."""

    def __init__(
        self, registry: Registry, events: EventLog, gates: Gates | None = None, hurt: Hurt = lambda *_: ()
    ) -> None:
        """`hurt`: which of the places, by serial, lose their power with that port (farm.fleet.switchboard)."""
        self._registry = registry
        self._events = events
        self._gates = gates or Gates()
        self._hurt = hurt
        self._cut: dict[str, tuple[str, UsbPlace]] = {}  # name and port of those whose power is cut, by serial
        self._views: dict[str, DeviceView] = {}
        self._watching: list[Callable[[DeviceView], None]] = []
        self._told_at: dict[str, float] = {}  # monotonic seconds of the last news about a push, by serial

    def views(self) -> tuple[DeviceView, ...]:
        """Every device, by name. May be called from any thread."""
        return tuple(sorted(self._views.values(), key=lambda view: view.name))

    def view(self, serial: str) -> DeviceView:
        """One device that is shown."""
        return self._views[serial]

    def bundles_in_use(self, installing: Collection[tuple[str, str]] = ()) -> dict[str, tuple[str, ...]]:
        """Bundle hash -> names of the devices that have it or, as in `installing`, get it. From any thread."""
        users: dict[str, set[str]] = {}
        for bundle, name in (*installing, *((view.bundle, view.name) for view in self.views())):
            if bundle:
                users.setdefault(bundle, set()).add(name)
        return {bundle: tuple(sorted(names)) for bundle, names in users.items()}

    def taken(self, serial: str) -> set[str]:
        """What devices other than this one answer to: names, and aliases that may mean several of them."""
        others = [view for view in self._views.values() if view.serial != serial]
        return {view.name for view in others}.union(*(view.aliases for view in others))

    def subscribe(self, callback: Callable[[DeviceView], None]) -> Callable[[], None]:
        """Call back with each new view, at once and in order; returns the function that ends it."""
        self._watching.append(callback)
        return lambda: self._watching.remove(callback)

    def show(self, agent: Agent) -> bool:
        """Publish the agent's view if it differs from the last one; returns whether its life changed."""
        before = self._views.get(agent.serial)
        turned = self._feel(agent)
        taken = agent.state.climb.under_way
        self._cuts(agent.serial, agent.name, agent.place if taken and taken.rung is Rung.POWER_CYCLE else None)
        view = self._gated(self._view_of(agent))
        if view == before:
            return False
        self._views[agent.serial] = view
        if before is not None and before.name != view.name:  # nobody answers to the old name any more
            self._tell(replace(before, life=Life.GONE, adopted=False, reason=f"it is called {view.name} now"))
        changed = before is None or before.life is not view.life
        if changed:
            self._events.publish(
                f"device.{view.life}", view.name, serial=view.serial, reason=view.reason, hint=agent.state.hint
            )
        self._tell_heat(view.name, turned)
        self._tell(view)
        if before is not None and before.place != view.place:
            self._look_beside(before)
        if before is None or (before.place, before.life, before.sent_away) != (view.place, view.life, view.sent_away):
            self._look_beside(view)
        return changed

    async def run(self) -> None:
        """Until cancelled: look at closed devices now and then, as readings become old and estimates run out."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for view in self.views():
                if view.closed:
                    self._look_again(view)

    def take_down(self, serial: str, reason: str) -> None:
        """Show a device that is no longer known a last time: not adopted and gone."""
        last = self._views.get(serial)
        self.move_away(serial)
        if last is not None:
            self._tell(replace(last, life=Life.GONE, adopted=False, reason=reason))
            self._look_beside(last)

    def move_away(self, serial: str) -> None:
        """The device is shown under another serial from now on."""
        self._views.pop(serial, None)
        self._told_at.pop(serial, None)
        self._gates.forget(serial)
        self._cuts(serial, "", None)

    def pushing(self, agent: Agent, progress: PushProgress) -> None:
        """Say how far a push is, not more often than people can see."""
        now = time.monotonic()
        if now - self._told_at.get(agent.serial, 0.0) < PROGRESS_EVERY_S and progress.sent_bytes < progress.total_bytes:
            return
        self._told_at[agent.serial] = now
        self._events.publish(
            "device.pushing", agent.name, sent_bytes=progress.sent_bytes, total_bytes=progress.total_bytes
        )

    def tidied(self, agent: Agent, done: Tidied) -> None:
        """Say what a person left."""
        self._events.publish("device.tidied", agent.name, killed=done.killed, removed=done.removed, left=done.left)

    def repaired(self, agent: Agent, files: int) -> None:
        """Say that farm's files on it had been changed."""
        self._events.publish("device.repaired", agent.name, files=files)

    def ordered(self, agent: Agent, service: Service, before: Service, by: str) -> None:
        """Say that an operator takes the device out of service or back."""
        self._events.publish(
            "device.service", agent.name, serial=agent.serial, service=service.value, before=before.value, by=by,
            reason=f"{by or 'an operator'}: {before} -> {service}",
        )  # fmt: skip

    def _view_of(self, agent: Agent) -> DeviceView:
        state = agent.state
        called = self._registry.called(agent.serial, agent.name, agent.identity, state.bundle, adopted=state.adopted)
        return DeviceView(
            name=agent.name,
            serial=agent.serial,
            life=state.life,
            service=state.service,
            reason=plain("; ".join(filter(None, (state.reason, agent.elsewhere))), REASON),
            adopted=state.adopted,
            pool=called.pool,
            identity=agent.identity,
            labels=called.labels,
            aliases=called.aliases,
            temperature_c=agent.temperature_c,
            temperature_of=agent.temperature_of,
            battery_percent=agent.battery_percent,
            bundle=state.bundle,
            since=agent.since,
            health=agent.health,
            findings=agent.findings,
            checked=agent.checked,
            place=agent.place,
            sent_away=state.climb.sent_away,
        )

    def _feel(self, agent: Agent) -> Turned:
        """Let the gates have the latest probe."""
        if agent.health is None:
            return Turned()
        idle = agent.state.life not in LOUD and not self._gates.holds(agent.name)
        model = agent.identity.model if agent.identity else ""
        return self._gates.take(agent.serial, model, agent.health, agent.health_at, idle=idle)

    def _gated(self, view: DeviceView) -> DeviceView:
        """The view with what closes it: its heat, its hub, and a power cycle that takes its power too."""
        gated = self._gates.apply(view, beside(view, self._views.values()))
        by = sorted(
            name
            for serial, (name, port) in self._cut.items()
            if view.place is not None and serial != view.serial and self._hurt(port, {view.serial: view.place})
        )
        if not by:
            return gated
        why = Closed(f"its USB power is cut with that of {', '.join(by)}", heat=False)
        return replace(gated, closed={**dict.fromkeys(LeaseClass, why), **gated.closed})

    def _cuts(self, serial: str, name: str, port: UsbPlace | None) -> None:
        """A device's port is about to lose its power, or (None) is not any more: others may lose theirs with it."""
        _, before = self._cut.pop(serial, ("", None))
        if port is not None:
            self._cut[serial] = (name, port)
        places = {view.serial: view.place for view in self._views.values() if view.place is not None}
        if port != before:
            for other in {each for place in (before, port) if place for each in self._hurt(place, places)} - {serial}:
                self._look_again(self._views[other])

    def _look_beside(self, view: DeviceView) -> None:
        """What a device does may close others on its hub, and open them again."""
        for other in beside(view, tuple(self._views.values())):
            self._look_again(other)

    def _look_again(self, view: DeviceView) -> None:
        now = self._gated(view)
        if now != view:
            self._views[view.serial] = now
            self._tell(now)

    def _tell_heat(self, name: str, turned: Turned) -> None:
        """News when a class is closed or opened, not with every reading."""
        if turned.shut:
            worst = next(turned.shut[each] for each in LeaseClass if each in turned.shut)
            self._events.publish(
                "device.cooling", name, classes=sorted(turned.shut), reason=worst.reason, opens_in_s=worst.opens_in_s
            )
        if turned.opened:
            self._events.publish(
                "device.cool",
                name,
                classes=sorted(turned.opened),
                reason=f"open again for {', '.join(sorted(turned.opened))}",
            )

    def _tell(self, view: DeviceView) -> None:
        for callback in tuple(self._watching):
            callback(view)
