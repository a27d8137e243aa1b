"""Which phones are identical on paper: a candidate's time on one of them means the same on every other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.core.identity import DeviceIdentity

MARK_CHARS = 12  # 48 bits: no two kinds of phones of one farm share a mark by chance


@dataclass(frozen=True, slots=True)
class Alike:
    """What phones must have in common to be pooled."""

    soc: str
    gpu: str
    abi: str
    targets: str  # canonical JSON
    bundle: str  # hash
    clock_policy: str = ""  # governors; "" when none is readable

    @property
    def mark(self) -> str:
        """The same for equal phones only: the value of the label `alike`."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:MARK_CHARS]


def alike(identity: DeviceIdentity | None, bundle: str) -> Alike | None:
    """What a phone has in common with its like; None while that is not known. `bundle`: the hash of the one on it."""
    if identity is None or not bundle:
        return None
    targets = json.dumps(identity.targets, sort_keys=True, default=str)
    soc, gpu = identity.soc, identity.gpu
    gpu_name = f"{gpu.model} {gpu.cores or ''}".strip()
    return Alike(soc.model or soc.name, gpu_name, identity.abi, targets, bundle, identity.clock_policy)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the fields in which two phones' `Alike`, as dicts, are not the same."""
    return tuple(name for name in one if one[name] != other.get(name))
