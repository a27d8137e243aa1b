"""Verbs about who has which phone: leases, explanations, use, reservations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import AwareDatetime

from farm.adb.server import authorization_steps
from farm.control.callers import Role
from farm.control.forms import OneDevice, Verbs, form, verb
from farm.control.verbs.care import device_facts
from farm.control.verbs.explain_device import as_lines, as_values
from farm.core.device import DeviceView, Life
from farm.core.durations import format_duration
from farm.core.errors import UserError
from farm.core.events import EventLog
from farm.core.selector import Selector, did_you_mean
from farm.fleet.aliases import Aliases
from farm.fleet.fleet import Fleet
from farm.leasing import Explanation, Leasing, NoSuchLeaseError
from farm.leasing.reserving import ReservationBook
from farm.leasing.status import asked_for
from farm.leasing.usage import By, summed
from farm.store.records import ReservationRecord, UsageRow

LATEST_STEPS = 10  # of a device's life that `explain` shows: one whole way to ready
WAITING_LISTED = 200  # of `lease.list`; a team's queue may have 100,000
DEFAULT_USAGE = "farm usage --since 7d"


@form
class Explain:
    """`explain`. `what` is device, key or job."""

    what: str
    name: str


@form
class Usage:
    """`usage`, from `since` up to `until` (None: now), summed by user, device or door."""

    since: AwareDatetime
    until: AwareDatetime | None = None
    by: By = By.USER


@form
class AddReservation:
    """`reservation.add`."""

    selector: str
    user: str
    starts_at: AwareDatetime
    ends_at: AwareDatetime
    note: str = ""


@form
class OneReservation:
    """`reservation.remove`."""

    reservation: str


class LeaseRecords(Protocol):
    """What is needed of the store's leases."""

    def usage(self, since: datetime, until: datetime) -> Sequence[UsageRow]:
        """Device-seconds by user, device, door and class."""

    def jobs(self, since: datetime, until: datetime, by: str) -> Mapping[str, int]:
        """How many jobs had a phone, by user, device or door."""


class LeaseVerbs(Verbs):
    """Who has what, why others wait, who had what, and what is kept for whom."""

    def __init__(
        self,
        fleet: Fleet,
        leasing: Leasing,
        aliases: Aliases,
        events: EventLog,
        *,
        records: LeaseRecords,
        reservations: ReservationBook,
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
            reservations: windows kept for somebody.
            adb_key: farm's private key; a phone's owner accepts its public half.
            explain_job: why a job, by id or prefix, does not run.
            notes_of: what their owners wrote about jobs; reads the store.
            heat_note: what people should know of the heat of a serial beside why it is closed.
        """
        self._fleet = fleet
        self._leasing = leasing
        self._aliases = aliases
        self._events = events
        self._records = records
        self._reservations = reservations
        self._heat_note = heat_note
        self._adb_key = adb_key
        self._explain_job = explain_job
        self._notes_of = notes_of

    @verb("lease.list", Role.VIEWER)
    async def leases(self) -> Mapping[str, Any]:
        """Who holds what, and who waits."""
        notes = await asyncio.to_thread(
            self._notes_of, [holder.lease.request.job for holder in self._leasing.holders() if holder.lease.request.job]
        )
        waiting = self._leasing.waiting(WAITING_LISTED)
        return {
            "leases": [
                {
                    "id": holder.lease.id,
                    "device": holder.lease.device,
                    "user": holder.lease.request.user,
                    "door": holder.lease.request.door.value,
                    "lease_class": holder.lease.request.lease_class.value,
                    "key": holder.lease.request.key,
                    "job": holder.lease.request.job,
                    "note": notes.get(holder.lease.request.job, ""),
                    "held_s": round(holder.held_s, 3),
                    "expires_at": None if holder.expires_at is None else holder.expires_at.isoformat(),
                    "session": holder.session,
                    "peer": holder.peer,
                }
                for holder in self._leasing.holders()
            ],
            "waiting": [
                {
                    "user": each.request.user,
                    "selector": asked_for(each.request),
                    "priority": each.request.priority,
                    "job": each.request.job,
                    "waited_s": round(each.waited_s, 3),
                }
                for each in waiting
            ],
            "waiting_more": self._leasing.waiting_count - len(waiting),
        }

    @verb("lease.kick", Role.OPERATOR)
    async def kick(self, asked: OneDevice) -> Mapping[str, Any]:
        """End a lease now."""
        held = {name: h.lease for h in self._leasing.holders() for name in (h.lease.device, h.lease.id)}
        lease = held.get(asked.device)
        if lease is None:
            hint = did_you_mean(asked.device, held, "`farm lease list` shows who holds what")
            raise NoSuchLeaseError(f"nobody holds {asked.device}", hint=hint)
        await self._leasing.revoke(lease.id, "ended by an operator")
        return {"id": lease.id, "device": lease.device}

    # --- explain --------------------------------------------------------------------------------------------------

    @verb("explain", Role.VIEWER)
    async def explain(self, asked: Explain) -> Mapping[str, Any]:
        """Why a device is not handed out, a key waits or a job does not run, in sentences."""
        match asked.what:
            case "device":
                return await self._explain_device(self._fleet.view(asked.name))
            case "key":
                return self._explain_key(asked.name)
            case "job":
                return await self._explain_job(asked.name)
        raise UserError(f"explain does not know {asked.what!r}", hint="device, key or job")

    async def _explain_device(self, view: DeviceView) -> Mapping[str, Any]:
        facts = await device_facts(self._fleet, view.name)
        explanation = self._leasing.explain(view.name)
        lines = [*as_lines(facts), *filter(None, [self._heat_note(view.serial)]), *_lines(explanation)]
        if view.life is Life.UNAUTHORIZED:
            lines += ["", *authorization_steps(view.serial, self._adb_key).splitlines()]
        else:
            lines += ["", "lately (UTC):", *self._lately(view.name)]
        estimate = {"estimate_s": explanation.estimate_s}
        return {"subject": view.name, "lines": lines, **estimate, "device": as_values(facts)}

    def _explain_key(self, key: str) -> Mapping[str, Any]:
        explanation = self._leasing.explain(key)
        lines = _lines(explanation)
        matches = any(reason.matches for reason in explanation.devices)
        if not matches:
            # Of a key set by hand, what it stands for is looked at; to any other each of them counts as a phone
            # without labels.
            known: list[tuple[Mapping[str, str], Sequence[str]]] = [
                (view.labels, view.aliases) for view in self._fleet.views()
            ]
            by_hand = self._aliases.selectors()
            if key in by_hand:
                error, stands_for = by_hand[key].no_match(known), f"{key} is {by_hand[key]}: "
            else:
                error, stands_for = Selector.parse(key).no_match(known + [({}, (alias,)) for alias in by_hand]), ""
            lines.insert(0, f"{stands_for}{error.message}" + (f" ({error.hint})" if error.hint else ""))
        return {"subject": key, "lines": lines, "estimate_s": explanation.estimate_s, "matches": matches}

    def _lately(self, name: str) -> list[str]:
        told = self._events.newest(
            lambda event: event.subject == name and event.data.get("reason") is not None, LATEST_STEPS
        )
        return [
            f"  {each.at:%H:%M:%S} {each.kind.partition('.')[2]} {each.data['reason']}".rstrip()
            for each in reversed(told)
        ]

    # --- use and reservations -------------------------------------------------------------------------------------

    @verb("usage", Role.VIEWER)
    async def usage(self, asked: Usage) -> Mapping[str, Any]:
        """Device-seconds, leases and jobs; running leases count up to now."""
        now = datetime.now(UTC)
        until = now if asked.until is None else min(asked.until, now)
        if asked.until is not None and asked.since >= asked.until:
            raise UserError("usage: since lies after until", hint="farm usage --since 2h --until 1h")
        if asked.since >= until:
            raise UserError("usage: that time has not begun", hint=DEFAULT_USAGE)
        rows = await asyncio.to_thread(self._records.usage, asked.since, until)
        jobs = await asyncio.to_thread(self._records.jobs, asked.since, until, asked.by.value)
        return {
            "since": asked.since.isoformat(),
            "until": until.isoformat(),
            "by": asked.by.value,
            "usage": [
                {"name": each.name, "held_s": round(each.held_s, 3), "leases": each.leases, "jobs": each.jobs}
                for each in summed(rows, jobs, asked.by)
            ],
        }

    @verb("reservation.list", Role.VIEWER)
    async def list_reservations(self) -> Mapping[str, Any]:
        """Those that are not over."""
        return {"reservations": [_reservation_row(record) for record in self._reservations.all()]}

    @verb("reservation.add", Role.OPERATOR)
    async def add_reservation(self, asked: AddReservation) -> Mapping[str, Any]:
        """Keep phones that there are, here or away, for one user."""
        selector = Selector.parse(asked.selector)
        known = [(view.labels, view.aliases) for view in self._fleet.views()]
        matching = [view.name for view in self._fleet.views() if selector.matches(view.labels, view.aliases)]
        if not matching:
            raise selector.no_match(known)
        record = await self._reservations.add(asked.selector, asked.user, asked.starts_at, asked.ends_at, asked.note)
        return {"reservation": _reservation_row(record), "devices": matching}

    @verb("reservation.remove", Role.OPERATOR)
    async def remove_reservation(self, asked: OneReservation) -> Mapping[str, Any]:
        """Take a reservation back."""
        return {"reservation": _reservation_row(await self._reservations.remove(asked.reservation))}


def _lines(explanation: Explanation) -> list[str]:
    """An explanation as sentences."""
    lines = [*explanation.limits, *(f"{reason.device}: {reason.reason}" for reason in explanation.devices)]
    for each in explanation.waiting:
        wanted = asked_for(each.request)
        why = f": {each.why}" if each.why else ""
        lines.append(f"{each.request.user or 'somebody'} waits for {wanted}, {format_duration(each.waited_s)}{why}")
    if explanation.waiting_more:
        lines.append(f"and {explanation.waiting_more} more wait")
    if explanation.estimate_s is not None:
        lines.append(f"the foremost is served within {format_duration(explanation.estimate_s)}, as things stand")
    return lines


def _reservation_row(record: ReservationRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "selector": record.selector,
        "user": record.user,
        "starts_at": record.starts_at.isoformat(),
        "ends_at": record.ends_at.isoformat(),
        "note": record.note,
    }
