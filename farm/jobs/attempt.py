"""One attempt as the daemon sees it: the worker's rights, its known state, and when it is overdue.

The decisions (`overdue`, `next_check_s`) are pure; `LiveAttempt` turns the worker's verbs into calls of its host.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from farm.common.errors import Code, FarmError, HostError, ProtocolError, UserError, error_from_wire
from farm.common.limits import MAX_RESULT_BYTES
from farm.common.verbs import FieldError, arguments, verb, verbs_of
from farm.jobs.progress_schema import MAX_TEXT_CHARS, check_facts

# A worker's report may take three quarters of a result; the daemon adds the phone's identity and the job's row.
MAX_REPORT_BYTES = MAX_RESULT_BYTES * 3 // 4
Level = Literal["debug", "info", "warning", "error"]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
HELLO_LIMIT_S = 20.0  # from fork to hello takes 5 ms; a host that swaps may need seconds
SILENCE_LIMIT_S = 15.0  # workers send a heartbeat every second from a thread of their own


class AttemptTimeoutError(UserError):
    """An attempt took longer than its time limit and was killed."""

    code = "timeout"
    exit_code = 1


class YieldedError(FarmError):
    """The attempt gave its phone to others at a good moment and continues later."""

    code = "yielded"


@dataclass(frozen=True, slots=True)
class SessionOffer:
    """Where a worker finds its phone: the gate's address and a match key good for one session."""

    host: str
    port: int
    key: str


class AttemptHost(Protocol):
    """The daemon's side of an attempt: its answers to the worker, and the verbs of some attempts only."""

    async def open_session(self, lease: str) -> SessionOffer:
        """A way to the phone of one of the attempt's leases; "": the only one."""

    async def abort_session(self, lease: str, reason: str) -> None:
        """That phone's session is stuck or broken: cut it and check the phone."""

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        """The worker is at `step`."""

    def logged(self, text: str, level: str) -> None:
        """A line for the attempt's log: reported by the worker, or written to its stdout or stderr."""

    def yield_wanted(self) -> bool:
        """Whether others wait for the phone, and the attempt should end as yielded when it suits."""


class WorkerListener(Protocol):
    """The workers' control socket, as the supervisor sees it (farm.control.server implements it)."""

    @property
    def socket_path(self) -> str:
        """The socket workers connect to."""

    def admit(self, attempt: str, fence: int, verbs: LiveAttempt) -> str:
        """Let a worker in from now on; returns the token it must show."""

    def dismiss(self, attempt: str) -> None:
        """Refuse this attempt's worker from now on."""


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt to run in a worker."""

    attempt: str
    fence: int
    module: str  # whose main(payload, daemon) runs: "farm.kinds.bench.worker", "farm.worker.checker"
    payload: Mapping[str, Any]
    timeout_s: float
    user: str = ""  # of the farm, whose work it is; "": the farm's own


@dataclass(slots=True)
class HeartbeatWatch:
    """When a worker started and last sent something; monotonic seconds."""

    started_s: float
    last_message_s: float
    greeted: bool = False
    step: str = "starting"

    def add_standstill(self, standstill_s: float, now_s: float) -> None:
        """Do not count a time in which the daemon itself did not run, and so read nothing, as the worker's silence."""
        self.last_message_s = min(now_s, self.last_message_s + standstill_s)


def overdue(watch: HeartbeatWatch, timeout_s: float, now_s: float) -> FarmError | None:
    """Why a worker must be killed now; None while all is well."""
    if now_s - watch.started_s >= timeout_s:
        return AttemptTimeoutError(
            f"no result after {timeout_s:g} s; it was at: {watch.step}", hint="a longer --timeout, or a smaller job"
        )
    limit_s = SILENCE_LIMIT_S if watch.greeted else HELLO_LIMIT_S
    if now_s - watch.last_message_s >= limit_s:
        return HostError(f"the worker sent nothing for {limit_s:g} s; it was at: {watch.step}", Code.WORKER_SILENT)
    return None


def next_check_s(watch: HeartbeatWatch, timeout_s: float) -> float:
    """The earliest moment at which `overdue` could answer differently if the worker sends nothing more."""
    limit_s = SILENCE_LIMIT_S if watch.greeted else HELLO_LIMIT_S
    return min(watch.started_s + timeout_s, watch.last_message_s + limit_s)


async def answer_worker(kind: str, fields: Mapping[str, Any], *owners: object) -> Mapping[str, Any]:
    """Have a worker's request answered by a verb among the methods of its owners, the first with one.

    Raises:
        ProtocolError: there is no such verb, or its fields are wrong.
        FarmError: what the verb reports.
    """
    found = (each for owner in owners for declared, each in verbs_of(owner).items() if declared.kind == kind)
    if (method := next(found, None)) is None:
        raise no_such_verb_error(kind)
    try:
        given = arguments(method, kind, fields, strict=True)
    except FieldError as error:
        raise ProtocolError(f"a worker's {error.message}") from error
    return await method(**given) or {}


@dataclass(slots=True)
class LiveAttempt:
    """A running attempt: its watch, its result, and the verbs of its worker; `handle` gets every message of it."""

    task: Task
    host: AttemptHost
    watch: HeartbeatWatch
    result: asyncio.Future[Mapping[str, Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    versions: Mapping[str, Any] = field(default_factory=dict)

    async def handle(self, kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one of the worker's verbs.

        Raises:
            ProtocolError: there is no such verb, or its fields are wrong.
            FarmError: the attempt has a result already.
        """
        if self.result.done():
            raise FarmError("the attempt has ended", Code.STALE_REPORT)
        self.watch.last_message_s = asyncio.get_running_loop().time()
        return await answer_worker(kind, fields, self, self.host)

    @verb("hello")
    async def hello(self, /, **versions: Any) -> None:
        """The worker runs."""
        self.watch.greeted = True
        self.versions = versions

    @verb("heartbeat")
    async def beat(self) -> None:
        """The worker still runs."""

    @verb("progress")
    async def progress(self, /, step: Text, **facts: Any) -> None:
        """The worker is at `step`."""
        check_facts(facts)
        self.watch.step = step
        self.host.progressed(step, facts)

    @verb("log")
    async def log(self, text: Text, level: Level) -> None:
        """A line for the attempt's log."""
        self.host.logged(text, level)

    @verb("yield")
    async def yield_wanted(self) -> Mapping[str, Any]:
        """Whether others wait for the phone."""
        return {"yield": self.host.yield_wanted()}

    @verb("session.open")
    async def open_session(self, lease: Text = "") -> Mapping[str, Any]:
        """A way to the phone of a lease."""
        return asdict(await self.host.open_session(lease))

    @verb("session.abort")
    async def abort_session(self, reason: Text, lease: Text = "") -> None:
        """Cut a session that is stuck or broken."""
        await self.host.abort_session(lease, reason)

    @verb("result")
    async def conclude(self, value: dict[str, Any] | None = None, error: dict[str, Any] | None = None) -> None:
        """The attempt's result, or why there is none."""
        if error is not None:
            self.result.set_exception(error_from_wire(error))
        elif value is not None:
            try:
                check_report(value)
            except UserError as too_large:
                self.result.set_exception(too_large)
            else:
                self.result.set_result(value)
        else:
            raise ProtocolError("a result is either a value or an error")


def check_report(value: Mapping[str, Any]) -> None:
    """Refuse a worker's report that cannot become a result.

    Raises:
        UserError: it is too large.
        ProtocolError: it is no JSON.
    """
    try:
        size = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the worker's report is no JSON: {error}") from error
    if size > MAX_REPORT_BYTES:
        raise UserError(
            f"the result has {size:,} bytes as JSON; at most {MAX_REPORT_BYTES:,} are kept",
            Code.RESULT_TOO_LARGE,
            hint="ask for less (top_k, repeat), or put arrays into an artifact",
        )


def no_such_verb_error(verb: str) -> ProtocolError:
    """The error for a verb that workers do not have."""
    return ProtocolError(f"workers have no verb {verb!r}")
