"""The expected outputs of a model, and how far a phone may be off.

Two references, because one of them is TVM itself: an evaluator that shares no code with TVM decides where the model's
format has one (SourceModel.reference); the same Relax module compiled for this host tells, when a phone is wrong,
whether the phone or TVM is at fault. Where these two differ, a second evaluator decides, or the model's parts are
compared one by one: evaluators have defects, too.

Both compute in float32. A build in another precision that leaves the limits is computed by this host in that precision,
too: if the host's numbers are the phone's, or overflow, the precision is at fault and no phone.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tvm
from tvm import relax

from farm.common.errors import Code, ModelError, PhoneError
from farm.compiler.compile import Recipe, compile_model
from farm.compiler.files import replaced
from farm.compiler.inputs import write_arrays
from farm.compiler.model import Array, Evaluated, ImportedModel, Reference, TensorSpec, typed
from farm.compiler.relax_passes import FLOAT32
from farm.results.series import OWN_REFERENCE

REFERENCE = 1  # raise it when references are computed otherwise: older kept ones are then not used
HOST_TARGET = {"kind": "llvm"}

# Allowed: |got - wanted| <= RTOL |wanted| + ATOL max|wanted|. float32 sums in another order differ by about 1e-6 of the
# largest term; 1e-3 leaves room for fast math and fused operations, and still catches a wrong lane or a missing layer.
RTOL = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
ATOL = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
# Integers of these types are real numbers in steps: a sum that ends between two steps is rounded to either. Other
# integers are places and counts, and must be equal.
QUANTISED = frozenset({"int8", "uint8", "int16", "uint16"})
STEP = 1

Precise = Callable[[], Sequence[Array]]
"""The outputs that this host computes in a build's precision; empty if it cannot."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far outputs are from the expected ones; `excess` above 1 is too far."""

    ok: bool
    max_abs_error: float
    max_rel_error: float  # of the output's largest magnitude
    excess: float  # the worst |got - wanted| over what is allowed there
    output: str = ""  # the worst output
    problem: str = ""  # a shape or a type that differs; how many integers differ, and by how much

    @property
    def words(self) -> str:
        """How far, for people."""
        return self.problem or f"off by {self.max_abs_error:.3g} ({self.excess:.3g} times the limit)"


def reference_for(model: ImportedModel, inputs: Mapping[str, Array], cache: Path) -> Reference:
    """Both references, from `cache` or computed now.

    Raises:
        ModelError: TVM cannot convert or compile the model for this host.
    """
    digest = hashlib.sha256(f"{REFERENCE} {model.key}".encode())
    for name, array in sorted(inputs.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    path = cache / f"reference-{digest.hexdigest()}.npz"
    kept = _kept(path, model)
    if kept is not None:
        return kept
    with within_memory(model.name, model.inputs):
        host = tuple(_on_host(model, inputs))
        reference = _decided(model, _in_file_types(model, inputs), host)
    _save(path, reference)
    return reference


@contextlib.contextmanager
def within_memory(name: str, inputs: Sequence[TensorSpec]) -> Iterator[None]:
    """Where arrays of a model's size are made on this host.

    Raises:
        ModelError: there is no room for them.
    """
    needs = sum(math.prod(map(int, each.shape)) * each.dtype.itemsize for each in inputs)
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        if needs > has:  # numpy has errors of its own for sizes that no address space has
            raise MemoryError
        yield
    except Exception as error:  # TVM raises its own kinds
        if not isinstance(error, MemoryError) and "std::bad_alloc" not in str(error):
            raise
        raise ModelError(
            f"{name}: this host has too little memory to compute what the outputs should be: the inputs alone are "
            f"{needs / 1e6:,.0f} MB, and it has {has / 1e6:,.0f} MB in all",
            Code.HOST_OUT_OF_MEMORY,
            hint="a smaller --shape, or a host with more memory",
        ) from error


def compare(
    got: Sequence[Array], wanted: Sequence[Array], names: Sequence[str], precision: str = FLOAT32
) -> Difference:
    """How far `got` is from `wanted`, output by output; NaN and infinity must be in the same places.

    `precision` is what was computed in: half precision is allowed its own error whatever type the outputs have.
    """
    if len(got) != len(wanted):
        return _mismatch("", f"{len(got)} outputs instead of {len(wanted)}")
    worst = Difference(ok=True, max_abs_error=0.0, max_rel_error=0.0, excess=0.0)
    for name, ours, right in zip(names, got, wanted, strict=False):
        if ours.shape != right.shape or ours.dtype != right.dtype:
            return _mismatch(name, f"{ours.dtype}{list(ours.shape)} instead of {right.dtype}{list(right.shape)}")
        one = _compare(ours, right, name, precision)
        if one.excess > worst.excess or not one.ok:
            worst = one
        if not worst.ok:
            return worst
    return worst


def judge(
    got: Sequence[Array],
    reference: Reference,
    names: Sequence[str],
    precision: str = FLOAT32,
    precise: Precise = tuple,
) -> dict[str, Any]:
    """The comparison as a result's fields.

    Args:
        got: the outputs.
        reference: what they should be, computed in float32.
        names: of the outputs.
        precision: of the build.
        precise: asked only where the outputs of a build in another precision are too far off.

    Raises:
        PhoneError: the outputs are too far off, and the phone alone computes so.
        ModelError: they are, and TVM on this host computes the same: it, the reference or the precision is wrong.
    """
    difference = compare(got, reference.outputs, names, precision)
    against_host = compare(got, reference.host_outputs, names, precision)
    if not difference.ok:
        where = f"output {difference.output!r}: {difference.words}"
        if against_host.ok and reference.independent:
            _blame_compiler(where, reference)
        finer = "float16_acc32 or float32" if precision == "float16" else FLOAT32
        if precision != FLOAT32 and (why := precision_at_fault(got, precise(), reference, names, precision)):
            raise ModelError(
                f"{precision} is too coarse for this model, {where}",
                Code.WRONG_PRECISION,
                hint=f"--precision {finer}; --locate names the operator",
                evidence=why,
            )
        raise PhoneError(f"wrong numbers, {where}", Code.WRONG_NUMBERS, hint=LOCATE_HINT)
    return {
        "max_abs_error": difference.max_abs_error,
        "max_rel_error": difference.max_rel_error,
        "numerics": {
            "reference": reference.by,
            "note": reference.note,
            "against_reference": _wire(difference),
            "against_host": _wire(against_host),
            "host_against_reference": _wire(compare(reference.host_outputs, reference.outputs, names)),
        },
    }


LOCATE_HINT = "farm run MODEL --locate names the first wrong operator, and tells phone from compiler"


def _blame_compiler(where: str, reference: Reference) -> NoReturn:
    if reference.disputed:
        raise ModelError(
            f"TVM and {reference.by} differ, {where}: {reference.note}",
            Code.DISPUTED_NUMBERS,
            hint="install onnxruntime into the toolchain's environment: it tells which of the two is right",
        )
    raise ModelError(
        f"wrong numbers, {where}; the phone agrees with TVM on this host, so TVM compiles the model wrongly",
        Code.MISCOMPILED,
        hint="another target or TVM version; report it to TVM with this model",
        evidence=f"the reference is computed by {reference.by}",
    )


def precision_at_fault(
    got: Sequence[Array], precise: Sequence[Array], reference: Reference, names: Sequence[str], precision: str
) -> str:
    """Why the precision is at fault for outputs that are too far off, and no phone; "": it is not.

    An output that overflows on this host judges no phone: sums in another order overflow elsewhere.
    """
    if not precise:
        return ""
    for name, ours, right in zip(names, precise, reference.outputs, strict=True):
        lost = int(np.count_nonzero(~_finite(ours) & _finite(right))) if ours.shape == right.shape else 0
        if lost:
            return f"on this host, too, {lost} of {ours.size} numbers of output {name!r} overflow in {precision}"
    if compare(got, precise, names, precision).ok:
        return f"this host computes the same numbers in {precision}"
    return ""


def host_outputs(model: ImportedModel, inputs: Mapping[str, Array], precision: str) -> tuple[Array, ...]:
    """What TVM computes on this host in a precision; empty if it cannot compile that."""
    try:
        return tuple(_on_host(model, inputs, precision))
    except ModelError:
        return ()


def flatten(outputs: Any) -> list[Array]:
    """The arrays in a Relax VM's result: a tensor, or nested tuples of them."""
    return [outputs.numpy()] if hasattr(outputs, "numpy") else [a for part in outputs for a in flatten(part)]


def _wire(difference: Difference) -> dict[str, Any]:
    """JSON has no infinity: where nothing can be measured there is None."""
    return {name: None if value in (np.inf, -np.inf) else value for name, value in asdict(difference).items()}


def _on_host(model: ImportedModel, inputs: Mapping[str, Array], precision: str = FLOAT32) -> list[Array]:
    executable = compile_model(model, Recipe(HOST_TARGET, precision))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return flatten(machine["main"](*(tvm.runtime.tensor(inputs[spec.name]) for spec in model.inputs)))


def _in_file_types(model: ImportedModel, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs, those that `--dtype` changed in the file's types."""
    return {spec.name: inputs[spec.name].astype(spec.dtype, copy=False) for spec in model.source.inputs}


def _decided(model: ImportedModel, inputs: Mapping[str, Array], host: tuple[Array, ...]) -> Reference:
    """The reference outputs, chosen by what TVM computes on this host."""
    names = [spec.name for spec in model.outputs]

    def agrees(evaluated: Evaluated) -> bool:
        return evaluated.outputs is not None and compare(host, evaluated.outputs, names).ok

    first = model.source.reference(inputs)
    if first.outputs is not None and agrees(first):
        return Reference(first.outputs, host, independent=True, by=first.by)
    second = model.source.second_reference(inputs)
    if second.outputs is not None and (first.outputs is None or agrees(second)):
        by = second.by if first.outputs is None else f"{second.by} ({first.by} computes otherwise)"
        return Reference(second.outputs, host, independent=True, by=by)
    if first.outputs is None:
        return Reference(host, host, independent=False, by=OWN_REFERENCE, note=first.by)
    by, note = first.by, ""
    if second.outputs is None:
        note = model.source.disputed_part(inputs)
    elif compare(second.outputs, first.outputs, names).ok:
        by = f"{first.by} and {second.by}"
    else:
        note = f"{second.by} computes a third result"
    return Reference(first.outputs, host, independent=True, by=by, note=note)


def _compare(got: Array, wanted: Array, name: str, precision: str) -> Difference:
    kind = str(wanted.dtype)
    if precision != FLOAT32 and kind in ("float32", "float64"):
        kind = "float16"
    if kind not in RTOL:
        return _compare_integers(got, wanted, name)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return _mismatch(name, "NaN or infinity in other places")
    if not finite.any():
        return Difference(ok=True, max_abs_error=0.0, max_rel_error=0.0, excess=0.0, output=name)
    apart_each, size = np.abs(a[finite] - b[finite]), np.abs(b[finite])
    peak = float(size.max())
    allowed = RTOL[kind] * size + ATOL[kind] * peak + np.finfo(np.float32).tiny
    excess, most = float((apart_each / allowed).max()), float(apart_each.max())
    return Difference(excess <= 1.0, most, most / peak if peak else most, excess, name)


def _compare_integers(got: Array, wanted: Array, name: str) -> Difference:
    differing = int(np.count_nonzero(got != wanted))
    if not differing:
        return Difference(ok=True, max_abs_error=0.0, max_rel_error=0.0, excess=0.0, output=name)
    apart = float(np.max(np.abs(got.astype(np.float64) - wanted.astype(np.float64))))
    excess = apart / STEP if str(wanted.dtype) in QUANTISED else np.inf
    size = f"{apart:.0f} step{'s' * (apart != 1)}" if str(wanted.dtype) in QUANTISED else f"{apart:.6g}"
    problem = f"{differing} of {wanted.size} integers differ, by {'up to ' * (differing > 1)}{size}"
    return Difference(excess <= 1.0, apart, apart, excess, name, problem)


def _finite(array: Array) -> Any:
    return np.isfinite(array.astype(np.float64))


def _mismatch(name: str, problem: str) -> Difference:
    return Difference(ok=False, max_abs_error=np.inf, max_rel_error=np.inf, excess=np.inf, output=name, problem=problem)


def _save(path: Path, reference: Reference) -> None:
    arrays = {f"output_{i}": array for i, array in enumerate(reference.outputs)}
    arrays |= {f"host_{i}": array for i, array in enumerate(reference.host_outputs)}
    about = {"independent": reference.independent, "by": reference.by, "note": reference.note}
    arrays |= {name: np.array(value) for name, value in about.items()}
    with replaced(path) as partial:
        write_arrays(partial, arrays)


def _kept(path: Path, model: ImportedModel) -> Reference | None:
    """One that was computed before; None: there is none, or it is damaged, as a power cut leaves files."""
    try:
        os.utime(path)  # wanted again: not to be deleted yet
        return _load(path, model.outputs)
    except Exception:  # noqa: BLE001 - no file, no zip, a wrong checksum, no array: numpy and zipfile have many words
        return None


def _load(path: Path, outputs: Sequence[TensorSpec]) -> Reference:
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # numpy leaves a bad one open

        def series(prefix: str) -> tuple[Array, ...]:
            names = (f"{prefix}_{i}" for i in range(len(outputs)))
            there = zip(names, outputs, strict=True)
            return tuple(typed(file[name], spec.dtype) for name, spec in there if name in file)

        return Reference(
            series("output"), series("host"), bool(file["independent"]), str(file["by"]), str(file["note"])
        )
