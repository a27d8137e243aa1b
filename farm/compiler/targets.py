"""TVM's targets from the names of people and of DeviceIdentity.targets, and which tuning records are for a target.

A record is a schedule: loops, vector lengths and intrinsics chosen for one kind of chip. It is for a target when these
are the same, in TVM's own spelling of both targets, for compiling (--records, --records-b) and tuning (--prior) alike:

- the kind (llvm, opencl ...) and its keys (adreno, arm_cpu ...): they choose the schedule rules;
- of a CPU, the architecture (the first word of mtriple), mcpu and mattr: they decide which vector instructions exist;
- of a GPU, how many threads and how much shared memory a block may have, and the warp: no schedule may exceed them.

Not compared: the rest of mtriple (a schedule does not know the system), num-cores (it changes which schedule is fast,
and any of them runs), the host of a GPU's target.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tvm
from tvm.target import codegen

from farm.bundle.model import Abi, Platform
from farm.common.errors import Code, ModelError, UserError
from farm.common.selector import nearest
from farm.compiler.record_files import BadRecordsError, read_records, write_records
from farm.compiler.records import RecordSet, pruned
from farm.compiler.tvm_errors import first_line

_ABIS = {
    "aarch64": Abi.ARM64, "arm64": Abi.ARM64, "arm": Abi.ARMV7, "armv7a": Abi.ARMV7, "armv7l": Abi.ARMV7,
    "x86_64": Abi.X86_64, "i686": Abi.X86, "riscv64": Abi.RISCV64,
}  # fmt: skip


_UNKNOWN_OPTION = re.compile(r"Unknown config option '([^']+)'\. Known options: ([^.\n]+)")
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
        if unknown := _UNKNOWN_OPTION.search(str(error)):
            near = nearest(unknown[1], re.findall(r"'([^']+)'", unknown[2]))
            hint = f"did you mean {near[0]!r}?" if near else ""
            raise TargetError(f"TVM's targets have no option {unknown[1]!r}", hint=hint) from error
        raise TargetError(f"TVM does not take the target {value!r}: {first_line(error)}") from error


def abi_of(target: object) -> tuple[Abi, Platform]:
    """For which machine and platform a target's CPU code is.

    Raises:
        TargetError: no such phone exists, or the target does not say.
    """
    tvm_target = target_from(target)
    host = tvm_target.host or tvm_target
    triple = str(host.attrs.get("mtriple", ""))
    abi = _ABIS.get(triple.partition("-")[0])
    if not triple:
        raise TargetError(
            f"the target {described(tvm_target)} does not say for which CPU its host code is",
            hint="add -mtriple=aarch64-linux-android (or another), or --on PHONE",
        )
    if abi is None:
        raise TargetError(f"the farm cannot link for {triple}", hint=f"it can for {', '.join(_ABIS)}")
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


OWN_TEXTURES = "--target adreno --texture: operators with textures as farm builds them"


def is_texture(target: object) -> bool:
    """Whether code for it keeps tensors in OpenCL images, which TVM 0.26 and 0.27 do wrongly (docs/facts.md)."""
    return "texture" in target_from(target).keys


def check_target(target: Any) -> None:
    """Refuse targets that this TVM has no code generator for, and CPUs and features that its LLVM does not know.

    Raises:
        TargetRefusedError: it has none.
        TargetError: LLVM does not know a CPU or feature, and would compile without it.
    """
    check_cpu(target.host or target)
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


def check_texture_target(target: Any, *, records: bool) -> None:
    """Refuse textures for a target that has none, or together with tuning records.

    Raises:
        TargetRefusedError: farm makes none for it, or no record would apply.
        TargetError: as `check_target`.
    """
    check_target(target)
    if target.kind.name != "opencl" or {"texture", "clml"} & set(target.keys):
        raise TargetRefusedError(f"farm makes no textures for {described(target)}", hint="--target adreno --texture")
    if records:
        raise TargetRefusedError("tuning records are for operators without textures", hint="leave out --texture")


def check_cpu(target: Any) -> None:
    """Refuse an mcpu or mattr that LLVM does not know: it compiles for a plain CPU then and continues.

    Raises:
        TargetError: names it, with near ones.
    """
    if target.kind.name != "llvm":
        return
    mcpu, features = target.attrs.get("mcpu"), [str(each) for each in target.attrs.get("mattr") or ()]
    triple = str(target.attrs.get("mtriple") or "")
    machine = {"kind": "llvm"} | ({"mtriple": triple} if triple else {})
    known = [str(name) for name in codegen.llvm_get_cpu_archlist(tvm.target.Target(machine))]
    if mcpu and known and mcpu not in (*known, "generic"):
        near = nearest(str(mcpu), known)
        hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(known[:8])} ..."
        raise TargetError(f"LLVM does not know the CPU {str(mcpu)!r} of {triple or 'this host'}", hint=hint)
    unknown = [each for each in features if each[:1] not in "+-"] or _ignored_features(machine, features)
    if unknown:
        raise TargetError(
            f"LLVM does not know the feature {unknown[0]!r} of {triple or 'this host'}",
            hint="mattr has +feature and -feature, as LLVM calls them: +dotprod, -sve",
        )


def _ignored_features(machine: Mapping[str, str], features: Sequence[str]) -> list[str]:
    """Those that LLVM does not know: it ignores them and only prints that."""
    with tempfile.TemporaryFile() as printed:
        stderr = os.dup(2)
        os.dup2(printed.fileno(), 2)
        try:
            tvm.target.Target({**machine, "mattr": list(features)})
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        printed.seek(0)
        return re.findall(r"'([^']+)' is not a recognized feature", printed.read().decode(errors="replace"))


def generators() -> tuple[str, ...]:
    """Target kinds that the farm can run and this TVM generates code for."""
    found = {kind: tvm.get_global_func(f"target.build.{kind}", allow_missing=True) for kind in DEVICES}
    return tuple(kind for kind, build in found.items() if build is not None)


def host_target() -> dict[str, Any]:
    """The machine that this runs on: its CPU as LLVM names it, without features that this machine hides, and its cores.

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


def check_here(target: object) -> None:
    """Refuse a target whose code this host cannot run.

    Raises:
        TargetError: it is for another architecture or platform.
        ModelError: TVM here has no such device.
    """
    for_this, here = (f"{abi} ({system})" for abi, system in map(abi_of, (target, host_target())))
    if for_this != here:
        raise TargetError(
            f"this target is for {for_this}, and this host is {here}", hint="--target host, or --on PHONE"
        )
    device, there = device_of(target), False
    with suppress(Exception):  # without libOpenCL.so TVM's runtime raises instead of answering no
        there = tvm.runtime.device(device, 0).exist
    if not there:
        raise ModelError(f"TVM here has no {device} device", Code.HOST_RUN_FAILED, hint="--target host")


_CPU = ("mcpu", "mattr")
_GPU = ("max_num_threads", "max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size")


class ForeignRecordsError(BadRecordsError):
    """All records are for other targets, or for other models."""

    code = "foreign_records"


def same_target(one: object, other: object) -> bool:
    """Whether schedules for one target are for the other (TVM targets, or arguments of `target_from`)."""
    return _compared(one) == _compared(other)


def records_for(target: object, found: RecordSet, name: str = "the records") -> tuple[RecordSet, str]:
    """The records that are for `target`, and a sentence on those that are left out; empty when none is.

    Raises:
        ForeignRecordsError: there are some, and none of them is.
        TargetError: TVM does not know `target`.
    """
    wanted = _compared(target)
    fits: dict[str, bool] = {}  # by a record's target, as JSON
    foreign: Counter[str] = Counter()  # by what the others are for
    kept = []
    for record in found.records:
        key = json.dumps(record.target, sort_keys=True)
        if key not in fits:
            try:
                fits[key] = _compared(record.target) == wanted
            except TargetError:
                fits[key] = False
        if fits[key]:
            kept.append(record)
        else:
            foreign[target_text(record.target)] += 1
    if not foreign:
        return found, ""
    others = ", ".join(f"{count} for {its}" for its, count in foreign.items())
    if not kept:
        raise foreign_records_error(name, target, others)
    left_out = f"{foreign.total()} of {len(found.records)} records are left out: {others}"
    return found.with_records(tuple(kept)), left_out


def foreign_records_error(name: str, target: object, others: str) -> ForeignRecordsError:
    """The error with the target that records should be for and the ones they are for."""
    return ForeignRecordsError(
        f"{name}: no record is for {target_text(target)}: {others}",
        hint="farm tune makes records for this target; records fit one CPU model or GPU only",
    )


def unpack_records(source: Path | bytes, target: object, folder: Path, name: str = "") -> tuple[str, ...]:
    """Write the records that compiling for `target` needs into a folder, as `Recipe.records` takes it.

    Returns:
        sentences on damaged lines and on records that are left out.

    Raises:
        BadRecordsError: there are no records, or none for this target.
    """
    reading = read_records(source, name)
    where = name or (source.name if isinstance(source, Path) else "the records")
    kept, left_out = records_for(target, reading.set, where)
    write_records(pruned(kept), folder)
    return (*reading.problems("the records"), *filter(None, (left_out,)))


def _compared(target: object) -> tuple[object, ...]:
    """The parts of a target that must be equal."""
    known = _tvm(target)
    attributes = known.attrs
    architecture = str(attributes.get("mtriple", "")).partition("-")[0]
    cpu = (architecture, *(_plain(attributes.get(name)) for name in _CPU)) if known.kind.name == "llvm" else ()
    gpu = tuple(_plain(attributes.get(name)) for name in _GPU)
    return (str(known.kind.name), frozenset(map(str, known.keys)), cpu, gpu)


def _plain(value: Any) -> object:
    if value is None or isinstance(value, str | int | float):
        return value or None
    return frozenset(map(str, value)) or None


def _tvm(target: object) -> Any:
    return target if not isinstance(target, Mapping | str) else target_from(target)


def target_text(target: object) -> str:
    """A target in a few words, with its features."""
    try:
        known = _tvm(target)
        features = ",".join(map(str, known.attrs.get("mattr") or ()))
        return " ".join(filter(None, (described(known), features)))
    except TargetError:
        return json.dumps(target)[:80]
