"""One phone of a run: a thread that takes candidates one after the other and measures them in a reused session.

TVM's calls release the interpreter's lock while they wait for the phone, so a thread per phone costs nothing but its
stack; an event loop would need an RPC client of our own, tied to TVM's wire format of the day.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_result, wait_exponential
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.common.errors import FarmError
from farm.compiler.tvm_errors import first_line
from farm.measure.series import MAX_S, MIN_S
from farm.tuning.candidate import Measured, TryEnd
from farm.tuning.phone_speed import JudgeOf, SpeedOpinion
from farm.tuning.phones import PhoneSource, PooledPhone
from farm.tuning.session import CandidateSession, bytes_of

if TYPE_CHECKING:
    from farm.tuning.runner import CandidateQueue, QueuedCandidate

LOST_AFTER_S = 20.0  # a phone that was cut is cleaned and checked within 2 s; one that needs longer counts as lost
OPEN_LIMIT_S = 20.0
BACK_OFF = wait_exponential(0.2, max=5.0)  # s, between attempts to open a session
MAX_FAILURES = 8  # in a row, of opening a session or of the reference kernel: some 20 s; then the phone is put out
MEASURED_PART = 1 / 3  # of a candidate's time for its repeats; uploading, loading and a busy host have the rest
CUT_GRACE_S = 10.0  # a call whose session was cut comes back at once; one that does not, never will


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """The settings that all phones of a run share."""

    evaluator: EvaluatorConfig
    timeout_s: float  # of one candidate on a phone, its upload included
    judge_of: JudgeOf = lambda _: None
    link: Callable[[bytes], bytes] = bytes  # makes a library of what a builder made; may raise CandidateError


class MeasurementSlot:
    """One phone's thread. The pool's supervisor updates it and cuts sessions that take too long."""

    def __init__(self, phone: PooledPhone, source: PhoneSource, queue: CandidateQueue, settings: SlotSettings) -> None:
        self.phone = phone  # as last seen
        self.seen = True  # whether the source has shown it since its session was last cut
        self.work: QueuedCandidate | None = None  # the queue's note of the candidate
        self.measuring = False
        self.out = ""  # why the phone is not used, for some minutes or any more
        self.broken = False  # it is out because it never got ready
        self.abandoned = False  # its thread hangs for good; its candidate was answered without it
        self._source, self._queue, self._settings = source, queue, settings
        self._lock = threading.Lock()  # over what the supervisor and the thread both decide by
        self._deadline_s: float | None = None  # monotonic: when the present step has taken too long
        self._cut: threading.Thread | None = None  # the supervisor's order to end the session, under way
        self._cut_s = 0.0
        self._unseen_s = 0.0
        self._absent_s: float | None = None  # since when the source does not show it
        self._session: CandidateSession | None = None
        self._factor = 1.0
        self._failures = 0  # in a row: sessions that did not open, reference kernels that failed
        self._failure = ""  # the last of them
        self._thread = threading.Thread(target=self._run, name=f"tuning on {phone.device}", daemon=True)

    # -- for the supervisor

    def start(self) -> None:
        """Begin to take candidates."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    @property
    def leaving(self) -> bool:
        """Whether it takes nothing more."""
        lost = self._absent_s is not None and time.monotonic() - self._absent_s > LOST_AFTER_S
        return self.abandoned or lost or self._queue.closed or self.phone.yield_wanted or self.out != ""

    def update(self, phone: PooledPhone | None, asked_s: float) -> None:
        """Take the source's latest state of the phone (None: not shown), asked for at `asked_s`, monotonic."""
        if phone is None:
            self.seen = False
            self._absent_s = self._absent_s or asked_s
        elif asked_s > self._unseen_s:
            self.phone, self.seen, self._absent_s = phone, True, None

    def cut_if_overdue(self) -> bool:
        """Cut its session when it takes too long; False when not even that brought its thread back."""
        now_s = time.monotonic()
        with self._lock:
            if self._cut is not None:
                return self._cut.is_alive() or now_s - self._cut_s < CUT_GRACE_S
            if self._deadline_s is not None and now_s >= self._deadline_s:
                self._start_cut("it took too long")
        return True

    def cut(self, reason: str) -> None:
        """End its session if it is in a call, which then raises. Returns at once."""
        with self._lock:
            if self._deadline_s is not None and self._cut is None:
                self._start_cut(reason)

    def _start_cut(self, reason: str) -> None:
        self._cut_s = time.monotonic()
        self._cut = threading.Thread(target=self._abort, args=(reason,), name="tuning: cut", daemon=True)
        self._cut.start()

    # -- its thread

    def _run(self) -> None:
        try:
            while self._ready():
                work = self._queue.take(self)
                if work is not None:
                    self._run_candidate(work)
            self._close()
            if (self.phone.yield_wanted or self.out) and not self._queue.closed:
                self._source.give_back(self.phone.lease)
        except FarmError as error:
            self._queue.report(f"{self.phone.device} could not be given back: {error.message}")
        finally:
            self._close()
            self._queue.release(self)

    def _ready(self) -> bool:
        """Have a session and the phone's scale; False when the phone is no longer ours."""
        not_yet = retry_if_result(lambda ready: ready is None)
        return bool(Retrying(retry=not_yet, wait=BACK_OFF, sleep=partial(self._queue.wait, self))(self._try))

    def _try(self) -> bool | None:
        """As `_ready`; None: it may be ready later."""
        if self.leaving:
            return False
        if self._session is not None and not self._session.worn:
            return True
        if self.seen and self._open_session() and self._check_speed():
            return not self.out
        return None

    def _open_session(self) -> bool:
        """Open a fresh session."""
        self._close()
        self._set_deadline(OPEN_LIMIT_S)
        try:
            self._session = CandidateSession.open(self._source.open_session(self.phone.lease))
        except FarmError as error:
            self._note_failure(error.message)
        except Exception as error:  # noqa: BLE001 - TVM raises its own kinds; whatever it was, the phone is not ready
            self._note_failure(f"no session: {first_line(error)}")
            self._discard_session(self._failure)
        else:
            if self._clear_deadline():
                return True
            self._note_failure("its session was opened too late")
            self._discard_session(self._failure)
        self._clear_deadline()
        self._close()
        return False

    def _check_speed(self, kind: str = "") -> bool:
        """Have the phone's speed checked, for candidates of a kind; False when its session broke in that."""
        assert self._session is not None
        self._set_deadline(OPEN_LIMIT_S)
        try:
            judge = self._settings.judge_of(kind)
            opinion = judge.check(self.phone.device, self._session.raw) if judge else SpeedOpinion()
        except Exception as error:  # noqa: BLE001 - as in _open_session
            self._note_failure(f"its reference kernel failed: {first_line(error)}")
            self._discard_session(self._failure)
            return False
        self._factor, self.out = opinion.factor, opinion.out
        if self.out:
            self._queue.report(f"{self.phone.device} is left out for some minutes: {self.out}")
        if not self._clear_deadline():
            self._note_failure("its reference kernel took too long")
            self._discard_session(self._failure)
            return False
        return True

    def _note_failure(self, why: str) -> None:
        """Count a failure to get ready; MAX_FAILURES in a row put the phone out. Each reason is reported once."""
        if self._queue.closed:  # that is why
            return
        if self._failures == 0 or why != self._failure:
            self._queue.report(f"{self.phone.device}: {why}")
        self._failures, self._failure = self._failures + 1, why
        if self._failures >= MAX_FAILURES and not self.leaving:
            self.broken, self.out = True, f"{self._failures} failures in a row, the last one: {why}"
            self._queue.report(f"{self.phone.device} is not used any more: {self.out}")

    def _run_candidate(self, work: QueuedCandidate) -> None:
        """One try of one candidate."""
        if (work.tries.alone and not self._open_session()) or not self._check_speed(work.device_type) or self.out:
            self._queue.finish_try(self, work, TryEnd.UNTOUCHED, self.out or self._failure)
            return
        assert self._session is not None
        self._failures = 0  # not before: without a candidate some judges check nothing
        self._session.touched = self._session.starting = False
        self._set_deadline(self._settings.timeout_s)
        try:
            measured = self._measure(work, self._session)
        except Exception as error:  # noqa: BLE001 - whatever TVM raises is the candidate's end or the session's
            end, why = self._classify_end(work, self._session, first_line(error))
            self._queue.finish_try(self, work, end, why)
        else:
            in_time = self._clear_deadline()
            self._queue.finish_try(self, work, TryEnd.MEASURED, "", measured)
            if not in_time:
                self._discard_session("it was cut when it was done")
        if work.tries.alone:
            self._close()

    def _measure(self, work: QueuedCandidate, session: CandidateSession) -> Measured:
        how, most_s = self._settings.evaluator, MEASURED_PART * self._settings.timeout_s
        call = session.evaluator(work.library, work.device_type, work.args_info, how, most_s)
        self.measuring = True
        try:
            seconds = call()
        finally:
            self.measuring = False
        if not all(MIN_S <= each <= MAX_S for each in seconds):  # 0 or less would be the best of all
            raise ValueError(f"the phone's clock says that it took {min(seconds):g} s")
        return Measured(work.path, work.artifact, self.phone.device, time.time(), seconds, self._factor)

    def _classify_end(self, work: QueuedCandidate, session: CandidateSession, why: str) -> tuple[TryEnd, str]:
        alive = False
        if self._cut is None:
            try:
                session.ping()
                alive = True
            except Exception:  # noqa: BLE001, S110 - dead, however it says so
                pass
        in_time = self._clear_deadline()
        if session.starting:
            why = f"{bytes_of(work.args_info) / 1e6:.3g} MB wanted; {why}"
        if alive and in_time:
            if session.starting:
                self._close()  # which frees what was made of them
                return TryEnd.STARVED, why
            return TryEnd.REFUSED, why
        touched, closed = session.touched, self._queue.closed
        self._discard_session(f"a candidate ended the session: {why}")
        if not in_time and not closed:
            return TryEnd.TIMEOUT, why
        if not touched and not session.starting:
            return TryEnd.UNTOUCHED, why
        if work.tries.alone and not self._queue.wait_until_seen(self, LOST_AFTER_S):
            return TryEnd.LOST, why
        return (TryEnd.DIED if touched else TryEnd.STARVED), why

    def _discard_session(self, reason: str) -> None:
        """The session is no good: have it cut and the phone cleaned, and know nothing of the phone until then."""
        self._close()
        with self._lock:
            cut, self._deadline_s = self._cut, None
        if cut is None:
            self._abort(reason)
        else:
            cut.join()
        with self._lock:
            self._cut = None
            self._unseen_s = time.monotonic()
            self.seen = False

    def _abort(self, reason: str) -> None:
        if self.abandoned:  # the phone may be another slot's by now
            return
        try:
            self._source.abort_session(self.phone.lease, reason)
        except FarmError as error:
            self._queue.report(f"{self.phone.device}: its session could not be cut: {error.message}")

    def _set_deadline(self, limit_s: float) -> None:
        with self._lock:
            self._deadline_s = time.monotonic() + limit_s

    def _clear_deadline(self) -> bool:
        """Nothing is to be hurried any more; False when the supervisor had it cut before."""
        with self._lock:
            self._deadline_s = None
            return self._cut is None

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
