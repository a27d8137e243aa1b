"""What kinds of jobs share that run a model on a phone: the worker, its sessions under the lease, the phone's facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from farm.core.device import DeviceView
from farm.core.errors import ProtocolError
from farm.core.field_errors import SHA256_FORM
from farm.core.identity import DeviceIdentity
from farm.fleet.named_targets import target_on
from farm.jobs.attempt import AttemptHost, SessionOffer, Task, Workers, no_verb, text_field
from farm.jobs.executor import Running
from farm.jobs.kills import Kills
from farm.jobs.poison import PoisonLedger
from farm.leasing import Leasing

WORKER = "worker"  # source of what workers say
MAX_KILLS = 2  # of one artifact, told by one attempt: enough to have it refused
MAX_LOOKED = 1_000_000  # artifacts of one attempt
MAX_ARTIFACTS = 10_000  # asked about at once


@dataclass(frozen=True, slots=True)
class HostParts:
    """What it takes to answer workers."""

    leasing: Leasing
    gate: Callable[[], tuple[str, int]]  # where workers on this host reach the TVM door
    poison: PoisonLedger
    kills: Kills


@dataclass(frozen=True, slots=True)
class LeaseHost:
    """What one attempt's worker may ask for: sessions under its lease, and to be heard."""

    running: Running
    parts: HostParts
    # What this attempt has asked about, with the kills that it told of: of nothing else it may tell.
    looked: dict[str, int] = field(default_factory=dict, kw_only=True)

    async def open_session(self, lease: str) -> SessionOffer:  # noqa: ARG002 - it has one
        """A way to the lease's phone, good for one session."""
        return self.offer(self.running.lease.id)

    def offer(self, lease: str) -> SessionOffer:
        """A way to that lease's phone, good for one session."""
        host, port = self.parts.gate()
        return SessionOffer(host, port, self.parts.leasing.new_match_key(lease, single_use=True))

    async def abort_session(self, reason: str, lease: str) -> None:  # noqa: ARG002 - it has one
        """Have the session cut and the phone looked at."""
        self.parts.leasing.abort(self.running.lease.id, reason)

    async def serve(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is known of artifacts that kill."""
        match verb:
            case "poison.look":
                artifacts = _artifacts(fields)
                if len(self.looked) + len(artifacts) <= MAX_LOOKED:
                    for artifact in artifacts:
                        self.looked.setdefault(artifact, 0)
                return {"poisoned": sorted(self.parts.poison.refused(artifacts, self.running.job.user))}
            case "poison.tell":
                artifact, device, what = (text_field(fields, name) for name in ("artifact", "device", "what"))
                kills = fields.get("kills", 1)
                if not isinstance(kills, int) or isinstance(kills, bool) or not 1 <= kills <= MAX_KILLS:
                    raise ProtocolError(f"a worker tells of 1 to {MAX_KILLS} kills")
                if device not in self.devices():
                    raise ProtocolError(f"{device} is no phone of this attempt")
                await self._told(artifact, device, what, kills)
                return {}
            case "poison.suspect":
                artifact, what = text_field(fields, "artifact"), text_field(fields, "what")
                lease = self.running.lease
                killed = await self.parts.kills.killed(lease.id, lease.device)
                if killed:
                    await self._told(artifact, lease.device, what, 1)
                return {"killed": killed}
        raise no_verb(verb)

    def devices(self) -> Collection[str]:
        """The phones that the attempt has had."""
        return (self.running.lease.device,)

    async def _told(self, artifact: str, device: str, what: str, kills: int) -> None:
        if artifact not in self.looked:
            raise ProtocolError("a worker tells only of artifacts that it has asked about")
        if self.looked[artifact] + kills > MAX_KILLS:
            raise ProtocolError(f"an attempt tells of at most {MAX_KILLS} kills by one artifact")
        self.looked[artifact] += kills
        job = self.running.job
        await self.parts.poison.tell(artifact, device, what, kills, user=job.user, job=job.id, seen=True)

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

    def __init__(self, parts: HostParts, workers: Workers, toolchain_of: Callable[[DeviceView], str]) -> None:
        """`toolchain_of`: the one that a phone's bundle is paired with."""
        self.parts = parts
        self._workers = workers
        self._toolchain_of = toolchain_of

    async def run(
        self,
        running: Running,
        worker: str,
        payload: Mapping[str, Any],
        host: AttemptHost | None = None,
        *,
        limit_s: float | None = None,
    ) -> dict[str, Any]:
        """The report of a worker (the module whose `main` runs), with what is known of its phone.

        `host`: who answers the worker, if it may ask for more than others. `limit_s`: of the worker; None: its job's.

        Raises:
            FarmError: what the worker reported, or what became of it.
        """
        toolchain, timeout_s = self._toolchain_of(running.view), limit_s or running.job.timeout_s
        task = Task(running.attempt.id, running.attempt.fence, worker, payload, timeout_s)
        report = await self._workers.run(toolchain, task, host or LeaseHost(running, self.parts))
        return {**report, **self._about(running.view, toolchain)}

    def target(self, running: Running, text: str) -> Any:
        """The compile target that a spec's text means on the attempt's phone: a TVM tag or target dict.

        Raises:
            UserError: as `farm.fleet.named_targets.target_on`.
        """
        identity = running.view.identity
        return target_on(text, identity.targets if identity else {}, running.view.name)

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


def _artifacts(fields: Mapping[str, Any]) -> list[str]:
    given = fields.get("artifacts")
    if not isinstance(given, list) or len(given) > MAX_ARTIFACTS or not all(map(_is_hash, given)):
        raise ProtocolError(f"the worker's 'artifacts' is no list of at most {MAX_ARTIFACTS} hashes")
    return given


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(SHA256_FORM, value) is not None


def about_phone(view: DeviceView) -> dict[str, Any]:
    """Which phone it was, as every result says it."""
    identity = view.identity
    return {
        "device": view.name,
        "soc": (identity.soc.model or identity.soc.name) if identity else "",  # as `farm status` has it
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
