"""PoolRunner: a MetaSchedule runner over a pool of phones that come and go while it runs.

`CandidateQueue` has the candidates of a run: those being built, those ready for a phone, and their answers. The threads
of builder, search and phones meet there only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, PyRunner, RunnerFuture, RunnerResult

from farm.common.errors import Code, FarmError, HostError
from farm.common.os_errors import host_errno
from farm.tuning.candidate import CandidateError, CandidateTries, Measured, TryEnd, after_try, cannot_build_error
from farm.tuning.measurement_slot import MeasurementSlot, SlotSettings
from farm.tuning.phone_speed import JudgeOf
from farm.tuning.phones import PhoneSource, PooledPhone, PoolState
from farm.tuning.session import ArgsInfo, args_info_from

POLL_S = 0.2  # between two polls of the source, and so the grain of a candidate's time limit
LEAVE_S = 10.0
MAX_BROKEN = 2  # times in a row that failures put a phone out; it may have been tried in a bad moment once
COOL_S = 300.0  # a phone that was put out is tried again after so long: it may have been hot
SEND_BACK_S = 5.0  # a source that has nothing else offers the same phone again at once


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


POISON = "poison: it killed the process that ran it, twice, on this farm: not run again"


@dataclass(slots=True, eq=False)
class QueuedCandidate:
    """One candidate."""

    path: str
    device_type: str
    args_info: ArgsInfo
    answer: Future[Measured]  # or a CandidateError
    library: bytes = b""
    artifact: str = ""  # SHA-256 of the library
    tries: CandidateTries = field(default_factory=CandidateTries)


class CandidateQueue:
    """Gives ready candidates to phones, and answers each exactly once."""

    def __init__(
        self,
        source: PhoneSource,
        timeout_s: float,
        report: Callable[[str], None],
        measured: Callable[[Measured], None],
        link: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.report = report
        self.closed = False
        self._source, self._timeout_s, self._measured = source, timeout_s, measured
        self._link = link
        self._changed = threading.Condition()
        self._built: deque[QueuedCandidate | None] = deque()  # None: close
        self._ready: deque[QueuedCandidate] = deque()
        self._unanswered: dict[int, QueuedCandidate] = {}
        self._over: FarmError | None = None
        self._preparer = threading.Thread(target=self._prepare, name="tuning: next candidates", daemon=True)
        self._preparer.start()

    def put(self, work: QueuedCandidate, built: Future[Path]) -> None:
        """Queue a candidate; it is read as soon as it is built."""
        with self._changed:
            self._unanswered[id(work)] = work
            over = self._over
        if over is not None:
            self._answer(work, over)
            return
        built.add_done_callback(lambda done: self._on_built(work, done))

    @property
    def unanswered(self) -> int:
        """Candidates without an answer, those that are being built included."""
        return len(self._unanswered)

    def take(self, slot: MeasurementSlot) -> QueuedCandidate | None:
        """Wait for the next candidate for a phone; None when the phone is to leave."""
        with self._changed:
            while not slot.leaving:
                if self._ready and slot.seen:
                    slot.work = self._ready.popleft()
                    return slot.work
                self._changed.wait()
        return None

    def finish_try(
        self, slot: MeasurementSlot, work: QueuedCandidate, end: TryEnd, why: str, measured: Measured | None = None
    ) -> None:
        """A try has ended: answer the candidate, or queue it again before the others."""
        with self._changed:
            if slot.work is not work:  # answered for the phone, which hung too long
                return
            slot.work = None
        decided = after_try(work.tries, end, why, self._timeout_s)
        if decided.poison:
            try:
                self._source.report_poison(work.artifact, slot.phone.device, decided.error)
            except FarmError as error:
                self.report(f"the poison ledger could not be updated: {error.message}")
        if decided.again is not None and not self.closed:
            work.tries = decided.again
            with self._changed:
                self._ready.appendleft(work)
                self._changed.notify_all()
        elif measured is not None:
            self._publish(measured)
            self._answer(work, measured)
        else:
            self._answer(work, CandidateError(decided.error or "the run was closed"))

    def notify(self) -> None:
        """A phone's state has changed: wake all threads."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, slot: MeasurementSlot, seconds: float) -> None:
        """Wait a while, or until the run is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or slot.abandoned, seconds)

    def wait_until_seen(self, slot: MeasurementSlot, limit_s: float) -> bool:
        """Wait until the source shows the phone again; False when it does not."""
        with self._changed:
            return self._changed.wait_for(lambda: slot.seen or self.closed, limit_s) and slot.seen

    def release(self, slot: MeasurementSlot) -> None:
        """A phone's thread has ended; its unfinished candidates are queued again."""
        with self._changed:
            work, slot.work = slot.work, None
        if work is not None:
            self._requeue([work])

    def close(self) -> None:
        """Answer the remaining candidates; phones take no more."""
        with self._changed:
            self.closed = True
            left, self._ready = list(self._ready), deque()
            self._built.append(None)
            self._changed.notify_all()
        for work in left:
            self._answer(work, CandidateError("the run was closed"))

    def fail_all(self, error: FarmError) -> None:
        """There will be no phone any more: all candidates, later ones too, raise `error`. They are not at fault."""
        with self._changed:
            if self._over is not None:
                return
            self._over, self._ready = error, deque()
            left = list(self._unanswered.values())
        for work in left:
            self._answer(work, error)

    def _on_built(self, work: QueuedCandidate, done: Future[Path]) -> None:
        error = done.exception()
        if error is not None:
            of_host = error if isinstance(error, FarmError) else None  # not the candidate's fault
            self._answer(work, of_host or CandidateError(f"it could not be built: {error}"))
            return
        work.path = str(done.result())
        with self._changed:
            self._built.append(work)
            self._changed.notify_all()

    def _prepare(self) -> None:
        """Read built libraries, so that phones need not wait for a file, and sort out known poison."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._built)
                batch, self._built = list(self._built), deque()
            works = [work for work in batch if work is not None]
            self._requeue(self._readable(works))
            if len(works) < len(batch):
                return

    def _readable(self, works: list[QueuedCandidate]) -> list[QueuedCandidate]:
        readable = []
        for work in works:
            try:
                work.library = self._link(Path(work.path).read_bytes())
            except CandidateError as error:
                self._answer(work, error)
                continue
            except OSError as error:
                number = host_errno(error)
                unread = CandidateError(f"its library cannot be read: {error.strerror}")
                self._answer(work, cannot_build_error(number, Path(work.path).parent) if number else unread)
                continue
            work.artifact = hashlib.sha256(work.library).hexdigest()
            readable.append(work)
        poisoned = self._poisoned({work.artifact for work in readable})
        for work in readable:
            if work.artifact in poisoned:
                self._answer(work, CandidateError(POISON))
        return [work for work in readable if work.artifact not in poisoned]

    def _poisoned(self, artifacts: Iterable[str]) -> frozenset[str]:
        wanted = sorted(artifacts)
        if not wanted:
            return frozenset()
        try:
            return self._source.poisoned(wanted)
        except FarmError as error:
            self.report(f"the poison ledger does not answer: {error.message}")
            return frozenset()

    def _requeue(self, works: Iterable[QueuedCandidate]) -> None:
        refused = []
        with self._changed:
            if self.closed:
                refused = list(works)
            else:
                self._ready.extend(works)
                self._changed.notify_all()
        for work in refused:
            self._answer(work, CandidateError("the run was closed"))

    def _publish(self, measured: Measured) -> None:
        try:
            self._measured(measured)
        except Exception as error:  # noqa: BLE001 - a bug in the callback must not cost the candidate its answer
            self.report(f"the callback for measurements failed: {type(error).__name__}: {error}")

    def _answer(self, work: QueuedCandidate, answer: Measured | CandidateError | FarmError) -> None:
        with self._changed:
            if self._unanswered.pop(id(work), None) is None:
                return
            work.library = b""
        if isinstance(answer, Exception):
            work.answer.set_exception(answer)
        else:
            work.answer.set_result(answer)


_Base: Any = PyRunner._tvm_metadata["cls"]  # noqa: SLF001 - what derived_object would derive from


class PoolRunner(_Base):  # type: ignore[misc]  # derived_object's own classes are no context managers
    """Runs candidates on the phones of a source, each phone one candidate at a time, in reused sessions.

    Every candidate is answered exactly once, in the order in which the phones finish. Close it, or use it as a context
    manager: that ends all sessions.
    """

    __slots__ = ("__dict__", "__weakref__")  # without them a TVM object has no attributes, and no finalizer

    def __init__(
        self,
        source: PhoneSource,
        *,
        evaluator: EvaluatorConfig | None = None,
        timeout_s: float = 10.0,
        measured: Callable[[Measured], None] = lambda _: None,
        report: Callable[[str], None] = lambda _: None,
        judge_of: JudgeOf = lambda _: None,
        link: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """Begin to look for phones.

        Args:
            source: where phones come from.
            evaluator: how often each candidate is run.
            timeout_s: of one candidate on a phone, its upload included.
            measured: called with every measurement before it is answered, in the phone's thread.
            report: called with sentences for people: that the run waits for phones, and why.
            judge_of: its judges check each phone before each candidate, scale what it measures, or have it put out.
            link: makes a library of what a builder made; may raise CandidateError. In a thread of its own.
        """
        self._pool = PhonePool(
            source, SlotSettings(evaluator or EvaluatorConfig(), timeout_s, judge_of, link), measured, report
        )
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
        """Have one candidate (a RunnerInput) measured; the answer may be a CandidateError or a HostError."""
        return self._pool.submit(given)

    def expect(self, path: str, built: Future[Path]) -> None:
        """The artifact `path` is still being built: a candidate of that path waits for `built`."""
        self._pool.promises[path] = built

    def close(self) -> None:
        """End all sessions; open candidates get an answer. May be called twice."""
        self._pool.close()


class PhonePool:
    """The slots of a run and the thread that supervises them."""

    def __init__(
        self,
        source: PhoneSource,
        settings: SlotSettings,
        measured: Callable[[Measured], None],
        report: Callable[[str], None],
    ) -> None:
        self.promises: dict[str, Future[Path]] = {}
        self._source, self._settings, self._report = source, settings, report
        self._queue = CandidateQueue(source, settings.timeout_s, report, measured, settings.link)
        self._slots: dict[str, MeasurementSlot] = {}
        self._state = PoolState((), 0)
        self._reported = ""
        self._out: dict[str, float] = {}  # devices that are not used for a while: since when
        self._broken: dict[str, int] = {}  # how often in a row failures put each out
        self._sent_back: dict[str, float] = {}  # when one of them was last given back
        self._why_out = ""  # of the last one
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="tuning: phones", daemon=True)
        self._supervisor.start()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """MetaSchedule's Runner.run."""
        answers = [self.submit(each) for each in inputs]
        return [RunnerFuture(f_done=each.done, f_result=functools.partial(_result, each)) for each in answers]

    def submit(self, given: Any) -> Future[Measured]:
        """One candidate."""
        answer: Future[Measured] = Future()
        path = str(given.artifact_path)
        try:
            work = QueuedCandidate(path, str(given.device_type), args_info_from(given.args_info), answer)
        except ValueError as error:
            answer.set_exception(CandidateError(str(error)))
        else:
            self._queue.put(work, self._built(path))
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
            self._queue.unanswered,
            self._state.waits or (f"not ready yet after a session was cut: {', '.join(unseen)}" if unseen else ""),
        )

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self._queue.close()
        self._supervisor.join(LEAVE_S)
        for slot in self._slots.values():
            slot.cut("the tuning run ends")
        deadline_s = time.monotonic() + LEAVE_S
        for slot in self._slots.values():
            slot.join(max(0.0, deadline_s - time.monotonic()))
            slot.abandoned = True

    def _supervise(self) -> None:
        while not self._closing.is_set():
            asked_s = time.monotonic()
            with contextlib.suppress(FarmError):  # the source is away for a moment: what we know stands
                self._state = self._source.state()
                self._update_slots(self._state, asked_s)
            for lease, slot in list(self._slots.items()):
                if not slot.cut_if_overdue():
                    self._abandon(slot)
                if slot.abandoned or not slot.alive:
                    del self._slots[lease]
                    if slot.out:
                        self._why_out = f"{slot.phone.device}: {slot.out}"
                        self._broken[slot.phone.device] = slot.broken and self._broken.get(slot.phone.device, 0) + 1
                        self._out[slot.phone.device] = self._sent_back[slot.phone.device] = asked_s
            self._queue.notify()
            self._closing.wait(POLL_S)

    def _update_slots(self, state: PoolState, asked_s: float) -> None:
        shown = {phone.lease: phone for phone in state.phones}
        for lease, slot in self._slots.items():
            slot.update(shown.get(lease), asked_s)
        unfit = {each.device for each in state.phones if self._broken.get(each.device, 0) >= MAX_BROKEN}
        for lease, phone in shown.items():
            if phone.device in unfit or asked_s - self._out.get(phone.device, -math.inf) < COOL_S:
                self._send_back(phone, asked_s)
            elif lease not in self._slots and not phone.yield_wanted:
                self._slots[lease] = slot = MeasurementSlot(phone, self._source, self._queue, self._settings)
                slot.start()
        all_unfit = f"no phone gets ready: {', '.join(sorted(unfit))}" if unfit and not self._slots else ""
        if over := state.over or all_unfit:
            hint = f"farm explain device {min(unfit)}; its bundle or its driver may be broken; " if unfit else ""
            hint += "the measurements so far are kept"
            self._queue.fail_all(HostError(self._with_last_reason(over), Code.NO_PHONES_LEFT, hint=hint))
        waits = "" if self._usable(state) or not self._queue.unanswered else state.waits or "there is no phone"
        waits = self._with_last_reason(waits) if waits else ""
        if waits != self._reported:
            self._report(f"waiting for phones: {waits}" if waits else "phones are back")
            self._reported = waits

    def _usable(self, state: PoolState) -> bool:
        now_s = time.monotonic()
        return any(now_s - self._out.get(phone.device, -math.inf) >= COOL_S for phone in state.phones)

    def _with_last_reason(self, text: str) -> str:
        """Why there is no phone, with why the last one was put out."""
        return f"{text} (the last one was put out: {self._why_out})" if self._why_out else text

    def _send_back(self, phone: PooledPhone, now_s: float) -> None:
        """The source offers a phone again that was put out just now."""
        if now_s - self._sent_back[phone.device] >= SEND_BACK_S:
            self._sent_back[phone.device] = now_s
            with contextlib.suppress(FarmError):
                self._source.give_back(phone.lease)

    def _abandon(self, slot: MeasurementSlot) -> None:
        slot.abandoned = True
        self._report(f"{slot.phone.device}: its session does not end; it is left behind")
        if slot.work is not None:
            self._queue.finish_try(slot, slot.work, TryEnd.TIMEOUT, "")


def _result(answer: Future[Measured]) -> Any:
    try:
        measured = answer.result()
    except CandidateError as error:
        return RunnerResult(None, f"farm: {error}")
    return RunnerResult(measured.scaled, None)
