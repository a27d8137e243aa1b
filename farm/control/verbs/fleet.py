"""Verbs about the phones of the farm, their keys and hosts: status, adoption, labels, aliases; phones as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from farm.common.errors import UserError
from farm.common.events import EventLog
from farm.common.phone_text import REASON, plain
from farm.common.selector import Selector, normalise
from farm.common.verbs import verb
from farm.control.callers import Role
from farm.control.verbs import VerbGroup, json_of
from farm.control.verbs.device import free_device
from farm.devices.fleet import Fleet
from farm.devices.identity.naming_rules import alike
from farm.devices.registry import Aliases
from farm.leasing.lab_rules import lab_problems, next_step
from farm.leasing.lab_view import HostView, LabView
from farm.leasing.leases import Leasing
from farm.model.device import DeviceView, Life, Service, state_word
from farm.model.requests import LeaseClass

_MAX_ENTRIES = 32  # of a list in a row


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """The daemon's own facts in `status`; `problems` is called each time."""

    version: str
    pid: int
    tracker: Callable[[], tuple[str, int]]  # where stock clients on this host connect
    summary: Callable[[], Mapping[str, Any]]  # what SUMMARY answers them: boards that registered themselves included
    adb_socket: str
    problems: Callable[[], Awaitable[list[str]]]
    # what the TVM port is bound to, and the process that has it
    tvm_server: Callable[[], tuple[str, int]] = lambda: ("", 0)
    web: Callable[[], str] = str  # the page's address; "": there is none
    builders: Callable[[], Mapping[str, int]] = dict  # how many are ready, and their slots


class FleetVerbs(VerbGroup):
    """Verbs about phones, keys and hosts; `host.drain` is with the leases that it holds back."""

    def __init__(
        self, fleet: Fleet, leasing: Leasing, aliases: Aliases, events: EventLog, facts: DaemonFacts,
        lab: LabView | None = None,
    ) -> None:  # fmt: skip
        self._fleet = fleet
        self._lab = lab or LabView()
        self._aliases = aliases
        self._leasing = leasing
        self._events = events
        self._facts = facts

    @verb("status", Role.VIEWER)
    async def status(self) -> Mapping[str, Any]:
        """Keys, devices, and problems of the host; `seq` is the newest event that it knows of.

        In a lab, devices of all hosts with their `host`, and `hosts`.
        """
        self._fleet.note_view()
        host, port = self._facts.tracker()
        summary = self._facts.summary()
        bound, pid = self._facts.tvm_server()
        totals = Counter(server["key"].removeprefix("server:") for server in summary["server_info"])
        here = {
            "version": self._facts.version,
            "pid": self._facts.pid,
            "seq": self._events.seq,
            "tracker": {"host": host, "port": port, "bound": bound, "pid": pid},
            "adb": {"socket": self._facts.adb_socket},
            "web": self._facts.web(),
            "builders": dict(self._facts.builders()),
            "keys": [{"key": key, "total": totals[key], **row} for key, row in summary["queue_info"].items()],
            "devices": await self._rows(),
            "now": self._leasing.wall().isoformat(),
            "problems": await self._facts.problems(),
            "draining": bool(self._leasing.head.drained),
        }
        return await self._with_lab(here) if self._lab.own else here

    async def _with_lab(self, here: dict[str, Any]) -> dict[str, Any]:
        """The status of this host with the hosts of its lab."""
        picture = await self._lab.look()
        return {
            **here,
            "host": self._lab.own,
            "hosts": [_host_row(each) for each in picture.hosts],
            "problems": [*here["problems"], *lab_problems(picture)],
        }

    async def _rows(self, selector: str = "") -> list[dict[str, Any]]:
        """Devices of this host, then of the others of the lab; of a selector, those that match it."""
        wanted = Selector.parse(selector) if selector else None
        held = {holder.lease.device: holder.holder_name for holder in self._leasing.active.holders()}
        found = [(self._lab.own, view, held.get(view.name, "")) for view in self._fleet.views()]
        if self._lab.own:
            found += [(each.host, each.view, each.holder) for each in (await self._lab.look()).phones]
        now = self._leasing.wall()
        return [
            {**device_row(view, holder, now), **({"host": host} if host else {})}
            for host, view, holder in found
            if wanted is None or wanted.matches(view.labels, view.aliases)
        ]

    @verb("device.list", Role.VIEWER)
    async def list_devices(self, selector: str = "") -> Mapping[str, Any]:
        """The devices of `status` alone; of a `selector`, those that match it. `host`: this one, "" without a lab."""
        self._fleet.note_view()
        return {"devices": await self._rows(selector), "host": self._lab.own}

    @verb("host.list", Role.VIEWER)
    async def hosts(self) -> Mapping[str, Any]:
        """Every host, and the unused tokens; `own` is this host's name, "" outside of a lab."""
        picture = await self._lab.look()
        return {
            "own": self._lab.own,
            "hosts": [_host_row(each) for each in picture.hosts],
            "tokens": [json_of(each, "name", "expires_at", "made_by") for each in picture.tokens],
            "problems": lab_problems(picture),
        }

    @verb("device.show", Role.VIEWER, subject="device")
    async def show(self, device: str) -> Mapping[str, Any]:
        """One device, whole."""
        self._fleet.note_view()
        view = self._fleet.view(device)
        details = device_details(view, self._fleet.recovery.holder(view.name), self._leasing.wall())
        return {**details, "host": self._lab.own} if self._lab.own else details

    @verb("device.adopt", Role.OPERATOR, subject="device", order=("pool", "rename"))
    async def adopt(self, device: str, pool: str = "", rename: str = "") -> Mapping[str, Any]:
        """Let a phone in; without pool and name the farm chooses them."""
        if rename:
            free_device(self._fleet, device)  # a lease knows its device by name
        view = await self._fleet.admin.adopt(device, pool=pool, rename=rename)
        return {"name": view.name, "pool": view.pool}

    @verb("device.set", Role.OPERATOR, subject="device", order=("pool", "rename"))
    async def set_device(
        self, device: str, rename: str | None = None, pool: str | None = None, labels: tuple[str, ...] = ()
    ) -> Mapping[str, Any]:
        """Change a phone's name, pool or labels (KEY=VALUE; an empty value removes one)."""
        if rename is None and pool is None and not labels:
            raise UserError("device.set: nothing to change", hint="give --name, --pool or --label")
        assigned = dict(_assignment(text) for text in labels)
        if rename is not None:
            free_device(self._fleet, device)  # a lease knows its device by name
        view = await self._fleet.admin.change(device, rename=rename, pool=pool, labels=assigned)
        changed = {label: view.labels.get(label, "") for label in map(normalise, assigned)}  # "": removed
        return {"name": view.name, "pool": view.pool, "labels": dict(view.labels), "changed": changed}

    @verb("device.forget", Role.OPERATOR, subject="device")
    async def forget(self, device: str, clean: bool = False, force: bool = False) -> Mapping[str, Any]:
        """Remove a phone from the farm, with `clean` farm from the phone too; `force` ends its lease."""
        name = free_device(self._fleet, device, force=force)
        await self._fleet.admin.forget(name, clean=clean)
        return {"name": name}

    @verb("device.add", Role.OPERATOR, subject="address")
    async def add(self, address: str) -> Mapping[str, Any]:
        """Add a network phone, HOST:PORT."""
        self._fleet.note_view()
        return {"address": await self._fleet.admin.add_network(address)}

    @verb("alias.list", Role.VIEWER)
    async def list_aliases(self) -> Mapping[str, Any]:
        """Every key with its phones."""
        set_by_hand = {alias: str(selector) for alias, selector in self._aliases.selectors().items()}
        devices: dict[str, list[str]] = {alias: [] for alias in set_by_hand}
        others = [each.view for each in (await self._lab.look()).phones]
        for view in (*self._fleet.views(), *others):
            for alias in view.aliases:
                devices.setdefault(alias, []).append(view.name)
        return {
            "aliases": [
                {"alias": alias, "devices": names, "selector": set_by_hand.get(alias, "")}
                for alias, names in sorted(devices.items())
            ]
        }

    @verb("alias.set", Role.OPERATOR, subject="alias", order=("selector",))
    async def set_alias(self, alias: str, selector: str) -> Mapping[str, Any]:
        """Let the phones of a selector answer to a key, later ones too; `no_match` says why none does now."""
        views = [(view.labels, view.aliases) for view in self._fleet.views()]
        alias = await self._aliases.set(alias, selector)
        devices = [view.name for view in self._fleet.views() if alias in view.aliases]
        no_match = "" if devices else Selector.parse(selector).no_match(views).message
        return {"alias": alias, "devices": devices, "no_match": no_match}

    @verb("alias.remove", Role.OPERATOR, subject="alias")
    async def remove_alias(self, alias: str) -> Mapping[str, Any]:
        """Remove a key that was set by hand."""
        return {"alias": await self._aliases.remove(alias)}

    @verb("uninstall", Role.OPERATOR)
    async def uninstall(self) -> Mapping[str, Any]:
        """Remove farm from every phone of this host; `ended` has the leases that this ended."""
        held = [
            {"lease": each.lease.id, "device": each.lease.device, "user": each.holder_name}
            for each in self._leasing.active.holders()
        ]
        cleaned, failed = await self._fleet.admin.forget_all()
        current = self._leasing.active.leases
        ended = [each for each in held if each["lease"] not in current]
        return {"cleaned": list(cleaned), "failed": failed, "ended": ended}


def _host_row(view: HostView) -> dict[str, Any]:
    shown = ("name", "state", "address", "beat_at", "silent_s", "phones", "version", "protocol", "drained")
    reach = "" if view.unreached is None else "no" if view.unreached else "yes"
    return {**json_of(view, *shown), "reach": reach, "hint": next_step(view)}


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"{text!r} is not KEY=VALUE", hint="e.g. --label rack=3; an empty value removes the label")
    return name, value


def _ordered(view: DeviceView) -> str:
    """An order that keeps a ready device out, with the command that undoes it."""
    out = view.life is Life.READY and view.service is not Service.IN
    return f"an operator's order; undo: farm device release {view.name}" if out else ""


def _closed(view: DeviceView) -> str:
    """Why a ready device is closed to lease classes: the reason of the first of them."""
    if view.life is not Life.READY:
        return ""
    return next((str(view.closed[each]) for each in LeaseClass if each in view.closed), "")


def _found(view: DeviceView) -> str:
    """Findings of a ready device; those that recovery should repair come first."""
    return next((each.cause for each in sorted(view.findings, key=lambda each: not each.act)), "")


def device_row(view: DeviceView, holder: str, now: datetime) -> dict[str, Any]:
    """A device in `farm status`. `holder` is empty when it is not leased; `now`: by the clock of the lab."""
    identity = view.identity
    read_s = None if view.read_at is None else max(0.0, (now - view.read_at).total_seconds())
    row = {
        **json_of(view, "name", "serial"),
        "state": state_word(view, held=bool(holder)),
        **json_of(view, "life", "service", "heat"),
        "closed": {each.value: json_of(why, "reason", "evidence", "opens_in_s") for each, why in view.closed.items()},
        "reason": view.reason or _ordered(view) or _closed(view) or _found(view),
        **json_of(view, "evidence", "hint"),
        "findings": [json_of(each, "kind", "cause", "evidence", "hint", "act") for each in view.findings],
        **json_of(view, "adopted", "pool"),
        "virtual": identity.virtual if identity else False,
        "model": identity.model if identity else "",
        "market_name": identity.market_name if identity else "",
        "soc": (identity.soc.model or identity.soc.name) if identity else "",
        "gpu": identity.gpu.model if identity else "",
        **json_of(view, "temperature_c", "temperature_of", "battery_percent", "read_at"),
        "read_age_s": read_s if read_s is None else round(read_s, 1),
        "usb": view.place.path if view.place else "",
        "holder": holder,
        **json_of(view, "aliases", "bundle", "since"),
    }
    return {name: _bounded(value) for name, value in row.items()}


def _bounded(value: Any) -> Any:
    """So much that no device's words make the answer about all of them too large to send."""
    if isinstance(value, str):
        return plain(value, REASON)
    if isinstance(value, list):
        return [_bounded(each) for each in value[:_MAX_ENTRIES]]
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    return value


def device_details(view: DeviceView, holder: str, now: datetime) -> dict[str, Any]:
    """Everything `farm device show` prints."""
    identity = view.identity
    facts = {} if identity is None else asdict(identity)
    like = alike(identity, view.bundle)
    return {
        **device_row(view, holder, now),
        "checked": view.checked,
        "labels": dict(view.labels),
        "alike": None if like is None else asdict(like),
        "targets": dict(facts.pop("targets", {})),
        "raw": facts.pop("raw", {}),
        "identity": facts,
    }
