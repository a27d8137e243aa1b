"""The farm's phones for a MetaSchedule script of one's own: personal leases on identical phones. A PhoneSource."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from farm.bundle.versions import PAIR_HINT, TvmVersions, checked, installed_versions
from farm.client.asynchronous import AsyncClient
from farm.client.lease import AsyncLease
from farm.client.streams import Reasons
from farm.common.errors import FarmError, HostError, HostUnreachableError, NotAllowedError, PhoneError, UserError
from farm.common.files import short_hash
from farm.common.selector import Selector
from farm.common.tasks import end_tasks
from farm.devices.identity.naming_rules import differences
from farm.kinds.lease import LeaseSpec
from farm.tuning.phones import PooledPhone, PoolState, SessionOffer

HOLD_S = 900.0  # a script that is killed outright keeps its phones so long
EXTEND_S = 300.0  # while it lives, each lease is made that much longer that often
POLL_S = 2.0  # how often each lease is asked whether others wait for its phone
RETRY_S = 5.0  # after a lease could not be had for another reason than that phones are busy
ANSWER_LIMIT_S = 60.0  # cleaning a phone after its session was cut takes 2 s
SAME_S = 15.0  # a phone whose session was cut is waited for; less than the runner waits before it counts as lost
LEAVE_S = 30.0
MAX_WHAT_CHARS = 1000
KILLS = 2  # a candidate is called poison when it killed twice, the second time alone
SHOWN = 3  # different phones that a message names

logger = logging.getLogger("farm")

T = TypeVar("T")
Row = Mapping[str, Any]  # of `device.show`


def why_unlike(rows: Sequence[Row], mark: str) -> str:
    """The differences that keep phones from being pooled with those of label `alike` `mark`; "": there are none."""
    known = [row for row in rows if row["alike"] is not None]
    one = next(row for row in known if row["labels"]["alike"] == mark)
    others = [row for row in known if row["labels"]["alike"] != mark]
    named = [
        f"{row['name']} differs from {one['name']} in {', '.join(differences(one['alike'], row['alike']))}"
        for row in others[:SHOWN]
    ]
    more = [f"so do {len(others) - SHOWN} more"] if len(others) > SHOWN else []
    return "; ".join([*named, *more]).replace("clock_policy", "clock policy")


async def _row(client: AsyncClient, name: str) -> Row | None:
    """None: its host is away, and so is the phone."""
    try:
        return await client.connection.call("device.show", device=name)
    except HostUnreachableError:
        return None


def too_few(on: str, count: int, wanted: int, why: str) -> str:
    """The message when fewer identical phones match than were asked for."""
    message = (
        f"no two phones that match {on} are identical: one at once, not {wanted}"
        if count == 1
        else f"only {count} phones that match {on} are identical: not {wanted} at once"
    )
    return f"{message}; {why}" if why else message


@dataclass(slots=True)
class _PhoneSlot:
    """One phone of the run, whichever it is at the moment."""

    number: int
    held: AsyncLease | None = None
    yield_wanted: bool = False
    waits: str = "the farm is being asked for one"
    again: asyncio.Event | None = None  # set to have the phone given back and another one asked for
    same: str = ""  # the phone to ask for then, if it is fit soon: whether a candidate killed it shows there only
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set while it holds none

    @property
    def name(self) -> str:
        """The same for the same phone: one that was cut and cleaned may come back to another slot."""
        return self.held.device if self.held else ""


class FarmPhones:
    """Phones under leases of this process's user. A PhoneSource."""

    def __init__(
        self, on: str, devices: int, socket: Path | str | None = None, on_notice: Callable[[str], None] = logger.warning
    ) -> None:
        """Ask for them on an event loop in a thread of its own.

        Raises:
            UserError: the selector is wrong, or no phone matches it.
            DaemonUnreachableError: no daemon answers.
        """
        if devices < 1:
            raise UserError(f"{devices} phones cannot measure anything", hint="give devices=1 or more")
        Selector.parse(on)  # an invalid one is refused now
        self._on, self._socket, self._on_notice = on, socket, on_notice
        self._slots = [_PhoneSlot(number) for number in range(1, devices + 1)]
        self._poison: set[str] = set()
        self._fitting: set[str] = set()  # hashes of bundles that this process's TVM may talk to
        self._targets: Mapping[str, object] = {}  # of the first phone, and so of all
        self._client: AsyncClient | None = None
        self._pooled: asyncio.Future[str] | None = None  # the selector of phones identical to the first
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._closed = False
        self._reasons = Reasons()
        self._began: Future[None] = Future()
        self._first = threading.Event()  # the first phone is known, or there is none any more
        self._thread = threading.Thread(target=self._serve, name="farm phones", daemon=True)
        self._thread.start()
        try:
            self._began.result()
        except BaseException:
            self.close()
            raise

    def state(self) -> PoolState:
        """The phones that are held now."""
        slots = list(self._slots)
        phones = tuple(PooledPhone(slot.name, slot.held.device, slot.yield_wanted) for slot in slots if slot.held)
        waits = next((slot.waits for slot in slots if slot.held is None), "")
        return PoolState(phones, len(slots), waits)

    def open_session(self, lease: str) -> SessionOffer:
        """A lease's key is good for one session after the other."""
        held = self._slot(lease).held
        if held is None:
            raise PhoneError(f"{lease} is not held now")
        return SessionOffer(held.tvm_host, held.tvm_port, held.tvm_key)

    def abort_session(self, lease: str, reason: str) -> None:
        """End the lease, which cuts hanging sessions and cleans the phone, and ask for the phone again."""
        del reason
        self._call(self._leave(self._slot(lease), same=True))

    def give_back(self, lease: str) -> None:
        """Let others have the phone."""
        self._call(self._leave(self._slot(lease)))

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Those that killed twice, in this script or anywhere on the farm."""
        known = self._poison.intersection(artifacts)
        try:
            answer = self._ask("poison.check", artifacts=list(artifacts))
        except FarmError as error:
            if not self._closed:
                self._on_notice(f"the farm does not answer which candidates are poison: {error.message}")
            return frozenset(known)
        return frozenset(known.union(answer["poisoned"]))

    def report_poison(self, artifact: str, device: str, what: str) -> None:
        """Remembered while this object lives, and reported to the farm: no job runs it any more.

        Raises:
            FarmError: the farm did not take it: the phone is not held any more, or the daemon is away.
        """
        self._on_notice(f"{device}: candidate {short_hash(artifact)} is not run again: {what}")
        self._poison.add(artifact)
        self._ask("poison.report", artifact=artifact, device=device, what=what[:MAX_WHAT_CHARS], kills=KILLS)

    def target(self, kind: str) -> object | None:
        """The target of code for a kind of device ("cpu", "opencl") on these phones; None: they have no such one."""
        return self._targets.get(kind)

    def awaited_target(self, kind: str) -> object | None:
        """The same, as soon as there has been a phone; None also when they were given back before that."""
        self._first.wait()
        return self._targets.get(kind)

    def close(self) -> None:
        """Give the phones back. May be called twice."""
        self._first.set()
        if not self._closed:
            self._closed = True
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(lambda: self._main and self._main.cancel())
            self._thread.join(LEAVE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._hold())
        except BaseException as error:
            if not self._began.done():
                self._began.set_exception(error)  # __init__ waits for it
            elif not isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._first.set()

    async def _hold(self) -> None:
        self._main = asyncio.current_task()
        self._pooled = self._loop.create_future()
        for slot in self._slots:
            slot.again = asyncio.Event()
        async with AsyncClient(self._socket, on_notice=self._on_notice) as client:
            self._client = client
            if like := await self._alike(client):
                self._pooled.set_result(like)
            self._began.set_result(None)
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(self._keep(client, slot))

    async def _alike(self, client: AsyncClient) -> str:
        """The selector of identical phones of which there are as many as wanted; "" when the first may be any.

        Raises:
            NoPhoneError: no phone matches.
            UserError: one that matches has a TVM or FFI that is known not to work with this process's.
        """

        async def refusal(on: str, devices: int) -> FarmError | None:
            spec = LeaseSpec.from_wire({"on": on, "seconds": HOLD_S, "devices": devices})
            return (await client.check([(spec, "")], must_match=True))[2]

        if (error := await refusal(self._on, 1)) is not None:
            raise error
        adopted = [each.name for each in await client.devices(self._on) if each.adopted]
        rows = [row for name in adopted if (row := await _row(client, name)) is not None]
        for row in rows:
            await self._check_versions(client, row)
        if (wanted := len(self._slots)) == 1:
            return ""
        marks = [str(row["labels"].get("alike", "")) for row in rows]
        ready = Counter(mark for row, mark in zip(rows, marks, strict=True) if row["state"] == "ready")
        kinds = sorted({*marks} - {""}, key=lambda mark: ready[mark], reverse=True)
        for count in range(wanted, 0, -1):
            able = [mark for mark in kinds if await refusal(self._like(mark), count) is None]
            if able:
                if count < wanted and "" not in marks:  # one that is not known yet may be another one of them
                    self._on_notice(too_few(self._on, count, wanted, why_unlike(rows, able[0])))
                return self._like(able[0]) if count > 1 else ""
        return ""

    def _like(self, mark: str) -> str:
        """A selector of identical phones."""
        return f"{self._on},alike={mark}"

    async def _keep(self, client: AsyncClient, slot: _PhoneSlot) -> None:
        while True:
            try:
                await self._one_lease(client, slot)
            except FarmError as error:
                slot.waits = error.message
                if self._reasons.is_news(f"{slot.number} failed", error.message):
                    self._on_notice(error.message)
                if isinstance(error, NotAllowedError):
                    return
                await asyncio.sleep(RETRY_S)

    async def _one_lease(self, client: AsyncClient, slot: _PhoneSlot) -> None:
        assert slot.again is not None
        slot.again.clear()

        def waits(why: str) -> None:
            slot.waits = why
            if self._reasons.is_news(str(slot.number), why):
                self._on_notice(f"phone {slot.number} of {len(self._slots)} is waited for: {why}")

        async def lease(on: str) -> AsyncLease:
            return await client.acquire(on=on, seconds=HOLD_S, note="tuning", tuning=True, on_wait=waits)

        held, on = None, await self._selector(slot)
        if slot.same:
            with contextlib.suppress(FarmError, TimeoutError):
                async with asyncio.timeout(SAME_S):
                    held = await lease(f"{on},name={slot.same}")
            slot.same = ""
        held = held or await lease(on)
        try:
            await self._know_first(client, held)
            slot.held = held
            slot.left.clear()
            await self._follow(slot, held)
        finally:
            slot.held, slot.yield_wanted, slot.waits = None, False, "the farm is being asked for one again"
            slot.left.set()
            await held.release()

    async def _follow(self, slot: _PhoneSlot, held: AsyncLease) -> None:
        """Return when the lease is over, or to be given back."""
        assert slot.again is not None
        waited: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(held.ended()), asyncio.ensure_future(slot.again.wait()),
        ]  # fmt: skip
        extend_s = self._loop.time() + EXTEND_S
        try:
            while not any(each.done() for each in waited):
                await asyncio.wait(waited, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if self._loop.time() >= extend_s:
                    extend_s += EXTEND_S
                    await held.extend(EXTEND_S)
                facts = await held.connection.call("lease.show", lease=held.lease)
                slot.yield_wanted = bool(facts.get("yield_wanted"))
        except UserError:  # it has ended
            return
        finally:
            await end_tasks(*waited)

    async def _selector(self, slot: _PhoneSlot) -> str:
        """The first phone may be any; the others must be as it is."""
        assert self._pooled is not None
        return self._on if slot.number == 1 and not self._pooled.done() else await asyncio.shield(self._pooled)

    async def _know_first(self, client: AsyncClient, held: AsyncLease) -> None:
        assert self._pooled is not None
        row = await client.connection.call("device.show", device=held.device)
        await self._check_versions(client, row)  # it may have another bundle than before
        if not self._targets:
            if "alike" not in row["labels"]:
                raise PhoneError(f"{held.device} is not identified")
            self._targets = row["targets"]
            self._first.set()
            if not self._pooled.done():
                self._pooled.set_result(self._like(row["labels"]["alike"]))

    async def _check_versions(self, client: AsyncClient, row: Row) -> None:
        """Whether TVM and FFI of this process fit those on a phone; a doubt about a bundle is reported once.

        Raises:
            UserError: they are known not to.
        """
        if not (hash_ := row["bundle"]) or hash_ in self._fitting:
            return
        bundle = await client.connection.call("bundle.show", bundle=hash_)
        versions = TvmVersions(bundle["tvm_version"], bundle["ffi_version"])
        what = f"TVM here with bundle {bundle['name'] or short_hash(hash_)} on {row['name']}"
        if warning := checked(installed_versions(), versions, what, PAIR_HINT):
            self._on_notice(warning)
        self._fitting.add(hash_)

    async def _leave(self, slot: _PhoneSlot, *, same: bool = False) -> None:
        assert slot.again is not None
        if slot.held is not None:
            slot.same = slot.held.device if same else ""
            slot.again.set()
            await slot.left.wait()

    def _ask(self, kind: str, **fields: Any) -> Row:
        if self._client is None or (answer := self._call(self._client.connection.call(kind, **fields))) is None:
            raise HostError("the phones were given back: the farm is not asked any more")
        return answer

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """The coroutine's result; None when the phones are given back before its end."""
        if self._closed:
            coroutine.close()
            return None
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop has ended just now
            coroutine.close()
            return None
        try:
            return answer.result(ANSWER_LIMIT_S)
        except CancelledError:
            return None
        except TimeoutError as error:
            raise HostError(f"the farm did not answer within {ANSWER_LIMIT_S:g} s") from error

    def _slot(self, lease: str) -> _PhoneSlot:
        for slot in self._slots:
            if slot.name == lease:
                return slot
        raise PhoneError(f"{lease} is not held now")
