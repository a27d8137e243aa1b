"""One attempt as the daemon sees it: what the worker may ask, what is known of it, and when it is overdue.

The decisions (`overdue`, `next_look_s`) are pure; `Attempt` turns the worker's verbs into calls of its host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from farm.core.error_wire import error_from_wire
from farm.core.errors import FarmError, HostError, ProtocolError, UserError

HELLO_LIMIT_S = 20.0  # from fork to hello takes 5 ms; a host that swaps may need seconds
SILENCE_LIMIT_S = 15.0  # workers send a heartbeat every second from a thread of their own


class WorkerDiedError(HostError):
    """A worker ended without a result."""

    code = "worker_died"


class WorkerSilentError(HostError):
    """A worker stopped sending heartbeats and was killed."""

    code = "worker_silent"


class AttemptTimeoutError(UserError):
    """An attempt took longer than its time limit and was killed."""

    code = "timeout"
    exit_code = 1


class StaleAttemptError(FarmError):
    """A worker reported for an attempt that is not (or no longer) its own."""

    code = "stale"


@dataclass(frozen=True, slots=True)
class SessionOffer:
    """Where a worker finds its phone: the gate's address and a match key good for one session."""

    host: str
    port: int
    key: str


class AttemptHost(Protocol):
    """Whoever runs the attempt: what its worker may ask for."""

    async def open_session(self) -> SessionOffer:
        """A way to the attempt's phone."""
        ...

    async def abort_session(self, reason: str) -> None:
        """The phone's session is stuck or broken: cut it and look at the phone."""
        ...

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        """The worker is at `step`."""
        ...


class Verbs(Protocol):
    """What the workers' door calls for an admitted worker."""

    async def handle(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one verb."""
        ...


class Door(Protocol):
    """The workers' control socket, as the supervisor sees it (farm.control.worker_door implements it)."""

    @property
    def socket_path(self) -> str:
        """The socket workers connect to."""
        ...

    def admit(self, attempt: str, fence: int, verbs: Verbs) -> str:
        """Let a worker in from now on; returns the token it must show."""
        ...

    def dismiss(self, attempt: str) -> None:
        """Refuse this attempt's worker from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt to run in a worker."""

    attempt: str
    fence: int
    kind: str  # the module whose main(payload, daemon) runs: "farm.worker.bench", "farm.worker.checker"
    payload: Mapping[str, Any]
    timeout_s: float


@dataclass(slots=True)
class Watch:
    """When things were last heard of a worker; monotonic seconds."""

    started_s: float
    heard_s: float
    greeted: bool = False
    step: str = "starting"


def overdue(watch: Watch, timeout_s: float, now_s: float) -> FarmError | None:
    """Why a worker must be killed now; None while all is well."""
    if now_s - watch.started_s >= timeout_s:
        return AttemptTimeoutError(
            f"no result after {timeout_s:g} s; it was at: {watch.step}", hint="a longer --timeout, or a smaller job"
        )
    limit_s = SILENCE_LIMIT_S if watch.greeted else HELLO_LIMIT_S
    if now_s - watch.heard_s >= limit_s:
        return WorkerSilentError(f"the worker said nothing for {limit_s:g} s; it was at: {watch.step}")
    return None


def next_look_s(watch: Watch, timeout_s: float) -> float:
    """The earliest moment at which `overdue` could answer differently if nothing more is heard."""
    limit_s = SILENCE_LIMIT_S if watch.greeted else HELLO_LIMIT_S
    return min(watch.started_s + timeout_s, watch.heard_s + limit_s)


@dataclass(slots=True)
class Attempt:
    """A running attempt: its watch and its result. The door calls `handle` for every message of its worker."""

    task: Task
    host: AttemptHost
    watch: Watch
    result: asyncio.Future[Mapping[str, Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    versions: Mapping[str, Any] = field(default_factory=dict)

    async def handle(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one of the worker's verbs.

        Raises:
            ProtocolError: there is no such verb, or its fields are wrong.
            StaleAttemptError: the attempt has a result already.
        """
        if self.result.done():
            raise StaleAttemptError("the attempt has ended")
        self.watch.heard_s = asyncio.get_running_loop().time()
        match verb:
            case "hello":
                self.watch.greeted = True
                self.versions = dict(fields)
            case "heartbeat":
                pass
            case "progress":
                self.watch.step = _text(fields, "step")
                self.host.progressed(self.watch.step, {k: v for k, v in fields.items() if k != "step"})
            case "log":
                self.host.progressed("log", {"line": _text(fields, "line")})
            case "session.open":
                offer = await self.host.open_session()
                return {"host": offer.host, "port": offer.port, "key": offer.key}
            case "session.abort":
                await self.host.abort_session(_text(fields, "reason"))
            case "result":
                self._conclude(fields)
            case _:
                raise ProtocolError(f"workers have no verb {verb!r}")
        return {}

    def _conclude(self, fields: Mapping[str, Any]) -> None:
        error, value = fields.get("error"), fields.get("value")
        if isinstance(error, Mapping):
            self.result.set_exception(error_from_wire(error))
        elif isinstance(value, Mapping):
            self.result.set_result(value)
        else:
            raise ProtocolError("a result is either a value or an error")


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"the worker's {name!r} is not text")
    return value
