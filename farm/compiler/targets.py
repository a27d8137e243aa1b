"""TVM's targets from what people and DeviceIdentity.targets call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from farm.bundle.abi import Abi, Platform
from farm.compiler.tvm_errors import first_line
from farm.core.errors import UserError

_ABIS = {
    "aarch64": Abi.ARM64, "arm64": Abi.ARM64, "arm": Abi.ARMV7, "armv7a": Abi.ARMV7, "x86_64": Abi.X86_64,
    "i686": Abi.X86, "riscv64": Abi.RISCV64,
}  # fmt: skip


class TargetError(UserError):
    """TVM does not know that target."""

    code = "bad_target"


def target_from(value: object) -> Any:
    """The TVM target for a tag or a dict as DeviceIdentity.targets has them.

    Raises:
        TargetError: TVM refuses it.
    """
    try:
        if isinstance(value, Mapping):
            fields = dict(value)
            host = fields.pop("host", None)
            tag = fields.pop("tag", None)
            target = tvm.target.Target(tag if tag and not fields else ({"tag": tag} if tag else {}) | fields)
            return tvm.target.Target(target, host=tvm.target.Target(dict(host))) if host else target
        return tvm.target.Target(str(value))
    except Exception as error:  # TVM raises its own kinds, and plain ValueError, TypeError, RuntimeError
        raise TargetError(f"TVM does not take the target {value!r}: {first_line(error)}") from error


def abi_of(target: object) -> tuple[Abi, Platform]:
    """For which machine and platform a target's CPU code is.

    Raises:
        TargetError: no such phone exists.
    """
    tvm_target = target_from(target)
    host = tvm_target.host or tvm_target
    triple = str(host.attrs.get("mtriple", ""))
    abi = _ABIS.get(triple.partition("-")[0])
    if abi is None:
        raise TargetError(f"the farm cannot link for {triple or 'a target without mtriple'}")
    return abi, Platform.ANDROID if "android" in triple else Platform.LINUX
