"""What people may ask of the daemon, verb by verb: check the fields, call the part that does it, render the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from farm.control.callers import Role
from farm.control.forms import OneDevice, Verbs, form, verb
from farm.control.render import device_details, device_row
from farm.core.errors import UserError
from farm.core.events import EventLog
from farm.core.labels import normalise
from farm.core.selector import Selector
from farm.fleet.aliases import Aliases
from farm.fleet.fleet import Fleet
from farm.fleet.uninstall import uninstall
from farm.leasing import Leasing


@form
class Adopt:
    """`device.adopt`. Empty pool and rename leave the choice to the farm."""

    device: str
    pool: str = ""
    rename: str = ""


@form
class SetDevice:
    """`device.set`. None leaves a thing as it is; a label is KEY=VALUE, an empty value removes it."""

    device: str
    rename: str | None = None
    pool: str | None = None
    labels: tuple[str, ...] = ()


@form
class Forget:
    """`device.forget`. `clean` also removes farm from the phone, `force` ends the lease of whoever holds it."""

    device: str
    clean: bool = False
    force: bool = False


@form
class Address:
    """`device.add`: HOST:PORT."""

    address: str


@form
class SetAlias:
    """`alias.set`."""

    alias: str
    selector: str


@form
class OneAlias:
    """`alias.remove`."""

    alias: str


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What `status` says of the daemon itself; `problems` is asked each time."""

    version: str
    pid: int
    tracker: Callable[[], tuple[str, int]]  # where stock clients on this host connect
    summary: Callable[[], Mapping[str, Any]]  # what SUMMARY answers them: boards that registered themselves included
    adb_socket: str
    problems: Callable[[], Awaitable[list[str]]]
    door: Callable[[], tuple[str, int]] = lambda: ("", 0)  # what the TVM port is bound to, and the process that has it
    web: Callable[[], str] = str  # the page's address; "": there is none


class FleetVerbs(Verbs):
    """Verbs about phones and keys."""

    def __init__(self, fleet: Fleet, leasing: Leasing, aliases: Aliases, events: EventLog, facts: DaemonFacts) -> None:
        self._fleet = fleet
        self._aliases = aliases
        self._leasing = leasing
        self._events = events
        self._facts = facts

    @verb("status", Role.VIEWER)
    async def status(self) -> Mapping[str, Any]:
        """Keys, devices, and what is wrong with the host; `seq` is the newest event that it knows of."""
        holders = {holder.lease.device: holder.who for holder in self._leasing.holders()}
        host, port = self._facts.tracker()
        summary = self._facts.summary()
        bound, pid = self._facts.door()
        totals = Counter(server["key"].removeprefix("server:") for server in summary["server_info"])
        return {
            "version": self._facts.version,
            "pid": self._facts.pid,
            "seq": self._events.seq,
            "tracker": {"host": host, "port": port, "bound": bound, "pid": pid},
            "adb": {"socket": self._facts.adb_socket},
            "web": self._facts.web(),
            "keys": [{"key": key, "total": totals[key], **row} for key, row in summary["queue_info"].items()],
            "devices": [device_row(view, holders.get(view.name, "")) for view in self._fleet.views()],
            "problems": await self._facts.problems(),
        }

    @verb("device.show", Role.VIEWER)
    async def show(self, asked: OneDevice) -> Mapping[str, Any]:
        """One device, whole."""
        view = self._fleet.view(asked.device)
        return device_details(view, self._fleet.care.holder(view.name))

    @verb("device.adopt", Role.OPERATOR)
    async def adopt(self, asked: Adopt) -> Mapping[str, Any]:
        """Let a phone in."""
        if asked.rename:
            self._free(asked.device)  # a lease knows its device by name
        view = await self._fleet.orders.adopt(asked.device, pool=asked.pool, rename=asked.rename)
        return {"name": view.name, "pool": view.pool}

    @verb("device.set", Role.OPERATOR)
    async def set_device(self, asked: SetDevice) -> Mapping[str, Any]:
        """Change a phone's name, pool or labels."""
        if asked.rename is None and asked.pool is None and not asked.labels:
            raise UserError("device.set: nothing to change", hint="give --name, --pool or --label")
        labels = dict(_assignment(text) for text in asked.labels)
        if asked.rename is not None:
            self._free(asked.device)  # a lease knows its device by name
        view = await self._fleet.orders.change(asked.device, rename=asked.rename, pool=asked.pool, labels=labels)
        changed = {label: view.labels.get(label, "") for label in map(normalise, labels)}  # "": removed
        return {"name": view.name, "pool": view.pool, "labels": dict(view.labels), "changed": changed}

    @verb("device.forget", Role.OPERATOR)
    async def forget(self, asked: Forget) -> Mapping[str, Any]:
        """Remove a phone from the farm; unless forced, one that nobody holds."""
        name = self._fleet.view(asked.device).name if asked.force else self._free(asked.device)
        await self._fleet.orders.forget(name, clean=asked.clean)
        return {"name": name}

    @verb("device.add", Role.OPERATOR)
    async def add(self, asked: Address) -> Mapping[str, Any]:
        """Add a network phone."""
        return {"address": await self._fleet.orders.add_network(asked.address)}

    @verb("alias.list", Role.VIEWER)
    async def list_aliases(self) -> Mapping[str, Any]:
        """Every key with its phones."""
        set_by_hand = {alias: str(selector) for alias, selector in self._aliases.selectors().items()}
        devices: dict[str, list[str]] = {alias: [] for alias in set_by_hand}
        for view in self._fleet.views():
            for alias in view.aliases:
                devices.setdefault(alias, []).append(view.name)
        return {
            "aliases": [
                {"alias": alias, "devices": names, "selector": set_by_hand.get(alias, "")}
                for alias, names in sorted(devices.items())
            ]
        }

    @verb("alias.set", Role.OPERATOR)
    async def set_alias(self, asked: SetAlias) -> Mapping[str, Any]:
        """Let the phones of a selector answer to a key, later ones too; `no_match` says why none does now."""
        views = [(view.labels, view.aliases) for view in self._fleet.views()]
        alias = await self._aliases.set(asked.alias, asked.selector)
        devices = [view.name for view in self._fleet.views() if alias in view.aliases]
        no_match = "" if devices else Selector.parse(asked.selector).no_match(views).message
        return {"alias": alias, "devices": devices, "no_match": no_match}

    @verb("alias.remove", Role.OPERATOR)
    async def remove_alias(self, asked: OneAlias) -> Mapping[str, Any]:
        """Remove a key that was set by hand."""
        return {"alias": await self._aliases.remove(asked.alias)}

    @verb("uninstall", Role.OPERATOR)
    async def uninstall(self) -> Mapping[str, Any]:
        """Remove farm from every phone."""
        cleaned, failed = await uninstall(self._fleet)
        return {"cleaned": list(cleaned), "failed": failed}

    def _free(self, name: str) -> str:
        """The device's own name, unless somebody holds it.

        Raises:
            UserError: somebody holds it.
        """
        view = self._fleet.view(name)
        if (holder := self._leasing.holder(view.name)) is not None:
            raise UserError(f"{holder.who} holds {view.name}", hint=f"wait, or end it: farm lease kick {view.name}")
        return view.name


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"{text!r} is not KEY=VALUE", hint="e.g. --label rack=3; an empty value removes the label")
    return name, value
