"""The desk of a run: candidates that wait, candidates that are ready, and their answers. Threads meet here only."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from farm.core.errors import FarmError
from farm.tuning.candidate import CandidateError, End, Measured, Tries, judge
from farm.tuning.host_faults import cannot_build, host_errno
from farm.tuning.phones import PhoneSource
from farm.tuning.session import ArgsInfo
from farm.tuning.slot import Slot

POISON = "poison: it killed the process that ran it, twice, on this farm: not run again"


@dataclass(slots=True, eq=False)
class Work:
    """One candidate."""

    path: str
    device_type: str
    args_info: ArgsInfo
    answer: Future[Measured]  # or a CandidateError
    library: bytes = b""
    artifact: str = ""  # SHA-256 of the library
    tries: Tries = field(default_factory=Tries)


class Desk:
    """Hands candidates that are ready to phones, and answers each exactly once."""

    def __init__(
        self,
        source: PhoneSource,
        timeout_s: float,
        tell: Callable[[str], None],
        measured: Callable[[Measured], None],
        link: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.tell = tell
        self.closed = False
        self._source, self._timeout_s, self._measured = source, timeout_s, measured
        self._link = link
        self._changed = threading.Condition()
        self._built: deque[Work | None] = deque()  # None: close
        self._ready: deque[Work] = deque()
        self._unanswered: dict[int, Work] = {}
        self._over: FarmError | None = None
        self._preparer = threading.Thread(target=self._prepare, name="tuning: next candidates", daemon=True)
        self._preparer.start()

    def put(self, work: Work, built: Future[Path]) -> None:
        """Queue a candidate; it is read as soon as it is built."""
        with self._changed:
            self._unanswered[id(work)] = work
            over = self._over
        if over is not None:
            self._answer(work, over)
            return
        built.add_done_callback(lambda done: self._when_built(work, done))

    @property
    def unanswered(self) -> int:
        """Candidates without an answer, those that are being built included."""
        return len(self._unanswered)

    def take(self, slot: Slot) -> Work | None:
        """Wait for the next candidate for a phone; None when the phone is to leave."""
        with self._changed:
            while not slot.leaving:
                if self._ready and slot.seen:
                    slot.work = self._ready.popleft()
                    return slot.work
                self._changed.wait()
        return None

    def ended(self, slot: Slot, work: Work, end: End, said: str, measured: Measured | None = None) -> None:
        """A try has ended: answer the candidate, or queue it again before the others."""
        with self._changed:
            if slot.work is not work:  # answered for the phone, which hung too long
                return
            slot.work = None
        decided = judge(work.tries, end, said, self._timeout_s)
        if decided.poison:
            try:
                self._source.tell_poison(work.artifact, slot.phone.device, decided.error)
            except FarmError as error:
                self.tell(f"the poison ledger was not told: {error.message}")
        if decided.again is not None and not self.closed:
            work.tries = decided.again
            with self._changed:
                self._ready.appendleft(work)
                self._changed.notify_all()
        elif measured is not None:
            self._hand_on(measured)
            self._answer(work, measured)
        else:
            self._answer(work, CandidateError(decided.error or "the run was closed"))

    def changed(self) -> None:
        """Something about a phone is different: let all threads look."""
        with self._changed:
            self._changed.notify_all()

    def pause(self, slot: Slot, seconds: float) -> None:
        """Wait a while, or until the run is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or slot.abandoned, seconds)

    def fit_again(self, slot: Slot, limit_s: float) -> bool:
        """Wait until the source shows the phone again; False when it does not."""
        with self._changed:
            return self._changed.wait_for(lambda: slot.seen or self.closed, limit_s) and slot.seen

    def left(self, slot: Slot) -> None:
        """A phone's thread has ended; what it still had is queued again."""
        with self._changed:
            work, slot.work = slot.work, None
        if work is not None:
            self._again([work])

    def close(self) -> None:
        """Answer what is left; phones take nothing more."""
        with self._changed:
            self.closed = True
            left, self._ready = list(self._ready), deque()
            self._built.append(None)
            self._changed.notify_all()
        for work in left:
            self._answer(work, CandidateError("the run was closed"))

    def give_up(self, error: FarmError) -> None:
        """There will be no phone any more: all candidates, those to come too, raise `error`. They are not to blame."""
        with self._changed:
            if self._over is not None:
                return
            self._over, self._ready = error, deque()
            left = list(self._unanswered.values())
        for work in left:
            self._answer(work, error)

    def _when_built(self, work: Work, done: Future[Path]) -> None:
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
        """Read what is built, so that phones need not wait for a file, and sort out what is known as poison."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._built)
                batch, self._built = list(self._built), deque()
            works = [work for work in batch if work is not None]
            self._again(self._fit(works))
            if len(works) < len(batch):
                return

    def _fit(self, works: list[Work]) -> list[Work]:
        fit = []
        for work in works:
            try:
                work.library = self._link(Path(work.path).read_bytes())
            except CandidateError as error:
                self._answer(work, error)
                continue
            except OSError as error:
                number = host_errno(error)
                unread = CandidateError(f"its library cannot be read: {error.strerror}")
                self._answer(work, cannot_build(number, Path(work.path).parent) if number else unread)
                continue
            work.artifact = hashlib.sha256(work.library).hexdigest()
            fit.append(work)
        poisoned = self._poisoned({work.artifact for work in fit})
        for work in fit:
            if work.artifact in poisoned:
                self._answer(work, CandidateError(POISON))
        return [work for work in fit if work.artifact not in poisoned]

    def _poisoned(self, artifacts: Iterable[str]) -> frozenset[str]:
        wanted = sorted(artifacts)
        if not wanted:
            return frozenset()
        try:
            return self._source.poisoned(wanted)
        except FarmError as error:
            self.tell(f"the poison ledger does not answer: {error.message}")
            return frozenset()

    def _again(self, works: Iterable[Work]) -> None:
        refused = []
        with self._changed:
            if self.closed:
                refused = list(works)
            else:
                self._ready.extend(works)
                self._changed.notify_all()
        for work in refused:
            self._answer(work, CandidateError("the run was closed"))

    def _hand_on(self, measured: Measured) -> None:
        try:
            self._measured(measured)
        except Exception as error:  # noqa: BLE001 - a listener's bug must not cost the candidate its answer
            self.tell(f"what listens to measurements failed: {type(error).__name__}: {error}")

    def _answer(self, work: Work, answer: Measured | CandidateError | FarmError) -> None:
        with self._changed:
            if self._unanswered.pop(id(work), None) is None:
                return
            work.library = b""
        if isinstance(answer, Exception):
            work.answer.set_exception(answer)
        else:
            work.answer.set_result(answer)
