"""TVM targets that follow from an identity, as plain dicts that `tvm.target.Target` accepts. Imports no TVM.

`-mcpu` both tunes for a core and switches on everything LLVM believes that core has. Phones disagree: kernels hide SVE,
and cores that share a design with a Cortex lack its dot product. So what the kernel does not state is switched off by
name. Nor is the kernel believed alone: on the Exynos 9810 it states for all cores what only the small ones have
(golang/go issue 28431, reviews.llvm.org/D114523, rust-lang/stdarch PR 1378). A feature is used when the kernel states
it and no core that was seen is of a design that lacks it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from farm.fleet.cpu import ArmPart, CpuFacts

Target = dict[str, object]

# TVM's own tags. What a TVM cannot do for one of them correctly is found out by the compiler (farm.compiler.targets).
ADRENO_TAGS = {
    "adreno": "qcom/adreno-opencl",
    "adreno-texture": "qcom/adreno-opencl-texture",
    "adreno-clml": "qcom/adreno-opencl-clml",
}
# Families whose Android drivers bring libOpenCL.so and Vulkan. No row here means no GPU target, not a broken one.
GPU_FAMILIES = frozenset({"adreno", "mali", "powervr", "xclipse"})
GPU_TARGETS = (*ADRENO_TAGS, "opencl", "vulkan")


@dataclass(frozen=True, slots=True)
class _Feature:
    """LLVM feature `llvm` is stated when `test` holds on the kernel's flags.

    `wanted`: switched on by name when usable. `baseline`: every core of the ABI has it, so designs are not asked.
    """

    llvm: str
    test: Callable[[Collection[str]], bool]
    wanted: bool
    baseline: bool = False


def _flags(*names: str) -> Callable[[Collection[str]], bool]:
    return lambda stated: all(name in stated for name in names)


# Flags: Linux Documentation/arch/arm64/elf_hwcaps.rst. Only features that LLVM's code generator uses unasked are
# listed; atomics (lse) are not: no kernel of ours needs them, and they are what the Exynos 9810 is known to trap on.
_AARCH64 = (
    _Feature("neon", _flags("asimd"), wanted=True, baseline=True),
    _Feature("fullfp16", _flags("fphp", "asimdhp"), wanted=True),
    _Feature("dotprod", _flags("asimddp"), wanted=True),
    _Feature("i8mm", _flags("i8mm"), wanted=True),
    _Feature("bf16", _flags("bf16"), wanted=True),
    _Feature("sve", _flags("sve"), wanted=True),
    _Feature("sve2", _flags("sve", "sve2"), wanted=True),
    _Feature("fp16fml", _flags("asimdfhm"), wanted=False),
    _Feature("rdm", _flags("asimdrdm"), wanted=False),
    _Feature("complxnum", _flags("fcma"), wanted=False),
    _Feature("sha3", _flags("sha3"), wanted=False),
    _Feature("sme", _flags("sme"), wanted=False),
    _Feature("cssc", _flags("cssc"), wanted=False),
    _Feature("mops", _flags("mops"), wanted=False),
)
_ARM = (
    _Feature("neon", _flags("neon"), wanted=True),
    _Feature("vfp4", _flags("vfpv4"), wanted=True),
    _Feature("hwdiv-arm", _flags("idiva"), wanted=True),
    _Feature("hwdiv", _flags("idivt"), wanted=True),
    _Feature("dotprod", _flags("asimddp"), wanted=True),
    _Feature("fullfp16", _flags("fphp", "asimdhp"), wanted=True),
    _Feature("i8mm", _flags("i8mm"), wanted=True),
    _Feature("bf16", _flags("bf16"), wanted=True),
)
# What LLVM takes for granted without an -mcpu: on Android's 32-bit triple NEON, which Tegra 2 lacks.
_GENERIC = frozenset({"neon"})
# What AArch32 code finds on every ARMv8 core with Advanced SIMD; 64-bit kernels print AArch64's names to a 64-bit
# reader.
_AARCH32_OF_ASIMD = ("neon", "vfpv4", "idiva", "idivt")


def targets_of(abi: str, cpu: CpuFacts, gpu_family: str, *, virtual: bool) -> Mapping[str, Target]:
    """Targets by farm's names: `cpu`, `opencl`, `vulkan`, `adreno` (buffers), `adreno-texture`, `adreno-clml`.

    Empty for an ABI that TVM has no target for.

    A virtual phone runs on its host, which has neither the profile's cores nor its GPU: it gets the baseline CPU of
    that architecture and nothing else.
    """
    host = _cpu_target(abi, cpu, virtual=virtual)
    if host is None:
        return {}
    if cpu.cores:
        host["num-cores"] = cpu.cores
    targets: dict[str, Target] = {"cpu": host}
    if virtual:
        return targets
    if gpu_family == "adreno":
        targets |= {name: {"tag": tag, "host": dict(host)} for name, tag in ADRENO_TAGS.items()}
    if gpu_family in GPU_FAMILIES:
        targets |= {kind: {"kind": kind, "host": dict(host)} for kind in ("opencl", "vulkan")}
    return targets


def _cpu_target(abi: str, cpu: CpuFacts, *, virtual: bool) -> Target | None:
    match abi:
        case "x86_64" if virtual:
            return {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}
        case "arm64-v8a" if virtual:
            return {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]}
        case "arm64-v8a":
            # The ABI promises Advanced SIMD whether or not cpuinfo could be read.
            stated = {*cpu.features, "asimd"}
            return _arm_target("aarch64-linux-android", _AARCH64, stated, cpu, lambda part: part.llvm_aarch64)
        case "armeabi-v7a":
            stated = {*cpu.features, *(_AARCH32_OF_ASIMD if "asimd" in cpu.features else ())}
            return _arm_target("armv7a-linux-androideabi", _ARM, stated, cpu, lambda part: part.llvm_arm)
        case "x86_64":
            # https://developer.android.com/ndk/guides/abis now says "x86-64-v1 only"; older versions promised SSE4.2.
            return {"kind": "llvm", "mtriple": "x86_64-linux-android", "mcpu": "x86-64"}
        case "x86":
            # Same page: the ABI includes SSE3 and SSSE3.
            return {"kind": "llvm", "mtriple": "i686-linux-android", "mcpu": "i686", "mattr": ["+ssse3"]}
        case _:
            return None


def arm_linux_target(cpu: CpuFacts, bits: int) -> Target:
    """The CPU target of a Linux board with an ARM processor."""
    stated = {*cpu.features, "asimd"}
    if bits == 64:
        target = _arm_target("aarch64-linux-gnu", _AARCH64, stated, cpu, lambda part: part.llvm_aarch64)
    else:
        target = _arm_target(
            "armv7a-linux-gnueabihf", _ARM, {*stated, *_AARCH32_OF_ASIMD}, cpu, lambda part: part.llvm_arm
        )
    return target | ({"num-cores": cpu.cores} if cpu.cores else {})


def _arm_target(
    mtriple: str,
    table: tuple[_Feature, ...],
    stated: Collection[str],
    cpu: CpuFacts,
    granted: Callable[[ArmPart], Collection[str] | None],
) -> Target:
    """An ARM target; `granted` is what LLVM takes for granted on a core design, None: it does not know that design."""
    target: Target = {"kind": "llvm", "mtriple": mtriple}
    known = granted(cpu.lead) if cpu.lead is not None else None
    if cpu.lead is not None and known is not None:
        target["mcpu"] = cpu.lead.mcpu
    designs = [design for part in cpu.parts if (design := granted(part)) is not None]
    usable = {
        feature.llvm
        for feature in table
        if feature.test(stated) and (feature.baseline or all(feature.llvm in design for design in designs))
    }
    implied = known if known is not None else _GENERIC
    on = [f"+{feature.llvm}" for feature in table if feature.wanted and feature.llvm in usable]
    off = [f"-{feature.llvm}" for feature in table if feature.llvm in implied and feature.llvm not in usable]
    if on or off:
        target["mattr"] = on + off
    return target
