"""Jobs that measure (`bench`, `compare`): their workers may ask for the phone's condition, their results name it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from farm.core.device import DeviceView
from farm.core.errors import FarmError
from farm.jobs.attempt import SessionOffer
from farm.jobs.executor import Running
from farm.jobs.phone_work import LeaseHost, PhoneWork
from farm.jobs.quieting import QuietLease, QuietParts
from farm.jobs.specs import BenchSpec
from farm.jobs.tasks import BenchTask


class ReadConditions(Protocol):
    """One look at a phone."""

    async def __call__(self, serial: str) -> dict[str, Any]:
        """Fields of farm.measure.conditions.Moment; None for what is unknown.

        Raises:
            FarmError: the phone did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class MeasuringHost(LeaseHost):
    """What the worker of a measurement may ask for besides."""

    look: ReadConditions
    quiet: QuietLease

    async def open_session(self, lease: str) -> SessionOffer:
        """A way to the lease's phone, which is quiet by then: not before, as compiling for it may take minutes."""
        await self.quiet.begin()
        return await LeaseHost.open_session(self, lease)

    async def serve(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """`conditions`: the phone's, as far as they can be read. A phone that is silent is for others to notice."""
        if verb != "conditions":
            return await LeaseHost.serve(self, verb, fields)
        try:
            return await self.look(self.running.view.serial)
        except FarmError as error:
            self.running.log(f"the phone's condition is not known: {error.message}", "warning")
            return {}


class BenchExecutor:
    """Runs attempts of kind bench."""

    def __init__(
        self,
        work: PhoneWork,
        look: ReadConditions,
        nominals: Callable[[str, str], dict[str, float]],
        quieting: QuietParts,
    ) -> None:
        """`nominals`: nominal seconds of reference kernels, by key, of a device in an identity epoch."""
        self._work = work
        self._look = look
        self._nominals = nominals
        self._quieting = quieting

    async def run(self, running: Running) -> Mapping[str, Any]:
        """The worker's report, with the phone in its certificate.

        Raises:
            UserError: the model or its inputs cannot be used, or the phone has no such target.
            PhoneError: the phone failed, or computed wrong numbers.
            HostError: the worker died.
        """
        spec, work = running.spec, self._work
        assert isinstance(spec, BenchSpec)
        nominals = await asyncio.to_thread(self._nominals, running.view.name, epoch_of(running.view))
        task = BenchTask.of(
            spec,
            work.target(running, spec.target),
            work.cache(running),
            nominals=nominals,
            virtual=is_virtual(running.view),
        )
        quiet = quiet_lease(self._quieting, running)
        host = MeasuringHost(running, work.parts, self._look, quiet)
        return await measured(work, running, "farm.worker.bench", task.to_wire(), host)


def epoch_of(view: DeviceView) -> str:
    """The identity epoch a phone is in: its build fingerprint, which every system update changes."""
    return view.identity.fingerprint if view.identity else ""


async def measured(
    work: PhoneWork, running: Running, worker: str, payload: Mapping[str, Any], host: MeasuringHost
) -> Mapping[str, Any]:
    """The report of a worker that measures, with the phone in its certificate.

    Raises:
        FarmError: as `PhoneWork.run`.
    """
    try:
        report = {**await work.run(running, worker, payload, host), "target": payload["target_name"]}
    finally:
        await host.quiet.end()
    phone = {name: report[name] for name in ("device", "soc", "gpu", "bundle", "toolchain")}
    tvm = report["versions"].get("apache-tvm", "")
    certificate = {**report["certificate"], **phone, "tvm": tvm, "epoch": epoch_of(running.view)}
    certificate |= {"quiesce": host.quiet.to_wire(), "notes": [*certificate.get("notes", ()), *host.quiet.notes()]}
    return {**report, "certificate": certificate}


def quiet_lease(parts: QuietParts, running: Running) -> QuietLease:
    """Of the attempt's only phone."""
    return QuietLease(parts, running, running.lease.id, running.lease.device)


def is_virtual(view: DeviceView) -> bool:
    """Whether the phone is one."""
    return view.identity is not None and view.identity.virtual
