"""Targets by what people type: a name, a TVM tag, or a dict as JSON. Pure; imports no TVM.

Names are those of a phone (DeviceIdentity.targets), and without a phone those of boards and of whole architectures. A
board has no Android properties to read: its cores are known by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.core.errors import UserError
from farm.core.selector import nearest
from farm.fleet.cpu import CpuFacts, arm_part
from farm.fleet.targets import GPU_TARGETS, Target, arm_linux_target, targets_of

_TAG = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)+")
_SHOWN = 3  # phones whose reason is told
_ARM = 0x41  # ARM's own cores, by MIDR implementer
_A53, _A55, _A72, _A76 = 0xD03, 0xD05, 0xD08, 0xD0B
# /proc/cpuinfo of these cores. The Raspberry Pi's BCM2837 and BCM2711 come without the cryptography extension.
_V8_0 = ("fp", "asimd", "crc32", "cpuid")
_V8_2 = (*_V8_0, "aes", "pmull", "sha1", "sha2", "atomics", "fphp", "asimdhp", "asimdrdm", "lrcpc", "dcpop", "asimddp")


class UnknownTargetError(UserError):
    """There is no such target."""

    code = "no_target"


class ForeignTargetError(UserError):
    """The target is for another kind of machine than the phone."""

    code = "foreign_target"


@dataclass(frozen=True, slots=True)
class Board:
    """A Linux board that is known by name."""

    title: str
    parts: tuple[int, ...]  # MIDR part numbers of ARM's, the fastest first
    cores: int
    features: tuple[str, ...]  # as its kernel states them
    source: str
    bits: int = 64


BOARDS: Mapping[str, Board] = {
    "rpi3": Board("Raspberry Pi 3, 64-bit system", (_A53,), 4, _V8_0, "BCM2837: raspberrypi.com/documentation"),
    "rpi3-32": Board("Raspberry Pi 3, 32-bit system", (_A53,), 4, _V8_0, "as rpi3; armhf packages", bits=32),
    "rpi4": Board("Raspberry Pi 4, 64-bit system", (_A72,), 4, _V8_0, "BCM2711: raspberrypi.com/documentation"),
    "rpi4-32": Board("Raspberry Pi 4, 32-bit system", (_A72,), 4, _V8_0, "as rpi4; armhf packages", bits=32),
    "rpi5": Board("Raspberry Pi 5", (_A76,), 4, _V8_2, "BCM2712: raspberrypi.com/documentation"),
    "rk3399": Board("Rockchip RK3399 (ROCK Pi 4, NanoPi M4)", (_A72, _A53), 6, _V8_0, "Linux rk3399.dtsi"),
    "rk3588": Board("Rockchip RK3588 (ROCK 5)", (_A76, _A55), 8, _V8_2, "Linux rk3588-base.dtsi"),
}
# Whole architectures: code that every phone of that ABI runs, tuned for none.
_GENERIC = {
    "android-arm64": "arm64-v8a", "android-armv7": "armeabi-v7a", "android-x86_64": "x86_64", "android-x86": "x86",
}  # fmt: skip
_LINUX: Mapping[str, Target] = {
    "linux-arm64": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
    "linux-armv7": {"kind": "llvm", "mtriple": "armv7a-linux-gnueabihf", "mattr": ["+vfp3d16"]},
    "linux-x86_64": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"},
}
NAMES = (*BOARDS, *_GENERIC, *_LINUX)  # that need no phone


def named_target(text: str) -> Target:
    """The target that a text means without any phone: a board, an architecture, a TVM tag, or a dict as JSON.

    Raises:
        UnknownTargetError: there is no such name, or the JSON is none.
    """
    if text in BOARDS:
        return _of_board(BOARDS[text])
    if text in _GENERIC:
        return targets_of(_GENERIC[text], CpuFacts(), "", virtual=False)["cpu"]
    if text in _LINUX:
        return dict(_LINUX[text])
    custom = _custom(text)
    if custom is not None:
        return custom
    if text in GPU_TARGETS:
        raise UnknownTargetError(
            f"without a phone nobody knows which CPU is beside the GPU of {text!r}",
            hint='--on SELECTOR, or a dict: {"kind": "opencl", "host": {"kind": "llvm", "mtriple": ...}}',
        )
    near = nearest(text, (*NAMES, *GPU_TARGETS))
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise UnknownTargetError(
        f"there is no target {text!r} without a phone",
        hint=f"{guess}names: host, {', '.join(NAMES)}; a TVM tag, a dict as JSON, or --on SELECTOR with a phone's",
    )


def target_on(text: str, own: Mapping[str, object], phone: str) -> object:
    """The target that a text means on a phone: one of its `own` names, a TVM tag, or a dict as JSON.

    A tag or dict of a GPU gets the phone's CPU as its host; a CPU's lacks nothing that the phone's own has.

    Raises:
        UnknownTargetError: the phone has no such name, or the JSON is none.
        ForeignTargetError: it is for another architecture or platform than the phone's.
    """
    if text in own:
        return own[text]
    custom, cpu = _custom(text), own.get("cpu")
    if custom is None or not isinstance(cpu, Mapping):
        raise _unknown_on(text, own, phone)
    if custom.get("kind") == "llvm":
        completed = {**{name: cpu[name] for name in ("mtriple", "num-cores") if name in cpu}, **custom}
    else:
        completed = {"host": dict(cpu), **custom}
    _check_machine(text, completed, cpu, phone)
    return completed


def why_not_on(text: str, phones: Sequence[tuple[str, Mapping[str, object], str]]) -> tuple[str, str]:
    """Why none of some phones has a target, one sentence after "has no such target", and a hint.

    Args:
        text: what was typed; no phone has it.
        phones: name, own targets and GPU (family and model; "" when not known) of each.
    """
    own = sorted({target for _, targets, _ in phones for target in targets})
    listing = f"targets: {', '.join(own) or 'none'}"
    if text in (*BOARDS, *_GENERIC, *_LINUX):
        return "that is a name for what is compiled without a phone", f"farm compile --target {text}; {listing}"
    if text not in GPU_TARGETS:
        near = nearest(text, {*own, *GPU_TARGETS, *NAMES})
        guess = f"did you mean {near[0]!r}? " if near else ""
        return "there is no target of that name", f"{guess}{listing}"
    shown = [
        f"{name} has {gpu}, which it is not for" if gpu and targets.keys() & set(GPU_TARGETS)
        else f"{name} has no GPU that is known" + (f" to be usable ({gpu})" if gpu else "")
        for name, targets, gpu in phones[:_SHOWN]
    ]  # fmt: skip
    more = [f"and {len(phones) - _SHOWN} more"] if len(phones) > _SHOWN else []
    needs = ", and CLML needs a TVM that was built with USE_CLML (farm doctor)" if text == "adreno-clml" else ""
    return "; ".join([*shown, *more]) + needs, f"{listing}; a virtual phone runs on its host, without the GPU it shows"


def _unknown_on(text: str, own: Mapping[str, object], phone: str) -> UnknownTargetError:
    near = nearest(text, {*own, *GPU_TARGETS}) if text not in GPU_TARGETS else ()
    guess = f"did you mean {near[0]!r}? " if near else ""
    no_gpu = "; it has no GPU that is known, as virtual phones have none" if not own.keys() & set(GPU_TARGETS) else ""
    listing = f"{guess}its targets: {', '.join(own) or 'none'}"
    meant_gpu = text in GPU_TARGETS or bool(set(near) & set(GPU_TARGETS))
    return UnknownTargetError(f"{phone} has no target {text!r}", hint=listing + (no_gpu if meant_gpu else ""))


def _of_board(board: Board) -> Target:
    parts = tuple(arm_part(_ARM, part) for part in board.parts)
    facts = CpuFacts(features=board.features, cores=board.cores, lead=parts[0], parts=parts)
    return arm_linux_target(facts, board.bits)


def _custom(text: str) -> dict[str, Any] | None:
    """A tag or a dict; None: it looks like neither."""
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise UnknownTargetError(f"the target is no JSON: {error}", hint='such as {"kind": "opencl"}') from error
        if not isinstance(fields, dict) or not ("kind" in fields or "tag" in fields):
            raise UnknownTargetError("the target names no kind", hint='such as {"kind": "opencl"}')
        return fields
    return {"tag": text} if _TAG.fullmatch(text) else None


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
