"""Jobs that compare: two builds in turns, or one build under two runtime bundles in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from farm.bundle.manifest import Bundle
from farm.fleet.lending import Lending
from farm.jobs.bundle_pair import BundleHost, check_pair, uses
from farm.jobs.executor import Running
from farm.jobs.measuring import MeasuringHost, ReadConditions, is_virtual, measured, quiet_lease
from farm.jobs.phone_work import PhoneWork
from farm.jobs.quieting import QuietParts
from farm.jobs.specs import CompareSpec
from farm.jobs.tasks import CompareTask

WORKER = "farm.worker.compare"


@dataclass(frozen=True, slots=True)
class Bundles:
    """Where bundles are and who puts them on phones."""

    get: Callable[[str], Bundle]  # by name or hash, in a thread; UnknownBundleError: there is none
    lending: Lending


class CompareExecutor:
    """Runs attempts of kind compare."""

    def __init__(self, work: PhoneWork, look: ReadConditions, bundles: Bundles, quieting: QuietParts) -> None:
        self._work = work
        self._look = look
        self._bundles = bundles
        self._quieting = quieting

    async def run(self, running: Running) -> Mapping[str, Any]:
        """The worker's report: which of the two is faster on this phone.

        Raises:
            BundlePairError, UnknownBundleError: the two bundles cannot be compared there.
            FarmError: as of a bench; a message says which of the two it is about.
        """
        spec = running.spec
        assert isinstance(spec, CompareSpec)
        if spec.bundle is None or spec.bundle_b is None:
            task = self._task(running, spec)
            quiet = quiet_lease(self._quieting, running)
            host = MeasuringHost(running, self._work.parts, self._look, quiet)
            return await measured(self._work, running, WORKER, task.to_wire(), host)
        a, b = [await asyncio.to_thread(self._bundles.get, name) for name in (spec.bundle, spec.bundle_b)]
        view = running.view
        check_pair(a, b, view.identity, view.name)
        running = replace(running, view=replace(view, bundle=a.hash))  # the worker is of A's toolchain
        task = replace(self._task(running, spec), bundles=uses(a, b), records_b=spec.records)
        host = BundleHost(
            running,
            self._work.parts,
            self._look,
            quiet_lease(self._quieting, running),
            bundles={a.hash: a, b.hash: b},
            lending=self._bundles.lending,
        )
        return await measured(self._work, running, WORKER, task.to_wire(), host)

    def _task(self, running: Running, spec: CompareSpec) -> CompareTask:
        return CompareTask.of(
            spec,
            self._work.target(running, spec.target),
            self._work.cache(running),
            target_b=self._work.target(running, spec.target_b or spec.target),
            target_b_name=spec.target_b or spec.target,
            bundles=None,
            virtual=is_virtual(running.view),
        )
