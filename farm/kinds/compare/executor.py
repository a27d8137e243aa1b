"""Jobs that compare in turns: two builds, one build under two runtime bundles, or a model under two runtimes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from farm.bundle.model import Bundle, platform_of
from farm.common.errors import Code, ProtocolError, UserError
from farm.common.verbs import verb
from farm.jobs.attempt import Text
from farm.jobs.executor import AttemptContext
from farm.kinds.compare import CompareSpec, CompareTask
from farm.kinds.execution import MeasuringHost, ModelExecutor, measured, quiet_lease
from farm.kinds.program.executor import ProgramHost, WantedProgram, install_programs, with_traces
from farm.model.identity import DeviceIdentity
from farm.model.specs import BundleUse

WORKER = "farm.kinds.compare.worker"


class CompareExecutor(ModelExecutor):
    """Runs attempts of kind compare."""

    async def run(self, context: AttemptContext) -> Mapping[str, Any]:
        """The worker's report: which of the two is faster on this phone."""
        spec, parts, work = context.spec, self.parts, self.parts.work
        assert isinstance(spec, CompareSpec)
        if spec.program or spec.program_b:
            return await with_traces(parts, context, lambda: self._programs(context, spec))
        if spec.bundle is None or spec.bundle_b is None:
            return await ModelExecutor.run(self, context)
        a, b = [await asyncio.to_thread(parts.bundle, name) for name in (spec.bundle, spec.bundle_b)]
        view = context.view
        check_pair(a, b, view.identity, view.name)
        context = replace(context, view=replace(view, bundle=a.hash))  # the worker is of A's toolchain
        task = replace(await self.task(context), bundles=(use_of(a), use_of(b)))
        host = BundleHost(context, parts, quiet_lease(parts, context), {a.hash: a, b.hash: b})
        return await measured(work, context, WORKER, task.to_wire(), host)

    async def _programs(self, context: AttemptContext, spec: CompareSpec) -> Mapping[str, Any]:
        parts = self.parts
        wanted = [
            WantedProgram(spec.program, spec.model, spec.name, spec.settings) if spec.program else None,
            WantedProgram(spec.program_b, spec.model_b, spec.name_b, spec.settings_b) if spec.program_b else None,
        ]
        installed = await install_programs(parts, context, wanted)
        a, b = (None if each is None else each.use for each in installed)
        task = replace(await self.task(context), programs=(a, b))
        host = ProgramHost(context, parts, quiet_lease(parts, context), installed)
        return await measured(parts.work, context, WORKER, task.to_wire(), host)

    async def task(self, context: AttemptContext) -> CompareTask:
        """The worker's task."""
        spec = context.spec
        assert isinstance(spec, CompareSpec)
        target_b = self.parts.work.target(context, spec.target_b or spec.target)
        return CompareTask(**self.model(context), target_b=target_b)


bundle_pair_error = partial(UserError, code=Code.BUNDLES_NOT_COMPARABLE)


@dataclass(frozen=True, slots=True)
class BundleHost(MeasuringHost):
    """The daemon's side of the worker of a comparison of two bundles."""

    bundles: Mapping[str, Bundle]  # by hash: those it may have on its phone

    @verb("bundle.use")
    async def use(self, bundle: Text) -> None:
        """Start the phone's RPC server from another bundle; answered when its check is passed."""
        if bundle not in self.bundles:
            raise ProtocolError("this attempt has no such bundle")
        device = await self.parts.leasing.allow_bundle_override(self.context.lease.id)
        # No await between the two: the lease that allows the override must not have ended.
        await self.parts.fleet.bundle_overrides.use(device, self.bundles[bundle])


def check_pair(a: Bundle, b: Bundle, identity: DeviceIdentity | None, phone: str) -> None:
    """Whether one library runs on the phone under both, and there is something to compare. Pure."""
    if a.hash == b.hash:
        raise bundle_pair_error(f"{label(a)} and {label(b)} are the same bundle", hint="farm bundle list")
    for bundle in (a, b):
        if identity is None or (bundle.abi, bundle.platform) != (identity.abi, platform_of(identity)):
            state = "is not identified" if identity is None else f"needs {identity.abi} ({platform_of(identity)})"
            raise bundle_pair_error(
                f"bundle {label(bundle)} is for {bundle.abi} ({bundle.platform}), {phone} {state}",
                hint="farm bundle list; a selector such as --on abi=arm64-v8a leaves other phones out",
            )
    if a.tvm_version != b.tvm_version:
        raise bundle_pair_error(
            f"bundle {label(a)} is of TVM {a.tvm_version or '?'}, bundle {label(b)} of TVM {b.tvm_version or '?'}: no"
            " library runs under both",
            hint="bench with each, and compare the two results: farm compare BENCH BENCH",
        )


def use_of(bundle: Bundle) -> BundleUse:
    """The parts of a bundle that the worker gets."""
    return BundleUse(name=label(bundle), hash=bundle.hash, tvm=bundle.tvm_version)


def label(bundle: Bundle) -> str:
    """Its name for people."""
    return bundle.name or bundle.short_hash
