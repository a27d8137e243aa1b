"""PoolRunner: a MetaSchedule runner over a pool of phones that come and go while it runs."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerFuture, RunnerResult

from farm.core.errors import FarmError, HostError
from farm.tuning.candidate import CandidateError, End, Measured
from farm.tuning.desk import Desk, Work
from farm.tuning.phones import PhoneSource, PooledPhone, PoolState
from farm.tuning.session import Evaluator, args_info_from
from farm.tuning.slot import Judge, Settings, Slot

LOOK_S = 0.2  # between two looks at the source, and so the grain of a candidate's time limit
LEAVE_S = 10.0
COOL_S = 300.0  # a phone that was put out is tried again after so long: it may have been hot
SEND_BACK_S = 5.0  # a source that has nothing else offers the same phone again at once


class NoPhonesError(HostError):
    """There is no phone, and there will be none."""

    code = "no_phones_left"


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A runner's state, for progress.

    Attributes:
        phones: Names of those there are.
        busy: How many have a candidate.
        measuring: How many are timing it now; the others upload, load, or wait for the next one.
        unanswered: Candidates given to the runner that have no answer yet.
        waits: Why there are fewer phones than wanted, one sentence; empty when there are not.
    """

    phones: tuple[str, ...]
    busy: int
    measuring: int
    unanswered: int
    waits: str


_Base: Any = PyRunner._tvm_metadata["cls"]  # noqa: SLF001 - what derived_object would derive from


class PoolRunner(_Base):  # type: ignore[misc]  # derived_object's own classes are no context managers
    """Runs candidates on the phones of a source, each phone one candidate at a time, in reused sessions.

    Every candidate is answered exactly once, in whatever order the phones finish. Close it, or use it as a context
    manager: that ends all sessions.
    """

    __slots__ = ("__dict__", "__weakref__")  # without them a TVM object has no attributes, and no finalizer

    def __init__(
        self,
        source: PhoneSource,
        *,
        evaluator: Evaluator | None = None,
        timeout_s: float = 10.0,
        measured: Callable[[Measured], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
        judge: Judge | None = None,
        link: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Begin to look for phones.

        Args:
            source: where phones come from.
            evaluator: how often each candidate is run.
            timeout_s: of one candidate on a phone, its upload included.
            measured: hears of every measurement before it is answered, in the phone's thread.
            tell: hears sentences for people: that the run waits for phones, and why.
            judge: looks at each phone before each of its candidates; scales what it measures, or has it put out.
            link: makes a library of what a builder made; may raise CandidateError. In a thread of its own.
        """
        self._pool = Pool(source, Settings(evaluator or Evaluator(), timeout_s, judge, link), measured, tell)
        # The C++ side keeps this function, and with it the pool, but not this object.
        self.__init_handle_by_constructor__(_ffi_api.RunnerPyRunner, self._pool.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def status(self) -> PoolStatus:
        """How it goes."""
        return self._pool.status()

    def submit(self, given: Any) -> Future[Measured]:
        """Have one candidate (a RunnerInput) measured; the answer may be a CandidateError or NoPhonesError."""
        return self._pool.submit(given)

    def expect(self, path: str, built: Future[Path]) -> None:
        """The artifact `path` is still being built: a candidate of that path waits for `built`."""
        self._pool.promises[path] = built

    def close(self) -> None:
        """End all sessions; what has no answer gets one. May be called twice."""
        self._pool.close()


class Pool:
    """The slots of a run and the thread that keeps them."""

    def __init__(
        self, source: PhoneSource, settings: Settings, measured: Callable[[Measured], None], tell: Callable[[str], None]
    ) -> None:
        self.promises: dict[str, Future[Path]] = {}
        self._source, self._settings, self._tell = source, settings, tell
        self._desk = Desk(source, settings.timeout_s, tell, measured, settings.link)
        self._slots: dict[str, Slot] = {}
        self._state = PoolState((), 0)
        self._told = ""
        self._out: dict[str, float] = {}  # devices that are not used for a while: since when
        self._sent_back: dict[str, float] = {}  # when one of them was last given back
        self._why_out = ""  # of the last one
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tuning: phones", daemon=True)
        self._keeper.start()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """MetaSchedule's Runner.run."""
        answers = [self.submit(each) for each in inputs]
        return [RunnerFuture(f_done=each.done, f_result=functools.partial(_result, each)) for each in answers]

    def submit(self, given: Any) -> Future[Measured]:
        """One candidate."""
        answer: Future[Measured] = Future()
        path = str(given.artifact_path)
        try:
            work = Work(path, str(given.device_type), args_info_from(given.args_info), answer)
        except ValueError as error:
            answer.set_exception(CandidateError(str(error)))
        else:
            self._desk.put(work, self._built(path))
        return answer

    def _built(self, path: str) -> Future[Path]:
        if path in self.promises:
            return self.promises.pop(path)
        built: Future[Path] = Future()
        built.set_result(Path(path))
        return built

    def status(self) -> PoolStatus:
        """How it goes."""
        slots = self._slots.copy().values()
        seen = [slot for slot in slots if slot.seen]
        unseen = [slot.phone.device for slot in slots if not slot.seen]
        return PoolStatus(
            tuple(slot.phone.device for slot in seen),
            sum(slot.work is not None for slot in seen),
            sum(slot.measuring for slot in seen),
            self._desk.unanswered,
            self._state.waits or (f"not fit after a session was cut: {', '.join(unseen)}" if unseen else ""),
        )

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self._desk.close()
        self._keeper.join(LEAVE_S)
        for slot in self._slots.values():
            slot.cut("the tuning run ends")
        deadline_s = time.monotonic() + LEAVE_S
        for slot in self._slots.values():
            slot.join(max(0.0, deadline_s - time.monotonic()))
            slot.abandoned = True

    def _keep(self) -> None:
        while not self._closing.is_set():
            asked_s = time.monotonic()
            with contextlib.suppress(FarmError):  # the source is away for a moment: what we know stands
                self._state = self._source.state()
                self._see(self._state, asked_s)
            for lease, slot in list(self._slots.items()):
                if not slot.watch():
                    self._abandon(slot)
                if slot.abandoned or not slot.alive:
                    del self._slots[lease]
                    if slot.out:
                        self._why_out = f"{slot.phone.device}: {slot.out}"
                        self._out[slot.phone.device] = self._sent_back[slot.phone.device] = asked_s
            self._desk.changed()
            self._closing.wait(LOOK_S)

    def _see(self, state: PoolState, asked_s: float) -> None:
        shown = {phone.lease: phone for phone in state.phones}
        for lease, slot in self._slots.items():
            slot.look(shown.get(lease), asked_s)
        for lease, phone in shown.items():
            if asked_s - self._out.get(phone.device, -math.inf) < COOL_S:
                self._send_back(phone, asked_s)
            elif lease not in self._slots and not phone.yield_wanted:
                self._slots[lease] = slot = Slot(phone, self._source, self._desk, self._settings)
                slot.start()
        if state.over:
            self._desk.give_up(NoPhonesError(self._because(state.over), hint="the measurements so far are kept"))
        waits = "" if self._usable(state) or not self._desk.unanswered else state.waits or "there is no phone"
        waits = self._because(waits) if waits else ""
        if waits != self._told:
            self._tell(f"waiting for phones: {waits}" if waits else "phones are back")
            self._told = waits

    def _usable(self, state: PoolState) -> bool:
        now_s = time.monotonic()
        return any(now_s - self._out.get(phone.device, -math.inf) >= COOL_S for phone in state.phones)

    def _because(self, text: str) -> str:
        """Why there is no phone, with why the last one was put out."""
        return f"{text} (the last one was put out: {self._why_out})" if self._why_out else text

    def _send_back(self, phone: PooledPhone, now_s: float) -> None:
        """The source offers a phone again that was put out just now."""
        if now_s - self._sent_back[phone.device] >= SEND_BACK_S:
            self._sent_back[phone.device] = now_s
            with contextlib.suppress(FarmError):
                self._source.give_back(phone.lease)

    def _abandon(self, slot: Slot) -> None:
        slot.abandoned = True
        self._tell(f"{slot.phone.device}: its session does not end; it is left behind")
        if slot.work is not None:
            self._desk.ended(slot, slot.work, End.TIMEOUT, "")


def _result(answer: Future[Measured]) -> Any:
    try:
        measured = answer.result()
    except CandidateError as error:
        return RunnerResult(None, f"farm: {error}")
    return RunnerResult(measured.scaled, None)
