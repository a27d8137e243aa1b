"""Two runtime bundles on one phone in turns: which two may be, and the worker's way to change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm.bundle.abi import Platform
from farm.bundle.manifest import Bundle
from farm.core.errors import UserError
from farm.core.identity import DeviceIdentity
from farm.fleet.lending import Lending
from farm.jobs.attempt import no_verb, text_field
from farm.jobs.measuring import MeasuringHost
from farm.jobs.tasks import BundleUse


class BundlePairError(UserError):
    """These two bundles cannot be compared on that phone."""

    code = "bundle_pair"


@dataclass(frozen=True, slots=True)
class BundleHost(MeasuringHost):
    """What the worker of such a comparison may ask for besides."""

    bundles: Mapping[str, Bundle]  # by hash: those it may have on its phone
    lending: Lending

    async def serve(self, verb: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """`bundle.use`: the phone's RPC server starts from another bundle; answered when its check is passed."""
        if verb != "bundle.use":
            return await MeasuringHost.serve(self, verb, fields)
        bundle = self.bundles.get(text_field(fields, "bundle"))
        if bundle is None:
            raise no_verb("bundle.use of that bundle")
        device = await self.parts.leasing.lend(self.running.lease.id)
        # No await between the two: the phone must not be lent any more when the lease has ended.
        await self.lending.use(device, bundle)
        return {}


def check_pair(a: Bundle, b: Bundle, identity: DeviceIdentity | None, phone: str) -> None:
    """Whether one library runs on the phone under both, and there is something to compare. Pure.

    Raises:
        BundlePairError: they are one bundle, for other phones, or of different TVM versions.
    """
    if a.hash == b.hash:
        raise BundlePairError(f"{label(a)} and {label(b)} are the same bundle", hint="farm bundle list")
    for bundle in (a, b):
        if identity is None or (bundle.abi, bundle.platform) != (identity.abi, platform_of(identity)):
            is_for = "is not identified" if identity is None else f"needs {identity.abi} ({platform_of(identity)})"
            raise BundlePairError(
                f"bundle {label(bundle)} is for {bundle.abi} ({bundle.platform}), {phone} {is_for}",
                hint="farm bundle list; a selector such as --on abi=arm64-v8a leaves other phones out",
            )
    if a.tvm_version != b.tvm_version:
        raise BundlePairError(
            f"bundle {label(a)} is of TVM {a.tvm_version or '?'}, bundle {label(b)} of TVM {b.tvm_version or '?'}: no"
            " library runs under both",
            hint="bench with each, and compare the two results: farm compare BENCH BENCH",
        )


def platform_of(identity: DeviceIdentity) -> Platform:
    """What kind of system the phone's programs are for."""
    return Platform.LINUX if identity.virtual else Platform.ANDROID


def uses(a: Bundle, b: Bundle) -> tuple[BundleUse, BundleUse]:
    """What the worker is told of them."""
    return _use(a), _use(b)


def _use(bundle: Bundle) -> BundleUse:
    return BundleUse(name=label(bundle), hash=bundle.hash, tvm=bundle.tvm_version)


def label(bundle: Bundle) -> str:
    """What people call it."""
    return bundle.name or bundle.short_hash
