"""Verbs about leases: who has which phone, explanations, use, reservations, tunnels to phones, draining the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime

from farm.adb.server import authorization_steps
from farm.adb.tunnels import Tunnel, TunnelKind
from farm.common.durations import format_duration
from farm.common.errors import UserError
from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.common.verbs import verb
from farm.control.callers import Caller, Role
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup, json_of
from farm.control.verbs.device import device_facts
from farm.control.verbs.explain_device import as_lines, as_values, repeats_state, steps_before
from farm.devices.fleet import Fleet
from farm.devices.registry import Aliases
from farm.devices.tunnels import TunnelKeeper
from farm.head.head import Head
from farm.head.model import Explanation
from farm.head.reports import UsageGrouping, asked_for, summed
from farm.leasing.lab_view import LabView
from farm.leasing.leases import Leasing
from farm.model.device import DeviceView, Life
from farm.model.requests import ENDED_BY_OPERATOR
from farm.store.leases import LeaseRecord, LeaseTable, ReservationRecord

MAX_HISTORY = 2000  # leases in an answer
LATEST_STEPS = 10  # of a device's life that `explain` shows: one whole way to ready
WAITING_LISTED = 200  # of `lease.list`; a team's queue may have 100,000
DEFAULT_USAGE = "farm usage --since 7d"


def _explained_device(fields: Mapping[str, Any]) -> object:
    """The phone that a request explains."""
    return fields.get("name") if fields.get("what") == "device" else ""


class LeaseVerbs(VerbGroup):
    """Current and past leases, waiting requests, explanations, reservations, and draining the host."""

    def __init__(
        self,
        fleet: Fleet,
        leasing: Leasing,
        aliases: Aliases,
        events: EventLog,
        *,
        records: LeaseTable,
        lab: LabView,
        head: Head,
        adb_key: Path,
        explain_job: Callable[[str], Awaitable[Mapping[str, Any]]],
        notes_of: Callable[[Sequence[str]], Mapping[str, str]],
        heat_note: Callable[[str], str],
    ) -> None:
        """Prepare.

        Args:
            fleet: the devices.
            leasing: their leases.
            aliases: keys set by hand.
            events: what happened lately.
            records: leases that are over, too.
            lab: the leases and phones of other hosts.
            head: knows the waiting requests and the windows reserved for a user.
            adb_key: farm's private key; a phone's owner accepts its public half.
            explain_job: why a job, by id or prefix, does not run.
            notes_of: the notes of jobs, as their owners wrote them; reads the store.
            heat_note: a remark about the heat of a serial, beside the reason why it is closed.
        """
        self._fleet = fleet
        self._leasing = leasing
        self._aliases = aliases
        self._events = events
        self._records = records
        self._lab = lab
        self._head = head
        self._heat_note = heat_note
        self._adb_key = adb_key
        self._explain_job = explain_job
        self._notes_of = notes_of

    @verb("lease.list", Role.VIEWER)
    async def leases(self) -> Mapping[str, Any]:
        """Every lease, and the waiting requests."""
        others = (await self._lab.look()).leases
        jobs = {*(each.lease.request.job for each in self._leasing.active.holders()), *(each.job for each in others)}
        notes = await self._records.in_thread(self._notes_of, sorted(jobs - {""}))
        waiting, now = await self._head.waiting(WAITING_LISTED), self._leasing.wall()
        return {
            "now": now.isoformat(),
            "leases": [
                {
                    **json_of(holder.lease, "id", "device"),
                    **json_of(holder.lease.request, "user", "source", "lease_class", "key", "job", "personal"),
                    "note": notes.get(holder.lease.request.job, ""),
                    "held_s": round(holder.held_s, 3),
                    **json_of(holder, "expires_at", "session", "peer"),
                    **({"host": self._lab.own} if self._lab.own else {}),
                }
                for holder in self._leasing.active.holders()
            ]
            + [_remote_lease(each, notes.get(each.job, ""), now) for each in others],
            "waiting": [
                {
                    "user": each.request.user,
                    "selector": asked_for(each.request),
                    "priority": each.request.priority,
                    "job": each.request.job,
                    "waited_s": round(each.waited_s, 3),
                }
                for each in waiting.foremost
            ],
            "waiting_more": waiting.more,
        }

    @verb("lease.kick", Role.OPERATOR, subject="device")
    async def kick(self, device: str) -> Mapping[str, Any]:
        """End a lease now."""
        return json_of(await self._leasing.revoke(device, ENDED_BY_OPERATOR), "id", "device")

    # --- explain --------------------------------------------------------------------------------------------------

    @verb("explain", Role.VIEWER, subject=_explained_device)
    async def explain(self, call: ControlCall, what: str, name: str) -> Mapping[str, Any]:
        """Why a device is not handed out to the caller, a key waits or a job does not run, in sentences."""
        match what:
            case "device":
                return await self._explain_device(self._fleet.view(name), call.caller)
            case "key":
                return await self._explain_key(name, call.caller)
            case "job":
                return await self._explain_job(name)
        raise UserError(f"explain does not know {what!r}", hint="device, key or job")

    async def _explain_device(self, view: DeviceView, caller: Caller) -> Mapping[str, Any]:
        self._fleet.note_view()
        facts = await device_facts(self._fleet, view.name)
        explanation = await self._head.explain(view.name, caller.user)
        left = tuple(each for each in explanation.devices if not repeats_state(view, each.reason))
        lines = [
            *as_lines(facts), *filter(None, [self._heat_note(view.serial)]), *_lines(replace(explanation, devices=left))
        ]  # fmt: skip
        if self._lab.own:
            lines.insert(1, f"  host: {self._lab.own}")
        if view.life is Life.UNAUTHORIZED:
            lines += ["", *authorization_steps(view.serial, self._adb_key).splitlines()]
        else:
            lines += ["", "lately (UTC):", *(steps_before(facts) or self._lately(view.name))]
        return {"subject": view.name, "lines": lines, "estimate_s": explanation.estimate_s, "device": as_values(facts)}

    async def _explain_key(self, key: str, caller: Caller) -> Mapping[str, Any]:
        explanation = await self._head.explain(key, caller.user)
        lines = _lines(explanation)
        if caller.user and caller.role < Role.USER:
            lines.insert(0, f"{caller.user} is {caller.role.word} and gets no phone: an operator gives the role user")
        matches = any(reason.matches for reason in explanation.devices)
        if not matches:
            # Of a key set by hand, what it stands for is looked at; to any other each of them counts as a phone
            # without labels.
            known: list[tuple[Mapping[str, str], Sequence[str]]] = [
                (view.labels, view.aliases) for view in await self._views()
            ]
            by_hand = self._aliases.selectors()
            if key in by_hand:
                error, stands_for = by_hand[key].no_match(known), f"{key} is {by_hand[key]}: "
            else:
                error, stands_for = Selector.parse(key).no_match(known + [({}, (alias,)) for alias in by_hand]), ""
            lines.insert(0, f"{stands_for}{error.message}" + (f" ({error.hint})" if error.hint else ""))
        return {"subject": key, "lines": lines, "estimate_s": explanation.estimate_s, "matches": matches}

    async def _views(self) -> Sequence[DeviceView]:
        """Every phone of the lab."""
        return [*self._fleet.views(), *(each.view for each in (await self._lab.look()).phones)]

    def _lately(self, name: str) -> list[str]:
        steps = self._events.newest(
            lambda event: event.subject == name and event.data.get("reason") is not None, LATEST_STEPS
        )
        return [
            f"  {each.at:%H:%M:%S} {each.kind.partition('.')[2]} {each.data['reason']}".rstrip()
            for each in reversed(steps)
        ]

    # --- use and reservations -------------------------------------------------------------------------------------

    @verb("usage", Role.VIEWER)
    async def usage(
        self, since: AwareDatetime, until: AwareDatetime | None = None, by: UsageGrouping = UsageGrouping.USER
    ) -> Mapping[str, Any]:
        """Device-seconds, leases and jobs from `since` to `until` (None: now); running leases count up to now."""
        now = self._leasing.wall()
        end = now if until is None else min(until, now)
        if until is not None and since >= until:
            raise UserError("the time asked for ends before it begins", hint="farm usage --since 2h --until 1h")
        if since >= end:
            raise UserError("the time asked for has not begun", hint=DEFAULT_USAGE)
        rows = await self._records.in_thread(self._records.usage, since, end)
        jobs = await self._records.in_thread(self._records.jobs, since, end, by.value)
        return {
            "since": since.isoformat(),
            "until": end.isoformat(),
            "by": by.value,
            "usage": [asdict(each) for each in summed(rows, jobs, by)],
        }

    @verb("lease.history", Role.VIEWER)
    async def history(self, since: AwareDatetime) -> Mapping[str, Any]:
        """The leases that were open at some time since then, newest first; `more`: there are further ones."""
        records, now = self._records, self._leasing.wall()
        found = await records.in_thread(records.between, since, now, MAX_HISTORY + 1)
        return {
            "now": now.isoformat(),
            "leases": [
                json_of(each, "id", "device", "user", "source", "job", "granted_at", "ended_at")
                for each in found[:MAX_HISTORY]
            ],
            "more": len(found) > MAX_HISTORY,
        }

    @verb("reservation.list", Role.VIEWER)
    async def list_reservations(self) -> Mapping[str, Any]:
        """Those that are not over."""
        rows = [_reservation_row(record) for record in await self._head.reservations()]
        return {"reservations": rows, "now": self._leasing.wall().isoformat()}

    @verb("reservation.add", Role.OPERATOR, subject="selector", order=("user", "starts_at", "ends_at"))
    async def add_reservation(
        self, selector: str, user: str, starts_at: AwareDatetime, ends_at: AwareDatetime, note: str = ""
    ) -> Mapping[str, Any]:
        """Keep phones that there are, here or away, for one user."""
        parsed = Selector.parse(selector)
        views = await self._views()
        known = [(view.labels, view.aliases) for view in views]
        matching = [view.name for view in views if parsed.matches(view.labels, view.aliases)]
        if not matching:
            raise parsed.no_match(known)
        record = await self._head.reserve(selector, user, starts_at, ends_at, note)
        return {"reservation": _reservation_row(record), "devices": matching}

    @verb("reservation.remove", Role.OPERATOR, subject="reservation")
    async def remove_reservation(self, reservation: str) -> Mapping[str, Any]:
        """Take a reservation back."""
        return {"reservation": _reservation_row(await self._head.remove_reservation(reservation))}

    def problems(self) -> list[str]:
        """For `farm status`."""
        return [f"{self._head.drained}: farm drain --end"] if self._head.drained else []

    @verb("host.drain", Role.OPERATOR, subject="host")
    async def drain(self, call: ControlCall, on: bool = True, host: str = "") -> Mapping[str, Any]:
        """Hold grants back or let them continue -> {draining, leases}: the leases that remain.

        Of another `host` of the lab the request is answered there.
        """
        if host != self._lab.own and host:
            raise UserError(f"there is no host {host!r} here: this one belongs to no lab", hint="farm drain")
        by = call.caller.user
        if on and not self._head.drained:
            since = f"{self._leasing.wall():%Y-%m-%d %H:%M} UTC"
            await self._head.drain(f"{by} drains {self._lab.own or 'this host'} since {since}: no phone is handed out")
            self._events.publish("host.draining", "host", by=by)
        elif not on and self._head.drained:
            await self._head.drain("")
            self._events.publish("host.in_service", "host", by=by)
        held = [
            {"device": each.lease.device, "user": each.holder_name, "held_s": each.held_s}
            for each in self._leasing.active.holders()
        ]
        return {"draining": bool(self._head.drained), "leases": held}


def _remote_lease(record: LeaseRecord, note: str, now: datetime) -> dict[str, Any]:
    """A lease of another host in `lease.list`: its sessions are known there."""
    held_s = max(0.0, (now - record.granted_at).total_seconds())
    return {
        **json_of(record, "id", "device", "user", "source", "lease_class", "key", "job", "expires_at"),
        "personal": False, "note": note, "held_s": round(held_s, 3), "session": "", "peer": "",
        "host": record.host,
    }  # fmt: skip


def _lines(explanation: Explanation) -> list[str]:
    """An explanation as sentences."""
    lines = [*explanation.limits, *(line for each in explanation.devices for line in each.lines())]
    for each in explanation.waiting:
        wanted = asked_for(each.request)
        why = f": {each.why}" if each.why else ""
        lines.append(f"{each.request.user or 'another user'} waits for {wanted}, {format_duration(each.waited_s)}{why}")
    if explanation.waiting_more:
        lines.append(f"and {explanation.waiting_more} more wait")
    if explanation.estimate_s is not None:
        lines.append(f"the foremost is served within {format_duration(explanation.estimate_s)}, as things stand")
    return lines


def _reservation_row(record: ReservationRecord) -> dict[str, Any]:
    return json_of(record, "id", "selector", "user", "starts_at", "ends_at", "note")


class TunnelVerbs(VerbGroup):
    """Verbs about tunnels."""

    def __init__(self, fleet: Fleet, keeper: TunnelKeeper) -> None:
        self._fleet = fleet
        self._keeper = keeper

    @verb("forward.add", Role.OPERATOR, subject="device", order=("listen", "dial"))
    async def add(self, device: str, listen: str, dial: str, reverse: bool = False) -> Mapping[str, Any]:
        """Set up a tunnel between adb socket specs (`tcp:9000`); farm repeats it after replugs and reboots."""
        kind = TunnelKind.REVERSE if reverse else TunnelKind.FORWARD
        view = self._fleet.adopted_view(device)
        await self._keeper.add(Tunnel(kind, view.serial, listen, dial))
        return {"device": view.name, "listen": listen, "dial": dial, "kind": kind.value}

    @verb("forward.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every tunnel farm owns."""
        names = {view.serial: view.name for view in self._fleet.views()}
        return {
            "tunnels": [
                {
                    "device": names.get(tunnel.serial, tunnel.serial),
                    "kind": tunnel.kind.value,
                    "listen": tunnel.listen,
                    "dial": tunnel.dial,
                    "problem": problem,
                }
                for tunnel, problem in self._keeper.listed()
            ]
        }

    @verb("forward.remove", Role.OPERATOR, subject="device", order=("listen",))
    async def remove(self, device: str, listen: str, dialler_stopped: bool = False) -> Mapping[str, Any]:
        """Give a tunnel up."""
        view = self._fleet.view(device)
        tunnel = self._keeper.find(view.serial, listen)
        if tunnel is None:
            raise UserError(f"farm keeps no tunnel {listen} of {view.name}", hint="farm forward list")
        waits = await self._keeper.remove(tunnel, dialler_stopped=dialler_stopped)
        return {"device": view.name, "listen": listen, "waits": waits}
