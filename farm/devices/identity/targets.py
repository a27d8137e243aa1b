"""TVM targets that follow from an identity, as plain dicts that `tvm.target.Target` accepts. Imports no TVM.

`-mcpu` both tunes for a core and switches on everything LLVM believes that core has. Phones disagree: kernels hide SVE,
and cores that share a design with a Cortex lack its dot product. So what the kernel does not state is switched off by
name. Nor is the kernel believed alone: on the Exynos 9810 it states for all cores what only the small ones have
(golang/go issue 28431, reviews.llvm.org/D114523, rust-lang/stdarch PR 1378). A feature is used when the kernel states
it and no core that was seen is of a design that lacks it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from farm.common.errors import Code, UserError
from farm.common.selector import HOST, nearest
from farm.devices.identity.cpu import ArmPart, CpuFacts, arm_part

Target = dict[str, object]

CLML = "adreno-clml"
# TVM's own tags. What a TVM cannot do for one of them correctly is found out by the compiler (farm.compiler.targets).
ADRENO_TAGS = {
    "adreno": "qcom/adreno-opencl",
    "adreno-texture": "qcom/adreno-opencl-texture",
    CLML: "qcom/adreno-opencl-clml",
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


def targets_of(
    abi: str, cpu: CpuFacts, gpu_family: str, *, virtual: bool, virtual_gpu: bool = False
) -> Mapping[str, Target]:
    """Targets by farm's names: `cpu`, `opencl`, `vulkan`, `adreno` (buffers), `adreno-texture`, `adreno-clml`.

    Empty for an ABI that TVM has no target for.

    A virtual phone runs on its host, which has neither the profile's cores nor its GPU: it gets the baseline CPU of
    that architecture, and with an OpenCL driver (`virtual_gpu`) what its GPU does by plain OpenCL.
    """
    host = _cpu_target(abi, cpu, virtual=virtual)
    if host is None:
        return {}
    if cpu.cores:
        host["num-cores"] = cpu.cores
    targets: dict[str, Target] = {"cpu": host}
    if virtual and not virtual_gpu:
        return targets
    tags = {name: tag for name, tag in ADRENO_TAGS.items() if not virtual or name != CLML}
    kinds = ("opencl",) if virtual else ("opencl", "vulkan")
    if gpu_family == "adreno":
        targets |= {name: {"tag": tag, "host": dict(host)} for name, tag in tags.items()}
    if gpu_family in GPU_FAMILIES:
        targets |= {kind: {"kind": kind, "host": dict(host)} for kind in kinds}
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
    """An ARM target; `granted`: the features that LLVM assumes on a core design; None: it knows no such design."""
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


_TAG = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+")
_HOST_PART = re.compile(r",\s*(?=llvm\b)")  # tvmc's DEVICE,HOST
_SHOWN = 3  # phones whose reason is shown
_ARM_LTD = 0x41  # ARM's own cores, by MIDR implementer
_A53, _A55, _A72, _A76 = 0xD03, 0xD05, 0xD08, 0xD0B
# /proc/cpuinfo of these cores. The Raspberry Pi's BCM2837 and BCM2711 come without the cryptography extension.
_V8_0 = ("fp", "asimd", "crc32", "cpuid")
_V8_2 = (*_V8_0, "aes", "pmull", "sha1", "sha2", "atomics", "fphp", "asimdhp", "asimdrdm", "lrcpc", "dcpop", "asimddp")


target_error = partial(UserError, code=Code.NO_SUCH_TARGET)


class ForeignTargetError(UserError):
    """The target is for another kind of machine than the phone."""

    code = "foreign_target"


class UnknownTargetError(UserError):
    """The phone has no target of that name."""

    code = Code.NO_SUCH_TARGET


@dataclass(frozen=True, slots=True)
class LinuxBoard:
    """A Linux board that is known by name."""

    title: str
    parts: tuple[int, ...]  # MIDR part numbers of ARM's, the fastest first
    cores: int
    features: tuple[str, ...]  # as its kernel states them
    source: str
    bits: int = 64


BOARDS: Mapping[str, LinuxBoard] = {
    "rpi3": LinuxBoard("Raspberry Pi 3, 64-bit system", (_A53,), 4, _V8_0, "BCM2837: raspberrypi.com/documentation"),
    "rpi3-32": LinuxBoard("Raspberry Pi 3, 32-bit system", (_A53,), 4, _V8_0, "as rpi3; armhf packages", bits=32),
    "rpi4": LinuxBoard("Raspberry Pi 4, 64-bit system", (_A72,), 4, _V8_0, "BCM2711: raspberrypi.com/documentation"),
    "rpi4-32": LinuxBoard("Raspberry Pi 4, 32-bit system", (_A72,), 4, _V8_0, "as rpi4; armhf packages", bits=32),
    "rpi5": LinuxBoard("Raspberry Pi 5", (_A76,), 4, _V8_2, "BCM2712: raspberrypi.com/documentation"),
    "rk3399": LinuxBoard("Rockchip RK3399 (ROCK Pi 4, NanoPi M4)", (_A72, _A53), 6, _V8_0, "Linux rk3399.dtsi"),
    "rk3588": LinuxBoard("Rockchip RK3588 (ROCK 5)", (_A76, _A55), 8, _V8_2, "Linux rk3588-base.dtsi"),
}
# Boards and phones of TVM's tutorials by the names of `tvm.target.arm_cpu`; rk3399 is a board above.
_TUTORIALS: Mapping[str, Target] = {
    "rasp3b": {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mattr": ["+neon"]},
    "rasp4b": {"kind": "llvm", "mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a72", "mattr": ["+neon"]},
    "rasp4b64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "mattr": ["+neon"]},
    "pynq": {"kind": "llvm", "mtriple": "armv7a-linux-eabi", "mcpu": "cortex-a9", "mattr": ["+neon"]},
    "ultra96": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53", "mattr": ["+neon"]},
    **{
        phone: {"kind": "llvm", "mtriple": "aarch64-linux-android", "mattr": ["+neon"]}
        for phone in ("pixel2", "mate10", "mate10pro", "p20", "p20pro")
    },
}
# Whole architectures: code that every phone of that ABI runs, tuned for none.
_ARCHITECTURES = {
    "android-arm64": "arm64-v8a", "android-armv7": "armeabi-v7a", "android-x86_64": "x86_64", "android-x86": "x86",
}  # fmt: skip
_LINUX: Mapping[str, Target] = {
    "linux-arm64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
    "linux-armv7": {"kind": "llvm", "mtriple": "armv7a-linux-gnueabihf", "mattr": ["+vfp3d16"]},
    "linux-x86_64": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"},
}
NAMES = (*BOARDS, *_TUTORIALS, *_ARCHITECTURES, *_LINUX)  # that need no phone


def named_target(text: str) -> Target:
    """The target that a text means without any phone: a board, an architecture, a TVM tag, or a dict as JSON.

    A CPU may lack mtriple (`target_here` takes it for this host's), a GPU its host.

    Raises:
        UserError: there is no such name, it is empty, or the JSON is none.
    """
    if not text.strip():
        raise target_error("the target is empty", hint="--target host, or another name")
    if text in BOARDS:
        return _of_board(BOARDS[text])
    if text in _ARCHITECTURES:
        return targets_of(_ARCHITECTURES[text], CpuFacts(), "", virtual=False)["cpu"]
    if text in _LINUX:
        return dict(_LINUX[text])
    custom = _custom(text)
    if custom is not None:
        return custom
    if text in GPU_TARGETS:
        raise target_error(
            f"without a phone the CPU beside the GPU is unknown for {text!r}",
            hint=f"--on SELECTOR, or name it: '{_written(text)} -mtriple=aarch64-linux-android'",
        )
    guess = _guess(text, (*NAMES, *GPU_TARGETS))
    raise target_error(
        f"there is no target {text!r} without a phone",
        hint=f"{guess}names: host, {', '.join(NAMES)}; a TVM tag, a dict as JSON, or --on SELECTOR with a phone's",
    )


def target_here(text: str, host_target: Callable[[], Target]) -> Target:
    """The target that a text means on this host: `host`, or as `named_target`, without mtriple for this host's CPU.

    Raises:
        UserError: there is no such target.
    """
    if text == HOST:
        return host_target()
    target = named_target(text)
    cpu = target.get("host", target)
    is_complete = not isinstance(cpu, Mapping) or "mtriple" in cpu
    return target if is_complete else _with_machine(target, host_target())


def target_on(text: str, own: Mapping[str, object], phone: str) -> object:
    """The target that a text means on a phone: one of its `own` names, a TVM tag, or a dict as JSON.

    A tag or dict of a GPU gets the phone's CPU as its host; a CPU's lacks nothing that the phone's own has.

    Raises:
        UnknownTargetError: the phone has no such name, or no GPU.
        UserError: the JSON is none, or an option has no value.
        ForeignTargetError: it is for another architecture or platform than the phone's.
    """
    if text in own:
        return own[text]
    custom, cpu = _custom(text), own.get("cpu")
    if custom is None or not isinstance(cpu, Mapping) or (_is_for_gpu(custom) and not own.keys() & set(GPU_TARGETS)):
        raise _unknown_on(text, own, phone)
    completed = _with_machine(custom if custom.get("kind") == "llvm" else {"host": dict(cpu), **custom}, cpu)
    _check_machine(text, completed, cpu, phone)
    return completed


def _with_machine(target: Mapping[str, Any], cpu: Mapping[str, Any]) -> Target:
    """The target, its CPU part with the mtriple and num-cores of `cpu` where it has none; a bare `llvm` is `cpu`."""
    if isinstance(host := target.get("host"), Mapping):
        return {**target, "host": host if "mtriple" in host else _with_machine(host, cpu)}
    if target.get("kind") != "llvm":
        return dict(target)
    if target == {"kind": "llvm"}:
        return dict(cpu)
    return {**{name: cpu[name] for name in ("mtriple", "num-cores") if name in cpu}, **target}


def why_not_on(text: str, phones: Sequence[tuple[str, Mapping[str, object], str]]) -> tuple[str, str]:
    """Why none of some phones has a target, one sentence after "has no such target", and a hint.

    Args:
        text: what was typed; no phone has it.
        phones: name, own targets and GPU (family and model; "" when not known) of each.
    """
    own = sorted({target for _, targets, _ in phones for target in targets})
    listing = f"targets: {', '.join(own) or 'none'}"
    if text in (*BOARDS, *_ARCHITECTURES, *_LINUX):
        return "that is a name for what is compiled without a phone", f"farm compile --target {text}; {listing}"
    if text not in GPU_TARGETS and not _is_for_gpu(_custom(text) or {}):
        return "there is no target of that name", _guess(text, {*own, *GPU_TARGETS, *NAMES}) + listing
    shown = [_why_not_on_gpu(text, *each) for each in phones[:_SHOWN]]
    more = [f"and {len(phones) - _SHOWN} more"] if len(phones) > _SHOWN else []
    needs = ", and CLML needs a TVM that was built with USE_CLML (farm doctor)" if text == CLML else ""
    return "; ".join([*shown, *more]) + needs, f"{listing}; a virtual phone runs on its host, without the GPU it shows"


def _why_not_on_gpu(text: str, name: str, targets: Mapping[str, object], gpu: str) -> str:
    if text == CLML and "adreno" in targets:
        return f"{name} is a virtual phone, which has no CLML"
    if gpu and targets.keys() & set(GPU_TARGETS):
        return f"{name} has {gpu}, which it is not for"
    return f"{name} has no GPU that is known" + (f" to be usable ({gpu})" if gpu else "")


def _is_for_gpu(custom: Mapping[str, Any]) -> bool:
    """Whether a target that `_custom` has read is for a phone's GPU."""
    return custom.get("kind") in GPU_TARGETS or custom.get("tag") in ADRENO_TAGS.values()


def _guess(text: str, names: Collection[str]) -> str:
    """'did you mean NAME? ', or "" where no name is near."""
    near = [CLML] if "clml" in text else nearest(text, names)  # never one without what was asked for
    return f"did you mean {near[0]!r}? " if near else ""


def _written(name: str) -> str:
    """A GPU target's name with its device as an option, as tvmc takes it."""
    return f"opencl -device={name}" if name in ADRENO_TAGS else name


def _unknown_on(text: str, own: Mapping[str, object], phone: str) -> UnknownTargetError:
    of_gpu = text in GPU_TARGETS or _is_for_gpu(_custom(text) or {})
    guess = "" if of_gpu else _guess(text, {*own, *GPU_TARGETS})
    no_gpu = "; it has no GPU that is known, as virtual phones have none" if not own.keys() & set(GPU_TARGETS) else ""
    listing = f"{guess}its targets: {', '.join(own) or 'none'}"
    meant_gpu = of_gpu or any(repr(name) in guess for name in GPU_TARGETS)
    return UnknownTargetError(f"{phone} has no target {text!r}", hint=listing + (no_gpu if meant_gpu else ""))


def _of_board(board: LinuxBoard) -> Target:
    parts = tuple(arm_part(_ARM_LTD, part) for part in board.parts)
    facts = CpuFacts(features=board.features, cores=board.cores, lead=parts[0], parts=parts)
    return arm_linux_target(facts, board.bits)


def _custom(text: str) -> dict[str, Any] | None:
    """A name of TVM's tutorials, a tag, a dict, or a string as tvmc takes it; None: it looks like none of them."""
    if text in _TUTORIALS:
        return dict(_TUTORIALS[text])
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise target_error(f"the target is no JSON: {error}", hint='such as {"kind": "opencl"}') from error
        if not isinstance(fields, dict) or not ("kind" in fields or "tag" in fields):
            raise target_error("the target names no kind", hint='such as {"kind": "opencl"}')
        return fields
    device, *host = _HOST_PART.split(text, maxsplit=1)
    if host:
        return _of_options(device) | {"host": _of_options(host[0])}
    if " -" in text or text == "llvm":
        return _of_options(text)
    return {"tag": text} if _TAG.fullmatch(text) else None


def _of_options(text: str) -> dict[str, Any]:
    """The dict of a string as tvmc and TVM before 0.20 take it: `llvm -mcpu=cortex-a76 -mattr=+neon,+dotprod`.

    Raises:
        UserError: an option has no value.
    """
    kind, *options = text.replace(" --", " -").split()
    fields: dict[str, Any] = {"kind": kind}
    for option in options:
        name, equals, value = option.removeprefix("-").partition("=")
        if not option.startswith("-") or not (equals and name and value):
            raise target_error(
                f"the target {text!r} has an option without a value: {option}",
                hint="such as: llvm -mcpu=cortex-a76 -mattr=+neon,+dotprod",
            )
        fields["mtriple" if name == "target" else name] = (  # TVM before 0.8 called it so
            value.split(",") if name in ("mattr", "keys", "libs") else int(value) if value.isdigit() else value
        )
    if kind != "llvm" and "mtriple" in fields:  # of the CPU beside the GPU
        fields["host"] = {"kind": "llvm", "mtriple": fields.pop("mtriple")}
    device = str(fields.pop("device", ""))
    if kind == "opencl" and device in ADRENO_TAGS:
        return {"tag": ADRENO_TAGS[device]} | {name: value for name, value in fields.items() if name != "kind"}
    if device and device != "arm_cpu":  # the keys that -mtriple gives anyway
        fields["device"] = device
    fields.pop("model", None)  # the logs of AutoTVM were found by it
    return fields


def _check_machine(text: str, target: Mapping[str, Any], cpu: Mapping[str, Any], phone: str) -> None:
    host = target.get("host", target)
    triple = host.get("mtriple") if isinstance(host, Mapping) else None
    if triple is not None and _machine(str(triple)) != _machine(str(cpu.get("mtriple", ""))):
        raise ForeignTargetError(
            f"the target {text} is for {triple}, and {phone} is {cpu.get('mtriple')}",
            hint="leave out mtriple: the phone's own is taken",
        )


def _machine(triple: str) -> tuple[str, bool]:
    first = triple.partition("-")[0]
    known = {"arm64": "aarch64", "armv7l": "arm", "armv7a": "arm", "armv7": "arm"}
    return known.get(first, first), "android" in triple
