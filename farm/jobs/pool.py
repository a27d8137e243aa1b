"""The phones of one attempt that has several at once and loses and gains them while it works (`JobSpec.pooled`).

Above the line are the decisions, which are pure: which phones are alike, how many to ask for, which to let go. Below is
`Pool`, which carries them out over leasing and the fleet. An attempt lives as long as its worker: a pool may be empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from farm.common.errors import Code, FarmError, PhoneError, UserError
from farm.devices.fleet import Fleet
from farm.devices.identity.naming_rules import PoolingTraits, alike
from farm.head.allocator.explain import unleasable_reason
from farm.jobs.lab_devices import LabDevices
from farm.leasing.leases import Leasing
from farm.model.device import DeviceState, DeviceView, Heat, Life, Service
from farm.model.job import Job
from farm.model.requests import Lease, LeaseClass

OTHERS_WAIT = "given back: others wait for it"
NO_LONGER_IDENTICAL = "it is not identical to the other phones of its job any more"
SPARE = "given back: its job has no more use for it"


def not_in_pool_error(lease_id: str) -> PhoneError:
    """The error for a phone that has left, or is about to."""
    return PhoneError(
        f"the lease {lease_id} is not in the pool", Code.NOT_IN_POOL, hint="ask for the pool: some phones left"
    )


@dataclass(frozen=True, slots=True)
class PoolActions:
    """The next actions of a pool."""

    wanted: int  # phones in all
    only: frozenset[str]  # the phones that would do
    ask: int  # how many requests should be waiting
    drop: tuple[str, ...] = ()  # leases of phones that are not like the others any more
    spare: tuple[str, ...] = ()  # leases beyond what is wanted


def decide(
    like: PoolingTraits,
    known: Mapping[str, PoolingTraits],
    views: Iterable[DeviceState],
    held: Mapping[str, str],
    devices: int | Literal["all"],
    barred: Collection[str] = (),
) -> PoolActions:
    """The phones to request and to release.

    Args:
        like: what the pool's phones have in common.
        known: the same of every phone, as last seen: one that is away is still known.
        views: every phone of the farm, those of other hosts too.
        held: device by lease, of the pool.
        devices: how many are wanted.
        barred: phones that must not be asked for.
    """
    views = list(views)
    suiting = (view for view in views if view.adopted and view.name not in barred)
    would_do = {view.name: view for view in suiting if known.get(view.name) == like}
    drop = tuple(lease for lease, device in held.items() if known.get(device, like) != like)
    staying = [lease for lease in held if lease not in drop]
    there = {name for name, view in would_do.items() if view.in_service} | {held[lease] for lease in staying}
    wanted = len(there) if devices == "all" else devices
    wanted = max(1, wanted)
    usable = {view.name for view in views if not resting(view)}
    spare = tuple(sorted(staying, key=lambda lease: held[lease] not in usable)[wanted:])
    return PoolActions(wanted, frozenset(would_do), max(0, wanted - len(staying)), drop, spare)


def resting(view: DeviceState) -> str:
    """Why nothing may be measured now on a phone of the pool; empty when it may."""
    if view.life is Life.READY and view.heat is Heat.OK:
        return ""
    why = unleasable_reason(replace(view, service=Service.IN), LeaseClass.TUNE)
    return f"{view.name}: {why}" if view.closed else f"{view.name} is {why}"


def why_fewer(rest: Iterable[str], held: int, wanted: int, asked_why: str) -> str:
    """Why there are fewer phones than wanted, one sentence for a person; empty when there are not.

    Args:
        rest: what `resting` says of phones in the pool.
        held: phones in the pool.
        wanted: phones that should be.
        asked_why: why leasing has no more; "": no reason.
    """
    facts = [each for each in rest if each]
    ready = held - len(facts)
    if held < wanted:
        facts.append(asked_why or "the next phone is on its way")
    return f"{ready} of {wanted} phones; {'; '.join(facts)}" if facts else ""


# --- what carries it out ----------------------------------------------------------------------------------------------


class Pool:
    """The phones of one attempt. `begin` once; `close` in the end, whatever happened."""

    def __init__(self, job: Job, first: Lease, leases: Leasing, devices: Fleet, others: LabDevices) -> None:
        """`first`: granted together with the attempt's worker slot. `others`: devices of other hosts."""
        self._job = job
        self._first = first
        self._leases = leases
        self._devices = devices
        self._others = others
        self._on_change: Callable[[str, dict[str, Any]], None] = lambda *_: None
        self._wanted: int | Literal["all"] = 1  # until the worker searches
        self._like: PoolingTraits | None = None
        self._known: dict[str, PoolingTraits] = {}
        self._held: dict[str, Lease] = {first.id: first}
        self._facts_of: dict[str, object] = {}  # what was last seen of each phone that matters here
        self._had: dict[str, None] = {first.device: None}
        self._asked: dict[object, str] = {}  # ticket -> request
        self._actions = PoolActions(1, frozenset(), 0)
        self._unsubscribe: list[Callable[[], None]] = []
        self._soon: asyncio.Handle | None = None
        self._settled = False
        self._began_s = 0.0
        self._published: object = None
        self._publishing: asyncio.Task[None] | None = None  # of the latest change
        self._given_back: dict[str, str] = {}  # phones that left since the last publication, and why
        self._barred: set[str] = set()  # taken back: this attempt does not ask for them again
        self.lost: dict[str, str] = {}  # phones whose lease ended under the work and that did not return, and why

    def begin(self, on_change: Callable[[str, dict[str, Any]], None]) -> None:
        """Move the first lease and its worker slot in, and ask for the others.

        `on_change` is called at every change of the phones: one line for a person, and the facts.

        Raises:
            PhoneError: the first lease has ended, or nothing is known of its phone.
        """
        try:
            self._leases.keep_slot(self._first.id)
        except FarmError as error:
            raise PhoneError(f"{self._first.device} was lost before the work began: {error.message}") from error
        self._on_change = on_change
        self._began_s = asyncio.get_running_loop().time()
        self._take(self._first)
        self._unsubscribe = [
            self._devices.subscribe(self._device_changed),
            self._others.subscribe(self._update_soon),
        ]
        self._learn()
        self._like = self._known.get(self._first.device)
        if self._like is None:
            raise PhoneError(f"{self._first.device} is not identified")
        self._update()

    def settle(self) -> None:
        """Want no further phone: the work is over. The pool keeps its phones until `close`."""
        self._settled = True
        while self._unsubscribe:
            self._unsubscribe.pop()()
        if self._soon is not None:
            self._soon.cancel()
        if self._publishing is not None:
            self._publishing.cancel()
        for request in self._asked.values():
            self._leases.withdraw(request)
        self._asked.clear()

    def close(self, reason: str) -> None:
        """Give everything back: phones, requests, the worker slot."""
        self.settle()
        for lease_id in self._held:
            self._leases.release(lease_id, reason)
        self._held.clear()
        self._leases.free_slot(self._first.id)

    @property
    def wanted(self) -> int:
        """How many phones it should have, as things are."""
        return self._actions.wanted

    @property
    def had(self) -> tuple[str, ...]:
        """Every phone that it has had, the first first."""
        return tuple(self._had)

    # --- what the worker wants ---

    def phones(self) -> list[dict[str, Any]]:
        """The phones that may be measured on."""
        views = {view.name: view for view in self._views()}
        ready = [lease for lease in self._held.values() if (view := views.get(lease.device)) and not resting(view)]
        return [
            {
                "lease": lease.id,
                "device": lease.device,
                "yield_wanted": self._leases.yield_wanted(lease.id) or views[lease.device].service is not Service.IN,
            }
            for lease in ready
        ]

    async def state(self) -> dict[str, Any]:
        """The phones that may be measured on, how many are wanted, and why there are fewer."""
        waits = await self.waits()
        return {"phones": self.phones(), "wanted": self._actions.wanted, "waits": waits}

    async def waits(self) -> str:
        """Why there are fewer phones than wanted, one sentence; empty when there are not."""
        views = {view.name: view for view in self._views()}
        rest = [resting(views[lease.device]) for lease in self._held.values() if lease.device in views]
        asked = next(iter(self._asked.values()), None)
        asked_why = "" if asked is None else (await self._leases.head.why((asked,))).get(asked, "")
        return why_fewer(rest, len(self._held), self._actions.wanted, asked_why)

    def check(self, lease_id: str) -> str:
        """The phone of a lease that is in the pool.

        Raises:
            PhoneError: it is not.
        """
        if lease_id not in self._held:
            raise not_in_pool_error(lease_id)
        return self._held[lease_id].device

    def end_wanted(self) -> bool:
        """Whether others lack only the worker slot: the attempt should end as yielded and continue another time."""
        return self._leases.slot_wanted(self._first.id)

    def search(self, *, on: bool) -> None:
        """Want as many phones as the job asks for, or one: only a search has use for more. Others get the rest now."""
        self._wanted = self._job.spec["devices"] if on else 1
        self._update()

    def give_back(self, lease_id: str) -> None:
        """Let others have a phone, and ask for another one behind them.

        Raises:
            PhoneError: it is not in the pool.
        """
        self.check(lease_id)
        device = self._held.pop(lease_id).device
        shut = next((view.closed.get(LeaseClass.TUNE) for view in self._views() if view.name == device), None)
        self._given_back[device] = OTHERS_WAIT if shut is None else f"given back: {shut}"
        self._leases.release(lease_id, self._given_back[device])
        self._update_soon()

    # --- what happens ---

    def _device_changed(self, view: DeviceView) -> None:
        """Temperatures come by the second, and decide nothing here."""
        facts = (view.identity, view.bundle, view.adopted, view.in_service, view.life is Life.GONE)
        if self._facts_of.get(view.name) != facts:
            self._facts_of[view.name] = facts
            self._update_soon()

    def _update_soon(self) -> None:
        """Once per turn of the loop: changes of phones come in crowds, some of them from our own releases."""
        if self._soon is None and not self._settled:
            self._soon = asyncio.get_running_loop().call_soon(self._update)

    def _update(self) -> None:
        self._soon = None
        if self._settled or self._like is None:
            return
        self._learn()
        held = {lease.id: lease.device for lease in self._held.values()}
        actions = decide(self._like, self._known, self._views(), held, self._wanted, self._barred)
        again = actions.only != self._actions.only
        self._actions = actions
        for leases, why in ((actions.drop, NO_LONGER_IDENTICAL), (actions.spare, SPARE)):
            for lease_id in leases:
                self._given_back[self._held.pop(lease_id).device] = why
                self._leases.release(lease_id, why)
        while self._asked and (again or len(self._asked) > actions.ask):
            _, request = self._asked.popitem()
            self._leases.withdraw(request)
        while len(self._asked) < actions.ask:
            self._ask()
        self._publish()

    def _learn(self) -> None:
        views = self._views()
        for view in views:
            found = alike(view.identity, view.bundle)
            if found is not None:
                self._known[view.name] = found
        for forgotten in self._known.keys() - {view.name for view in views}:
            del self._known[forgotten]

    def _views(self) -> Sequence[DeviceState]:
        return (*self._devices.views(), *self._others.states())

    def _ask(self) -> None:
        ticket = object()

        def granted(lease: Lease) -> None:
            if self._asked.pop(ticket, None) is None:
                self._leases.release(lease.id, "its job does not wait any more")
                return
            self._take(lease)
            self._update_soon()

        left_s = max(0.0, self._job.timeout_s - (asyncio.get_running_loop().time() - self._began_s))
        request = replace(
            self._first.request, avoid=frozenset(), prefer=frozenset(), worker=False, only=self._actions.only,
            longest_s=left_s,
        )  # fmt: skip
        self._asked[ticket] = self._leases.ask_anywhere(request, granted)

    def _take(self, lease: Lease) -> None:
        taken = self._leases.when_revoked(lease.id)
        self._held[lease.id] = lease
        self._had[lease.device] = None
        self.lost.pop(lease.device, None)
        taken.add_done_callback(lambda why: self._lost(lease.id, why))

    def _lost(self, lease_id: str, why: asyncio.Future[FarmError]) -> None:
        if why.cancelled() or lease_id not in self._held:
            return
        lease = self._held.pop(lease_id)
        self._given_back[lease.device] = self.lost[lease.device] = why.result().message
        if isinstance(why.result(), UserError):
            self._barred.add(lease.device)
        self._update_soon()

    def _publish(self) -> None:
        devices = sorted(lease.device for lease in self._held.values())
        if (devices, self._actions.wanted) != self._published:
            self._published = devices, self._actions.wanted
            step = f"{len(devices)} of {self._actions.wanted} phones: {', '.join(devices) or 'it waits for one'}"
            step += "".join(f"; {name} left: {why}" for name, why in self._given_back.items() if name not in devices)
            self._given_back.clear()
            facts = {"phones": devices, "wanted": self._actions.wanted}
            self._publishing = asyncio.create_task(self._report(step, facts, self._publishing))

    async def _report(self, step: str, facts: Mapping[str, Any], before: asyncio.Task[None] | None) -> None:
        """Report a change after the one before it."""
        if before is not None:
            await before
        self._on_change(step, {**facts, "waits": await self.waits()})
