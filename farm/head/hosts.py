"""The hosts of a head in a process of its own: their phones, leases and attempts, and the letters to them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import StrEnum

from farm.common.errors import log_error
from farm.common.tasks import at_most
from farm.devices.identity.naming_rules import same_phone
from farm.head import wire
from farm.head.dispatcher import AttemptRunner
from farm.head.host_rules import HostState, gone_with_host
from farm.head.messages import (
    DeviceChanged,
    DeviceForgotten,
    DialBack,
    HostMessage,
    JobMessage,
    LeaseArmed,
    LeaseEnded,
    LeaseGranted,
    LeaseHeld,
    LeaseLost,
    LeaseRestored,
    LeaseUnwanted,
    OrderAnswer,
    RequestAdded,
    RequestWithdrawn,
    RunAttempt,
    Salvage,
    SessionBroken,
    SlotFreed,
    SlotKept,
    SlotWanted,
    ToHost,
    YieldWanted,
)
from farm.head.phone_claims import PhoneClaims
from farm.head.queue.model import StopAttempt
from farm.model.device import DeviceState, Life
from farm.model.job import Attempt, Job
from farm.model.requests import Lease, LeaseSource
from farm.store.database import BackgroundWrites
from farm.store.mailbox import NOTHING, HostRecord, Letter
from farm.store.store import Store

POLLS_S = 0.015  # after the end of a lease its host polls its mailbox, for longer than this (`EXPECTED_S` there)
WOKEN_AFTER_S = 0.02  # after a grant to a host that polls: it is woken if it has not armed the grant by then
SALVAGE_LIMIT_S = 5.0  # for a host to salvage results; a job ends without a host that is away

log = logging.getLogger(__name__)


class WithheldFor(StrEnum):
    """The cause for which a host's phones are not handed out; of several, messages name the first."""

    PROTOCOL = "protocol"  # head and host do not understand each other
    LOSS = "loss"  # it is lost or was removed
    ENDING = "ending"  # it is back, and has not ended the attempts of before its loss
    DRAIN = "drain"  # an operator ordered it


def protocol_problem(record: HostRecord) -> str:
    """Why the head refuses a host of another release; "": it understands the host."""
    if wire.speaks(record.protocol):
        return ""
    older = "the host" if record.protocol < wire.PROTOCOL else "the head"
    return (
        f"host {record.name} (farm {record.version or 'of another release'}) speaks protocol {record.protocol}, "
        f"the head {wire.PROTOCOL}: update {older}"
    )


class Hosts(AttemptRunner):
    """Sends each message to the host that it concerns. Call `note` with a host's message before any other method."""

    def __init__(self, store: Store, wake: Callable[[str], None], clock: Callable[[], float]) -> None:
        """`wake` wakes a host. `clock`: monotonic seconds."""
        self._store = store
        self._wake = wake
        self._clock = clock
        self._of_device: dict[str, str] = {}
        self._states: dict[str, DeviceState] = {}  # by device, as its host reported it
        self._claims = PhoneClaims()
        self._claimed: set[tuple[str, str]] = set()  # host and device whose phone another host has
        self._disputed: set[tuple[str, str]] = set()  # host and device whose name another host's device has
        self._withheld: defaultdict[str, dict[WithheldFor, str]] = defaultdict(dict)  # by host, with the reason
        self._of_lease: dict[str, str] = {}  # until it has ended, with its worker slot
        self._slots: dict[str, str] = {}  # lease whose worker slot is kept -> its host
        self._of_job: dict[str, tuple[str, str]] = {}  # job -> its running attempt, and the host where that runs
        self._lent: dict[str, tuple[str, str]] = {}  # lease for a job of another host -> its device, and that host
        self._requests: defaultdict[str, set[str]] = defaultdict(set)  # by host, until their lease is armed
        self._unarmed: dict[str, LeaseGranted] = {}  # by lease
        self._polls_until_s: dict[str, float] = {}  # by host
        self._salvaging: dict[str, asyncio.Event] = {}
        self.stopped: set[str] = set()  # hosts whose phones are gone until they begin again
        self.decide: Callable[[HostMessage], None]  # by what a host has said; from the head's start on
        self._unsent: defaultdict[str, list[Letter]] = defaultdict(list)  # by host, in order
        self._writes = BackgroundWrites()
        self.store_problem = self._writes.on_store_problem
        self.flush = self._writes.close

    # --- what hosts say -------------------------------------------------------------------------------------------

    def take(self, host: str, message: HostMessage) -> None:
        """Act upon a host's message, or one in its place, unless it is known, or another host's phone has the name.

        What a lost host asks for is left: no client and no job there would hear of a phone.
        """
        match message:
            case DeviceChanged(state):
                known = self._states.get(state.name) == replace(state, host=host)
            case RequestAdded(request_id):
                known = request_id in self._requests[host] or bool(self._withheld[host].get(WithheldFor.LOSS))
            case _:
                known = False
        if not known and not self.owned_by_other_host(host, message):
            for each in self.note(host, message):
                self.decide(each)

    def note(self, host: str, message: HostMessage) -> tuple[HostMessage, ...]:
        """Note that the message's phone, request or lease is at this host.

        Returns the message for the decision, and what it changes for the same phone at another host.
        """
        match message:
            case DeviceChanged(DeviceState(name)) | DeviceForgotten(name):
                rivals = self._claims.rivals(name)
                noted = self._noted(host, message)
                rivals |= self._claims.rivals(name)
                return noted, *(self._with_withheld_reason(self._states[each]) for each in sorted(rivals))
        return (self._noted(host, message),)

    def _noted(self, host: str, message: HostMessage) -> HostMessage:
        match message:
            case DeviceChanged(state):
                self._of_device[state.name] = host
                if host in self.stopped:
                    state = gone_with_host(state, host, HostState.STOPPED)
                self._states[state.name] = state = replace(state, host=host)
                self._claims.changed(state)
                if state.life is Life.GONE:
                    self._name_is_free(state.name)
                return self._with_withheld_reason(state)
            case DeviceForgotten(device):
                self._states.pop(device, None)
                self._claims.forget(device)
                self._name_is_free(device)
            case RequestAdded(request_id):
                self._requests[host].add(request_id)
            case RequestWithdrawn(request_id):
                self._requests[host].discard(request_id)
            case LeaseArmed(_, lease_id, attempt) if lease_id in self._unarmed:
                granted = self._unarmed.pop(lease_id)
                self._requests[host].discard(granted.request_id)
                if attempt and granted.claim is not None:
                    self.attempt_runs(granted.claim.job.id, attempt, host)
            case LeaseRestored(lease):
                self._of_lease[lease.id] = host
                self._lend(lease, host)
            case SlotKept(_, lease_id):
                self._slots[lease_id] = host
            case LeaseEnded(_, lease_id, reason):
                self._polls_until_s[host] = self._clock() + POLLS_S
                self.lease_over(lease_id, reason)
                if lease_id not in self._slots:
                    self._of_lease.pop(lease_id, None)
            case SlotFreed(lease_id):
                self._slots.pop(lease_id, None)
        return message

    def owned_by_other_host(self, host: str, message: HostMessage) -> bool:
        """Whether another host already has a device of this name, which keeps the name."""
        match message:
            case DeviceChanged(DeviceState(name)) | DeviceForgotten(name):
                other, state = self._of_device.get(name, host), self._states.get(name)
            case _:
                return False
        if other == host or state is None or state.life is Life.GONE:
            return False
        mine = message.state if isinstance(message, DeviceChanged) else None
        if mine is not None and mine.life is not Life.GONE and (host, name) not in self._disputed:
            self._disputed.add((host, name))
            advice = f"to have it handed out, at {host}: farm device set {name} --name NEW"
            if same_phone(mine.identity, state.identity):
                advice = f"it is the same phone, and {other} hands it out until it is gone there"
            log.warning("host %s has a phone named %s, and so has host %s: %s", host, name, other, advice)
        return True

    def _name_is_free(self, name: str) -> None:
        """Read rows again if another host has a device of this name."""
        waiting = {(host, each) for host, each in self._disputed if each == name}
        if waiting:
            self._disputed -= waiting
            self._store.mailbox.seen = NOTHING

    def withhold(self, host: str, cause: WithheldFor, reason: str) -> None:
        """Hand out no phone of the host, until it is called with ""."""
        if self._withheld[host].get(cause, "") == reason:
            return
        self._withheld[host][cause] = reason
        if cause is WithheldFor.PROTOCOL:
            log.warning("%s", reason or f"host {host} and the head understand each other again")
        names = self.devices_of(host) & self._states.keys()
        names |= {rival for name in names for rival in self._claims.rivals(name)}
        for name in sorted(names):
            self.decide(self._with_withheld_reason(self._states[name]))

    def _with_withheld_reason(self, state: DeviceState) -> DeviceChanged:
        lost = [host for host, reasons in self._withheld.items() if reasons.get(WithheldFor.LOSS)]
        claimed, seen = self._claims.why_not(state.name, lost), (state.host, state.name)
        if claimed and seen not in self._claimed:
            log.warning("%s of host %s is not handed out: %s", state.name, state.host, claimed)
        (self._claimed.add if claimed else self._claimed.discard)(seen)
        return DeviceChanged(replace(state, withheld=self._why_withheld(state.host) or claimed or state.withheld))

    def _why_withheld(self, host: str) -> str:
        reasons = self._withheld[host]
        return next((reasons[cause] for cause in WithheldFor if reasons.get(cause)), "")

    def attempt_runs(self, job: str, attempt: str, host: str) -> None:
        """Note that a job's attempt runs at this host."""
        self._of_job[job] = attempt, host

    def runs_at(self, job: str) -> str:
        """The host where the job's attempt runs; "": nowhere."""
        return self._of_job.get(job, ("", ""))[1]

    def grant_undone(self, lease_id: str) -> None:
        """Forget a lease that was granted and never armed."""
        for known in (self._unarmed, self._of_lease, self._lent):
            known.pop(lease_id, None)

    def lease_over(self, lease_id: str, reason: str) -> None:
        """A phone's host holds the lease no more; if its job runs at another host, notify that host."""
        if (lent := self._lent.pop(lease_id, None)) is not None:
            self.send(lent[1], LeaseLost(lease_id, reason))

    def end_lent_to(self, host: str, reason: str) -> None:
        """End the leases of other hosts' phones that jobs of this host have: its jobs run no more."""
        for lease_id in [each for each, (_, holder) in self._lent.items() if holder == host]:
            del self._lent[lease_id]
            self.receive(LeaseUnwanted(lease_id, reason))

    def _lend(self, lease: Lease, host: str) -> None:
        request = lease.request
        if request.source is LeaseSource.JOB and request.holder_host not in ("", host):
            self._lent[lease.id] = lease.device, request.holder_host

    def attempt_is_over(self, attempt: Attempt) -> None:
        """The end of the attempt is committed."""
        if self._of_job.get(attempt.job, ("", ""))[0] == attempt.id:
            del self._of_job[attempt.job]

    def requests_of(self, host: str) -> frozenset[str]:
        """Take out the requests of a host without an armed lease: it has begun again, stopped, or was removed."""
        return frozenset(self._requests.pop(host, ()))

    def devices_of(self, host: str) -> frozenset[str]:
        """The devices of a host."""
        return frozenset(name for name, its in self._of_device.items() if its == host)

    def host_of(self, device: str) -> str:
        """The host of a device; "" if no host has reported it."""
        return self._of_device.get(device, "")

    def slots_of(self, host: str) -> frozenset[str]:
        """The leases of a host whose worker slot is kept."""
        return frozenset(lease for lease, its in self._slots.items() if its == host)

    def salvaged(self, job: str) -> None:
        """A host has salvaged the results of the job's attempts."""
        if (waited_for := self._salvaging.get(job)) is not None:
            waited_for.set()

    # --- messages to hosts -----------------------------------------------------------------------------------------

    def letter(self, message: LeaseGranted) -> Letter:
        """The letter that is stored with a grant."""
        lease = message.lease
        host = self._of_device[lease.device]
        self._of_lease[lease.id] = host
        self._lend(lease, host)
        self._unarmed[lease.id] = message
        return Letter(host, wire.encode(message, self._clock()))

    def receive(self, message: ToHost | JobMessage) -> None:
        """Send a message to the host that it concerns; a grant is stored already, maybe with its attempt."""
        if isinstance(message, RunAttempt) or (host := self._receiver_of(message)) is None:
            log.debug("no host is to get %s", message)
        elif isinstance(message, LeaseGranted) and self._clock() < self._polls_until_s.get(host, 0.0):
            asyncio.get_running_loop().call_later(WOKEN_AFTER_S, self._wake_unless_armed, host, message.lease.id)
        elif isinstance(message, LeaseGranted):
            self._wake(host)
        elif isinstance(message, StopAttempt):
            self.send(host, replace(message, attempt=self._of_job[message.job][0]))
        else:
            self.send(host, message)

    def _wake_unless_armed(self, host: str, lease_id: str) -> None:
        if lease_id in self._unarmed:
            self._wake(host)

    def send(self, host: str, message: ToHost) -> None:
        """Send a host a message that is not stored yet."""
        self._unsent[host].append(Letter(host, wire.encode(message, self._clock())))
        if len(self._unsent[host]) == 1:
            self._post(host)

    def _post(self, host: str) -> None:
        """Store the waiting letters to a host in one write."""
        unsent = self._unsent[host]

        async def write() -> int:
            letters = tuple(unsent)
            await self._store.mailbox.send_to_hosts(letters)
            return len(letters)

        def over(count: int) -> None:
            del unsent[:count]
            if unsent:
                self._post(host)

        def sent(count: int) -> None:
            over(count)
            self._wake(host)

        def refused(error: Exception) -> None:
            log_error(log, error, "a letter to %s cannot be stored and is given up", host)
            over(1)

        self._writes.add(f"letters to {host}", write, sent, refused)

    def _receiver_of(self, message: ToHost) -> str | None:
        match message:
            case LeaseGranted(_, lease):
                return self._of_lease.get(lease.id)
            case YieldWanted(device):
                holders = dict(self._lent.values())
                return holders.get(device) or self._of_device.get(device)
            case SlotWanted(lease_id) | LeaseUnwanted(lease_id):
                return self._of_lease.get(lease_id)
            case StopAttempt(job_id):
                return self.runs_at(job_id) or None
            case Salvage() | OrderAnswer() | LeaseLost() | LeaseHeld() | SessionBroken() | DialBack():
                return None  # `send` names the host; hosts send the last three to each other

    async def salvage(self, job: Job) -> None:
        """See `AttemptRunner.salvage`: the host of the latest attempt does it, if it answers in time."""
        if job.attempts == 0:
            return
        *_, latest = await self._store.read(self._store.jobs.attempts, job.id)
        lease = await self._store.read(self._store.leases.get, latest.lease)
        if lease is None:
            return
        salvaged = self._salvaging[job.id] = asyncio.Event()
        self.send(lease.host, Salvage(job))
        async with at_most(SALVAGE_LIMIT_S):
            await salvaged.wait()
        del self._salvaging[job.id]

    async def waits(self, job_ids: Collection[str]) -> Mapping[str, str]:  # noqa: ARG002
        """Empty: each host knows the waits of its own attempts, and asks there first."""
        return {}
