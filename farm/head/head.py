"""The head as its hosts and the control verbs see it, in their own process or apart.

A host sends its messages with `report` and gets the head's through `connect`. The verbs give orders and ask; what they
await may have to be asked of another process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from farm.common.errors import FarmError
from farm.head.dispatcher import AttemptRunner
from farm.head.messages import (
    AttemptEnded,
    DialBack,
    HeadMessage,
    HostMessage,
    LeaseGranted,
    LeaseUnwanted,
    SessionBroken,
    ToHead,
)
from farm.head.model import Explanation, JobExplanation, WaitingPage
from farm.head.planning import Submission
from farm.model.sessions import FleetSummary
from farm.model.specs import JobSpec
from farm.store.leases import ReservationRecord
from farm.store.mailbox import Letter


class Head(ABC):
    """It decides which request gets which phone, and how each job continues."""

    @abstractmethod
    async def start(self, runner: AttemptRunner) -> None:
        """Take up the jobs; call once, when the leases from before the start are restored. `runner`: of this host."""

    # --- the host's side ------------------------------------------------------------------------------------------

    @abstractmethod
    def connect(self, receive: Callable[[HeadMessage], None]) -> None:
        """Send the head's messages about leases there; comes once, before any `report`."""

    @abstractmethod
    def report(self, message: HostMessage | AttemptEnded) -> None:
        """Something happened at the host."""

    def letter(self, message: ToHead) -> Letter | None:  # noqa: ARG002
        """What is stored with the change that `message` reports, for a head apart; None: `report` is all it needs."""
        return None

    def arm(self, message: LeaseGranted, armed: Callable[[], None]) -> None:  # noqa: ARG002
        """The host can hold the device: `armed` is called once it may, and never for a lease that has ended by then."""
        armed()

    @abstractmethod
    def send_to_host(self, host: str, message: LeaseUnwanted | SessionBroken | DialBack) -> None:
        """Send another host a message about a lease there, of a job or client of this host, or a wish to be dialled."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """The host stops: its requests stay unanswered, and leases that are not armed are undone."""

    # --- orders ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def submit(self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False) -> Submission:
        """See `Dispatcher.submit`."""

    @abstractmethod
    async def check(
        self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False, besides: int = 0
    ) -> int:
        """See `Dispatcher.check`."""

    @abstractmethod
    async def cancel(self, job_ids: Sequence[str], error: FarmError) -> Sequence[str]:
        """End jobs with this error; returns the ids of those that had not ended."""

    @abstractmethod
    async def hold(self, job_ids: Sequence[str]) -> Sequence[str]:
        """Keep jobs that do not run from running; returns the ids of those.

        Raises:
            JobRunsError: the only one runs.
        """

    @abstractmethod
    async def resume(self, job_ids: Sequence[str]) -> Sequence[str]:
        """Let held jobs continue; returns the ids of those that had not ended."""

    @abstractmethod
    async def settle(self, job_ids: Sequence[str], limit_s: float) -> bool:
        """Wait until nothing of these jobs is being written or stopped, `limit_s` at most; whether that is so."""

    @abstractmethod
    async def reserve(
        self, selector: str, user: str, starts_at: datetime, ends_at: datetime, note: str = ""
    ) -> ReservationRecord:
        """See `ReservationRegistry.add`."""

    @abstractmethod
    async def remove_reservation(self, reservation_id: str) -> ReservationRecord:
        """See `ReservationRegistry.remove`."""

    @abstractmethod
    async def drain(self, reason: str) -> None:
        """Hand out no phone of this host from now on, until it is called with ""; leases continue, requests wait.

        Raises:
            StoreWriteError: the order to a head apart cannot be written now.
        """

    # --- questions ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def is_live(self, job_id: str) -> bool:
        """Whether a job has not ended."""

    @abstractmethod
    async def waits(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """Why each of these jobs does not run, or runs with too few phones, one sentence; empty when neither."""

    @abstractmethod
    async def why(self, request_ids: Sequence[str]) -> Mapping[str, str]:
        """See `RequestQueue.why`."""

    @abstractmethod
    async def explain(self, subject: str, user: str = "") -> Explanation:
        """See `RequestQueue.explain`."""

    @abstractmethod
    async def explain_job(self, job_id: str) -> JobExplanation:
        """Why a job does not run."""

    @abstractmethod
    async def waiting(self, limit: int) -> WaitingPage:
        """The foremost `limit` requests without a device, in the order they would be served."""

    @abstractmethod
    async def reservations(self) -> Sequence[ReservationRecord]:
        """Those that are not over, by start."""

    # --- questions that are answered at once, by what is known here -----------------------------------------------

    @property
    @abstractmethod
    def waiting_here(self) -> int:
        """How many requests wait without a device; with a head apart, those of this host."""

    @property
    @abstractmethod
    def drained(self) -> str:
        """Why an operator wants that no phone is handed out; "": phones are handed out."""

    @abstractmethod
    def serves(self, key: str) -> bool:
        """Whether a device answers to this normalised key."""

    @abstractmethod
    def summary(self) -> FleetSummary:
        """See `RequestQueue.summary`."""

    @abstractmethod
    def awaits(self, device: str) -> bool:
        """Whether a waiting request means this device."""
