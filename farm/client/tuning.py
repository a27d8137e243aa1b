"""`farm.FarmRunner` and `farm.FarmBuilder`: the farm's phones for a MetaSchedule script of one's own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from farm.client.asynchronous import AsyncClient
from farm.client.lease import AsyncLease
from farm.client.model import DeviceInfo
from farm.client.waiting import Reasons
from farm.core.errors import FarmError, HostError, NotAllowedError, PhoneError, UserError
from farm.core.selector import Selector
from farm.jobs.specs import LeaseSpec
from farm.tuning import intrinsics
from farm.tuning.builder import FarmBuilder
from farm.tuning.candidate import Measured
from farm.tuning.phones import PooledPhone, PoolState, SessionOffer
from farm.tuning.runner import PoolRunner
from farm.tuning.session import Evaluator

__all__ = ["FarmBuilder", "FarmPhones", "FarmRunner"]

HOLD_S = 900.0  # a script that is killed outright keeps its phones so long
EXTEND_S = 300.0  # while it lives, each lease is made that much longer that often
LOOK_S = 2.0  # how often each lease is asked whether others wait for its phone
RETRY_S = 5.0  # after a lease could not be had for another reason than that phones are busy
ANSWER_LIMIT_S = 60.0  # cleaning a phone after its session was cut takes 2 s
LEAVE_S = 30.0

logger = logging.getLogger("farm")


def _ignore(_: object) -> None:
    pass


class FarmRunner(PoolRunner):
    """A MetaSchedule runner on the farm's phones: `ms.tune_tir(..., runner=FarmRunner(on="gpu=adreno-740"))`.

    It holds its phones from the first moment until it is closed, by `close`, at the end of a `with` block, or when the
    script ends. Phones that are lost are replaced; while there is none, the run waits and says so.
    """

    def __init__(
        self,
        on: str,
        *,
        devices: int = 1,
        socket: Path | str | None = None,
        evaluator: Evaluator | None = None,
        timeout_s: float = 10.0,
        measured: Callable[[Measured], None] = _ignore,
        on_notice: Callable[[str], None] = logger.warning,
    ) -> None:
        """Ask for phones; does not wait for them.

        Args:
            on: which phones (a selector).
            devices: how many at once; all have the same SoC and GPU, one of which there are so many if there is one.
            socket: the daemon's control socket; None: as `farm` finds it.
            evaluator: how often each candidate is run; the default is MetaSchedule's.
            timeout_s: of one candidate on a phone.
            measured: hears which phone measured what, from other threads.
            on_notice: hears sentences for people, from other threads.

        Raises:
            NoPhoneError: no phone matches.
            DaemonUnreachableError: no daemon answers.
        """
        self._phones = FarmPhones(on, devices, socket, on_notice)
        intrinsics.load()  # else the search imports those of CUDA too, which no phone has: most of ten seconds
        super().__init__(self._phones, evaluator=evaluator, timeout_s=timeout_s, measured=measured, tell=on_notice)
        # Not at garbage collection alone: a script may just end. Giving phones back takes a thread pool, which the
        # interpreter closes before it calls `atexit`; the later one registers here, the earlier one is called.
        self._finalizer = weakref.finalize(self, _end, self._pool, self._phones)
        importlib.import_module("concurrent.futures.thread")
        threading._register_atexit(self._finalizer)  # type: ignore[attr-defined] # noqa: SLF001 - nothing public is in time

    def close(self) -> None:
        """End all sessions and give the phones back. May be called twice."""
        self._finalizer()


def _end(pool: Any, phones: FarmPhones) -> None:
    pool.close()
    phones.close()


@dataclass(slots=True)
class _Seat:
    """One phone of the run, whichever it is at the moment."""

    number: int
    held: AsyncLease | None = None
    yield_wanted: bool = False
    waits: str = "the farm is being asked for one"
    again: asyncio.Event | None = None  # set to have the phone given back and another one asked for

    @property
    def name(self) -> str:
        """The same as long as it is the same phone: one that was cut and cleaned is the same phone."""
        return f"{self.number}:{self.held.device}" if self.held else ""


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
        Selector.parse(on)  # a mistake in it is told now, not by a phone that never comes
        self._on, self._socket, self._on_notice = on, socket, on_notice
        self._seats = [_Seat(number) for number in range(1, devices + 1)]
        self._poison: set[str] = set()
        self._like: asyncio.Future[str] | None = None
        self._loop = asyncio.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._closed = False
        self._reasons = Reasons()
        self._began: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="farm phones", daemon=True)
        self._thread.start()
        try:
            self._began.result()
        except FarmError:
            self._closed = True
            self._thread.join(LEAVE_S)
            raise

    def state(self) -> PoolState:
        """The phones that are held now."""
        seats = list(self._seats)
        phones = tuple(PooledPhone(seat.name, seat.held.device, seat.yield_wanted) for seat in seats if seat.held)
        waits = next((seat.waits for seat in seats if seat.held is None), "")
        return PoolState(phones, len(seats), waits)

    def open_session(self, lease: str) -> SessionOffer:
        """A lease's key is good for one session after the other."""
        held = self._seat(lease).held
        if held is None:
            raise PhoneError(f"{lease} is not held now")
        return SessionOffer(held.tvm_host, held.tvm_port, held.tvm_key)

    def abort_session(self, lease: str, reason: str) -> None:
        """End the lease, which cuts what hangs and cleans the phone, and ask for a phone anew."""
        del reason
        self._call(self._leave(self._seat(lease)))

    def give_back(self, lease: str) -> None:
        """Let others have the phone."""
        self._call(self._leave(self._seat(lease)))

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Those that killed twice in this script: a person's poison is told to nobody."""
        return frozenset(artifacts) & self._poison

    def tell_poison(self, artifact: str, device: str, what: str) -> None:
        """Remembered while this object lives."""
        self._on_notice(f"{device}: candidate {artifact[:12]} is not run again: {what}")
        self._poison.add(artifact)

    def close(self) -> None:
        """Give the phones back. May be called twice."""
        if not self._closed:
            self._closed = True
            assert self._main is not None
            self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(LEAVE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, contextlib.suppress(asyncio.CancelledError):
            runner.run(self._hold())

    async def _hold(self) -> None:
        self._main = asyncio.current_task()
        self._like = self._loop.create_future()
        for seat in self._seats:
            seat.again = asyncio.Event()
        async with AsyncClient(self._socket, on_notice=self._on_notice) as client:
            try:
                if like := await self._alike(client):
                    self._like.set_result(like)
            except FarmError as error:
                self._began.set_exception(error)
                return
            self._began.set_result(None)
            async with asyncio.TaskGroup() as group:
                for seat in self._seats:
                    group.create_task(self._keep(client, seat))

    async def _alike(self, client: AsyncClient) -> str:
        """The selector of like phones of which there are as many as wanted; "" when the first may be any.

        Raises:
            NoPhoneError: no phone matches.
        """

        async def refusal(on: str, devices: int) -> FarmError | None:
            wish = LeaseSpec.from_wire({"on": on, "seconds": HOLD_S, "devices": devices})
            return (await client.check([(wish, "")], must_match=True))[2]

        if (error := await refusal(self._on, 1)) is not None:
            raise error
        ready: dict[str, int] = {}
        for device in await client.devices():
            if device.adopted:
                like = self._like_of(device)
                ready[like] = ready.get(like, 0) + (device.state == "ready")
        wanted = len(self._seats)
        for count in range(wanted, 1, -1):
            able = [like for like in ready if await refusal(like, count) is None]
            if able:
                if count < wanted:
                    self._on_notice(f"only {count} phones that match {self._on} are alike: not {wanted} at once")
                return max(able, key=lambda like: ready[like])
        if wanted > 1:
            self._on_notice(f"no two phones that match {self._on} are alike: one at once, not {wanted}")
        return ""

    def _like_of(self, device: DeviceInfo) -> str:
        """A selector of phones like one."""
        facts = {"soc": device.soc, "gpu": device.gpu}
        return ",".join([self._on, *(f"{label}={value}" for label, value in facts.items() if value)])

    async def _keep(self, client: AsyncClient, seat: _Seat) -> None:
        while True:
            try:
                await self._one_lease(client, seat)
            except FarmError as error:
                seat.waits = error.message
                self._on_notice(error.message)
                if isinstance(error, NotAllowedError):
                    return
                await asyncio.sleep(RETRY_S)

    async def _one_lease(self, client: AsyncClient, seat: _Seat) -> None:
        assert seat.again is not None
        seat.again.clear()

        def waits(why: str) -> None:
            seat.waits = why
            if self._reasons.is_news(str(seat.number), why):
                self._on_notice(f"phone {seat.number} of {len(self._seats)} is waited for: {why}")

        on = await self._selector(seat)
        held = await client.acquire(on=on, seconds=HOLD_S, note="tuning", tuning=True, on_wait=waits)
        try:
            await self._know_first(client, held)
            seat.held = held
            await self._look_after(seat, held)
        finally:
            seat.held, seat.yield_wanted, seat.waits = None, False, "the farm is being asked for one again"
            await held.release()

    async def _look_after(self, seat: _Seat, held: AsyncLease) -> None:
        """Return when the lease is over, or to be given back."""
        assert seat.again is not None
        waited: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(held.ended()), asyncio.ensure_future(seat.again.wait()),
        ]  # fmt: skip
        extend_s = self._loop.time() + EXTEND_S
        try:
            while not any(each.done() for each in waited):
                await asyncio.wait(waited, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if self._loop.time() >= extend_s:
                    extend_s += EXTEND_S
                    await held.extend(EXTEND_S)
                facts = await held.door.call("lease.show", lease=held.lease)
                seat.yield_wanted = bool(facts.get("yield_wanted"))
        except UserError:  # it has ended
            return
        finally:
            for each in waited:
                each.cancel()
            await asyncio.gather(*waited, return_exceptions=True)

    async def _selector(self, seat: _Seat) -> str:
        """The first phone may be any; the others must be as it is."""
        assert self._like is not None
        return self._on if seat.number == 1 and not self._like.done() else await asyncio.shield(self._like)

    async def _know_first(self, client: AsyncClient, held: AsyncLease) -> None:
        assert self._like is not None
        if not self._like.done():
            device = next(each for each in await client.devices() if each.name == held.device)
            self._like.set_result(self._like_of(device))

    async def _leave(self, seat: _Seat) -> None:
        assert seat.again is not None
        if seat.held is not None:
            held = seat.held
            seat.again.set()
            while seat.held is held:  # noqa: ASYNC110 - one look a moment at what another task does next
                await asyncio.sleep(0.01)

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            coroutine.close()
            return
        try:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(ANSWER_LIMIT_S)
        except TimeoutError as error:
            raise HostError("the farm did not take a phone back in time") from error

    def _seat(self, lease: str) -> _Seat:
        for seat in self._seats:
            if seat.name == lease:
                return seat
        raise PhoneError(f"{lease} is not held now")
