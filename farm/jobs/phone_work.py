"""What kinds of jobs share that run a model on a phone: the worker, its sessions under the lease, the phone's facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from farm.core.device import DeviceView
from farm.core.errors import UserError
from farm.core.identity import DeviceIdentity
from farm.jobs.attempt import SessionOffer, Task, Workers
from farm.jobs.executor import Running

WORKER = "worker"  # source of what workers say


class NoTargetError(UserError):
    """The phone has no such compile target."""

    code = "no_target"


class SessionKeys(Protocol):
    """Leasing, as an attempt with a worker needs it."""

    def new_match_key(self, lease_id: str, *, single_use: bool) -> str:
        """A key that opens a session at the gate."""
        ...

    def abort(self, lease_id: str, reason: str) -> None:
        """The lease's session went wrong: the phone is cleaned and checked before anybody uses it again."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """What one attempt's worker may ask for: sessions under its lease, and to be heard."""

    running: Running
    keys: SessionKeys
    gate: Callable[[], tuple[str, int]]

    async def open_session(self) -> SessionOffer:
        """A way to the lease's phone, good for one session."""
        host, port = self.gate()
        return SessionOffer(host, port, self.keys.new_match_key(self.running.lease.id, single_use=True))

    async def abort_session(self, reason: str) -> None:
        """Have the session cut and the phone looked at."""
        self.keys.abort(self.running.lease.id, reason)

    def progressed(self, step: str, fields: Mapping[str, Any]) -> None:
        """Told to those who watch, and kept."""
        self.running.progress(step, **fields)
        self.running.log(step, source=WORKER)

    def logged(self, text: str, level: str) -> None:
        """Kept."""
        self.running.log(text, level, source=WORKER)

    def yield_wanted(self) -> bool:
        """Whether others wait for the phone."""
        return self.running.yield_wanted()


class PhoneWork:
    """Runs attempts' workers on the phones they have leased."""

    def __init__(
        self,
        *,
        keys: SessionKeys,
        workers: Workers,
        gate: Callable[[], tuple[str, int]],
        toolchain_of: Callable[[DeviceView], str],
    ) -> None:
        """`gate`: where workers on this host reach the TVM door. `toolchain_of`: the one its bundle is paired with."""
        self._keys = keys
        self._workers = workers
        self._gate = gate
        self._toolchain_of = toolchain_of

    async def run(self, running: Running, worker: str, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The report of a worker (the module whose `main` runs), with what is known of its phone.

        Raises:
            FarmError: what the worker reported, or what became of it.
        """
        toolchain, timeout_s = self._toolchain_of(running.view), running.job.timeout_s
        task = Task(running.attempt.id, running.attempt.fence, worker, payload, timeout_s)
        report = await self._workers.run(toolchain, task, LeaseHost(running, self._keys, self._gate))
        return {**report, **self._about(running.view, toolchain)}

    def target(self, running: Running, name: str) -> Any:
        """The phone's compile target of that name: a TVM tag or target dict.

        Raises:
            NoTargetError: it has none.
        """
        targets = running.view.identity.targets if running.view.identity else {}
        if name not in targets:
            raise NoTargetError(
                f"{running.view.name} has no target {name!r}", hint=f"its targets: {', '.join(targets) or 'none'}"
            )
        return targets[name]

    def cache(self, running: Running) -> str:
        """Where the worker keeps compiled libraries and reference outputs."""
        return str(self._workers.cache_folder(self._toolchain_of(running.view)))

    def _about(self, view: DeviceView, toolchain: str) -> dict[str, Any]:
        return {
            **about_phone(view),
            "bundle": view.bundle,
            "toolchain": toolchain,
            "versions": dict(self._workers.versions(toolchain)),
            "temperature_c": view.temperature_c,
        }


def about_phone(view: DeviceView) -> dict[str, Any]:
    """Which phone it was, as every result says it."""
    identity = view.identity
    return {
        "device": view.name,
        "soc": (identity.soc.name or identity.soc.model) if identity else "",
        "gpu": identity.gpu.model if identity else "",
        "identity": _identity(identity),
    }


def _identity(identity: DeviceIdentity | None) -> dict[str, Any]:
    """Everything but the raw properties."""
    if identity is None:
        return {}
    facts = asdict(identity)
    del facts["raw"]
    return facts
