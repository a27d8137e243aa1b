"""TVM's targets from what people and DeviceIdentity.targets call them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import tvm
from tvm.target import codegen

from farm.bundle.abi import Abi, Platform
from farm.compiler.tvm_errors import first_line
from farm.core.errors import UserError

_ABIS = {
    "aarch64": Abi.ARM64, "arm64": Abi.ARM64, "arm": Abi.ARMV7, "armv7a": Abi.ARMV7, "x86_64": Abi.X86_64,
    "i686": Abi.X86, "riscv64": Abi.RISCV64,
}  # fmt: skip


DEVICES = {"llvm": "cpu", "opencl": "opencl", "vulkan": "vulkan"}  # target kind -> TVM's device
CLML_CODEGEN = "relax.ext.openclml"


class TargetError(UserError):
    """TVM does not know that target."""

    code = "bad_target"


class TargetRefusedError(UserError):
    """TVM has that target, and does it wrongly or not at all."""

    code = "target_refused"


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
            if not host or target.kind.name == "llvm":  # a tag of a CPU is complete
                return target
            return tvm.target.Target(target, host=tvm.target.Target(dict(host)))
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


def described(target: Any) -> str:
    """A TVM target in a few words: `llvm aarch64-linux-android cortex-a76`, `opencl (adreno, texture)`."""
    if target.kind.name == "llvm":
        parts = ("llvm", *(str(target.attrs.get(name) or "") for name in ("mtriple", "mcpu")))
        return " ".join(filter(None, parts))
    keys = [str(key) for key in target.keys if key not in (target.kind.name, "gpu")]
    return f"{target.kind.name} ({', '.join(keys)})" if keys else str(target.kind.name)


def device_of(target: object) -> str:
    """TVM's device for a target: cpu, opencl, vulkan.

    Raises:
        TargetError: the farm runs nothing on that kind.
    """
    kind = target_from(target).kind.name
    if kind not in DEVICES:
        raise TargetError(f"the farm cannot run code for {kind}", hint=f"kinds: {', '.join(DEVICES)}")
    return DEVICES[kind]


def is_texture(target: object) -> bool:
    """Whether code for it keeps tensors in OpenCL images, which TVM 0.26 and 0.27 do wrongly (docs/facts.md)."""
    return "texture" in target_from(target).keys


def check_target(target: Any) -> None:
    """Refuse what this TVM has no code generator for.

    Raises:
        TargetRefusedError: it has none.
    """
    if "clml" in target.keys and tvm.get_global_func(CLML_CODEGEN, allow_missing=True) is None:
        raise TargetRefusedError(
            f"TVM {tvm.__version__} here was built without USE_CLML: it has no code generator for CLML",
            hint="--target adreno, or a toolchain whose TVM was built with USE_CLML",
        )
    if target.kind.name not in generators():
        raise TargetRefusedError(
            f"TVM {tvm.__version__} here has no code generator for {target.kind.name}",
            hint=f"it has: {', '.join(generators())}",
        )


def generators() -> tuple[str, ...]:
    """Target kinds that the farm can run and this TVM generates code for."""
    found = {kind: tvm.get_global_func(f"target.build.{kind}", allow_missing=True) for kind in DEVICES}
    return tuple(kind for kind, build in found.items() if build is not None)


def host_target() -> dict[str, Any]:
    """The machine that this runs on: its CPU as LLVM names it, without what this machine keeps from it, and its cores.

    A hypervisor may hide instructions (AVX-512) of the CPU whose name it shows.
    """
    system = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    target: dict[str, Any] = {"kind": "llvm", "mtriple": f"{platform.machine()}-linux-gnu"}
    target["mcpu"] = str(codegen.llvm_get_system_cpu())
    known = {str(name) for name in codegen.llvm_get_cpu_features(tvm.target.Target(target))}
    hidden = sorted(f"-{name}" for name, there in system.items() if not there and str(name) in known)
    if hidden:
        target["mattr"] = hidden
    target["num-cores"] = len(os.sched_getaffinity(0))
    return target
