"""PoolRunner: a MetaSchedule runner over a pool of phones that come and go while it runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tvm.s_tir.meta_schedule.runner import PyRunner, RunnerFuture, RunnerResult

from farm.core.errors import FarmError
from farm.tuning.candidate import CandidateError, End, Measured
from farm.tuning.desk import Desk, Work
from farm.tuning.phones import PhoneSource, PoolState
from farm.tuning.session import Evaluator, args_info_from
from farm.tuning.slot import Calibrate, Settings, Slot

LOOK_S = 0.2  # between two looks at the source, and so the grain of a candidate's time limit
LEAVE_S = 10.0


def _ignore(_: Any) -> None:
    pass


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

    __slots__ = ("__dict__",)  # without it a TVM object has no attributes of its own

    def __init__(
        self,
        source: PhoneSource,
        *,
        evaluator: Evaluator | None = None,
        timeout_s: float = 10.0,
        measured: Callable[[Measured], None] = _ignore,
        tell: Callable[[str], None] = _ignore,
        calibrate: Calibrate | None = None,
    ) -> None:
        """Begin to look for phones.

        Args:
            source: where phones come from.
            evaluator: how often each candidate is run.
            timeout_s: of one candidate on a phone, its upload included.
            measured: hears of every measurement before it is answered, in the phone's thread.
            tell: hears sentences for people: that the run waits for phones, and why.
            calibrate: answers a phone's scale, by which its seconds are multiplied, when its first session is open.
        """
        self._pool = Pool(source, Settings(evaluator or Evaluator(), timeout_s, calibrate), measured, tell)
        # The C++ side keeps this function, and with it the pool, but not this object.
        self.__init_handle_by_constructor__(_constructor(), self._pool.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def status(self) -> PoolStatus:
        """How it goes."""
        return self._pool.status()

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
        self._desk = Desk(source, settings.timeout_s, tell, measured)
        self._slots: dict[str, Slot] = {}
        self._state = PoolState((), 0)
        self._told = ""
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tuning: phones", daemon=True)
        self._keeper.start()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """MetaSchedule's Runner.run."""
        return [self._submit(each) for each in inputs]

    def _submit(self, given: Any) -> Any:
        answer: Future[Measured] = Future()
        path = str(given.artifact_path)
        try:
            work = Work(path, str(given.device_type), args_info_from(given.args_info), answer)
        except ValueError as error:
            answer.set_exception(CandidateError(str(error)))
        else:
            self._desk.put(work, self._built(path))
        return RunnerFuture(f_done=answer.done, f_result=lambda: _result(answer))

    def _built(self, path: str) -> Future[Path]:
        if path in self.promises:
            return self.promises.pop(path)
        built: Future[Path] = Future()
        built.set_result(Path(path))
        return built

    def status(self) -> PoolStatus:
        """How it goes."""
        slots = [slot for slot in self._slots.copy().values() if slot.seen]
        return PoolStatus(
            tuple(slot.phone.device for slot in slots),
            sum(slot.work is not None for slot in slots),
            sum(slot.measuring for slot in slots),
            self._desk.unanswered,
            self._state.waits,
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
            self._desk.changed()
            self._closing.wait(LOOK_S)

    def _see(self, state: PoolState, asked_s: float) -> None:
        shown = {phone.lease: phone for phone in state.phones}
        for lease, slot in self._slots.items():
            slot.look(shown.get(lease), asked_s)
        for lease, phone in shown.items():
            if lease not in self._slots and not phone.yield_wanted:
                self._slots[lease] = slot = Slot(phone, self._source, self._desk, self._settings)
                slot.start()
        waits = "" if state.phones or not self._desk.unanswered else state.waits or "there is no phone"
        if waits != self._told:
            self._tell(f"waiting for phones: {waits}" if waits else "phones are back")
            self._told = waits

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
    return RunnerResult([seconds * measured.factor for seconds in measured.seconds], None)


def _constructor() -> Any:
    from tvm.s_tir.meta_schedule import _ffi_api

    return _ffi_api.RunnerPyRunner
