"""Compiles a bundle's golden kernels, and runs them on a phone.

Compiling is `python -m farm.worker.golden --abi ABI --platform PLATFORM --kinds cpu,opencl --out DIR`, run with the
bundle's toolchain: nothing but TVM, numpy and this package's plain modules is needed there. The last line on stdout is
JSON: `{"tvm_version", "ffi_version", "linker"}`, or `{"error": {message, hint, evidence}}` with exit code 1.

The kernels are small, but not trivial: a workspace, a tail that no vector width divides, an exponential from libm,
integer and float arithmetic. What must come out is computed with float64 in numpy, never by TVM.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from farm.bundle.model import (
    GOLDEN_FORMAT,
    GOLDEN_INDEX,
    KIND_CPU,
    KIND_OPENCL,
    Abi,
    CheckResult,
    Platform,
)
from farm.bundle.versions import installed_versions
from farm.common.errors import Code, FarmError, HostError
from farm.common.install import pip_install
from farm.compiler.link import exporter, find_linker

if TYPE_CHECKING:
    import numpy.typing as npt

SEED = 20_260_801  # any fixed number: the inputs are stored with the kernels
FLOAT32_EPSILON = 2.0**-23
SAMPLES = 100  # of a kernel's time, one run each: on a loaded host many of so short ones are undisturbed

# How many times the worst-case rounding error of the naive order may be off. A CPU sums in another order and fuses
# multiply-adds; a GPU's exp() may be off by several units (OpenCL 3.0 C specification, table of ULP values) or be the
# native one. A wrong kernel is off by many orders of magnitude more.
TOLERANCE_FACTOR = {KIND_CPU: 4.0, KIND_OPENCL: 64.0}

_TRIPLE_ATTRIBUTES: dict[Abi, dict[str, object]] = {
    Abi.ARM64: {"mattr": ["+neon"]},
    Abi.ARMV7: {"mattr": ["+neon"]},
    Abi.X86_64: {},
    Abi.X86: {"mattr": ["+sse2"]},
    Abi.RISCV64: {"mattr": ["+m", "+a", "+f", "+d", "+c"], "mabi": "lp64d"},
}
_TRIPLES: dict[tuple[Abi, Platform], str] = {
    (Abi.ARM64, Platform.ANDROID): "aarch64-linux-android",
    (Abi.ARM64, Platform.LINUX): "aarch64-linux-gnu",
    (Abi.ARMV7, Platform.ANDROID): "armv7a-linux-androideabi",
    (Abi.ARMV7, Platform.LINUX): "armv7a-linux-gnueabihf",
    (Abi.X86_64, Platform.ANDROID): "x86_64-linux-android",
    (Abi.X86_64, Platform.LINUX): "x86_64-linux-gnu",
    (Abi.X86, Platform.ANDROID): "i686-linux-android",
    (Abi.X86, Platform.LINUX): "i686-linux-gnu",
    (Abi.RISCV64, Platform.ANDROID): "riscv64-linux-android",
    (Abi.RISCV64, Platform.LINUX): "riscv64-linux-gnu",
}


@dataclass(frozen=True, slots=True)
class _Case:
    """One kernel: its tensor expression, its inputs, its expected output and the tolerance."""

    function: str
    build: Callable[[], list[Any]]  # the tensor expression's arguments, output last
    inputs: tuple[npt.NDArray[Any], ...]
    expected: npt.NDArray[Any]
    output_dtype: str
    rounding: float  # worst-case error of the naive summation in float32; 0: exact


def host_target(abi: Abi, platform: Platform) -> dict[str, object]:
    """TVM's target for the plainest CPU of an ABI: every phone of that ABI can run its code."""
    return {"kind": "llvm", "mtriple": _TRIPLES[abi, platform], **_TRIPLE_ATTRIBUTES[abi]}


def compile_golden(abi: Abi, platform: Platform, kinds: Sequence[str], out: Path) -> dict[str, str]:
    """Fill `out` with golden.json and, for each kind, a library and an .npz; returns TVM's version and linker."""
    try:
        import tvm
    except ImportError as error:
        raise HostError(
            f"{sys.executable} cannot import TVM: {error}",
            hint=f"name a Python that has TVM as the toolchain: {pip_install('tvm')}",
        ) from error
    import numpy as np

    fcompile = exporter(abi, platform)
    cases = _cases()
    kernels = {}
    for kind in kinds:
        functions = {case.function: _prim_func(case) for case in cases}
        module = tvm.IRModule(functions)
        target: Any = host_target(abi, platform)
        if kind == KIND_OPENCL:
            # Plain OpenCL, not a vendor's flavour: the bundle serves Adreno, Mali and others alike.
            target = tvm.target.Target({"kind": "opencl"}, host=target)
            module = _bound_to_threads(module, target)
        tvm.compile(module, target=target).export_library(str(out / f"{kind}.so"), fcompile=fcompile)
        arrays: dict[str, Any] = {
            f"{case.function}.in{index}": array for case in cases for index, array in enumerate(case.inputs)
        }
        arrays |= {f"{case.function}.out": case.expected for case in cases}
        np.savez(out / f"{kind}.npz", **arrays)
        kernels[kind] = {
            "library": f"{kind}.so",
            "expected": f"{kind}.npz",
            "cases": [
                {
                    "function": case.function,
                    "inputs": len(case.inputs),
                    "output_dtype": case.output_dtype,
                    "tolerance": case.rounding * TOLERANCE_FACTOR[kind],
                }
                for case in cases
            ],
        }
    versions = installed_versions(str(tvm.__version__))
    made = {"tvm_version": versions.tvm, "ffi_version": versions.ffi, "linker": find_linker(abi, platform).name}
    index = {"format": GOLDEN_FORMAT, "abi": abi, "platform": platform, **made, "kernels": kernels}
    (out / GOLDEN_INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
    return made


def run_golden(session: Any, golden_dir: Path, device_kind: str = KIND_CPU) -> CheckResult:
    """Run a bundle's golden kernels over an open `tvm.rpc` session and compare the outputs.

    What TVM raises (a dead session, no OpenCL on the phone) passes through: it says something else than wrong numbers.
    """
    import numpy as np
    import tvm

    kernels, arrays = _stored(golden_dir, device_kind)
    library = f"farm_golden_{device_kind}.so"
    # Bytes, not the path: given a path, TVM leaves the file open.
    session.upload(bytearray((golden_dir / kernels["library"]).read_bytes()), target=library)
    module = session.load_module(library)
    device = session.cl(0) if device_kind == KIND_OPENCL else session.cpu(0)
    worst, wrong, fastest_s = 0.0, [], 0.0
    for case in kernels["cases"]:
        name, expected = case["function"], arrays[f"{case['function']}.out"]
        inputs = [tvm.runtime.tensor(arrays[f"{name}.in{index}"], device) for index in range(case["inputs"])]
        # Filled with what is certainly wrong, so that a kernel that writes nothing cannot pass.
        output = tvm.runtime.tensor(np.full(expected.shape, 77, dtype=case["output_dtype"]), device)
        module[name](*inputs, output)
        actual = output.numpy()
        error = _max_abs_error(actual, expected)
        worst = max(worst, error)
        if not error <= case["tolerance"]:
            allowed = f"at most {case['tolerance']:.3g} allowed"
            wrong.append(f"{name} is off by {error:.3g}; {allowed}, {_where(actual, expected)}")
        else:
            timer = module.time_evaluator(name, device, number=1, repeat=SAMPLES)
            fastest_s += min(timer(*inputs, output).results)
    session.remove(library)
    if wrong:
        return CheckResult(False, f"wrong numbers on {device_kind}: {'; '.join(wrong)}")
    count = len(kernels["cases"])
    detail = f"{count} golden kernels right on {device_kind}, largest error {worst:.3g}"
    return CheckResult(True, detail, {device_kind: fastest_s})


def _stored(golden_dir: Path, kind: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    import numpy as np

    try:
        index = json.loads((golden_dir / GOLDEN_INDEX).read_text(encoding="utf-8"))
        if kind not in index["kernels"]:
            raise HostError(
                f"the bundle has no golden kernels for {kind}", hint=f"it has them for {', '.join(index['kernels'])}"
            )
        kernels = index["kernels"][kind]
        with np.load(golden_dir / kernels["expected"], allow_pickle=False) as archive:
            return kernels, dict(archive)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise HostError(
            f"the golden kernels in {golden_dir} are damaged",
            Code.BUNDLE_DAMAGED,
            hint="farm bundle verify",
            evidence=repr(error),
        ) from error


def _where(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> str:
    """The worst number of an output, as evidence: its place, expected and actual value."""
    import numpy as np

    difference = np.abs(actual.astype("float64") - expected.astype("float64"))
    at = np.unravel_index(np.argmax(np.where(np.isfinite(difference), difference, np.inf)), difference.shape)
    place = ", ".join(str(int(index)) for index in at)
    many = int(np.count_nonzero(difference > 0) + np.count_nonzero(~np.isfinite(difference)))
    return f"at [{place}] {float(expected[at]):.6g} expected, got {float(actual[at]):.6g}; {many} numbers differ"


def _max_abs_error(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Largest difference; infinite when a number is none (NaN compares false with everything)."""
    import numpy as np

    difference = np.abs(actual.astype("float64") - expected.astype("float64"))
    return float(np.max(np.where(np.isfinite(difference), difference, np.inf)))


def _cases() -> list[_Case]:
    import numpy as np
    from tvm import te, tirx

    random = np.random.default_rng(SEED)
    rows, inner, columns = 24, 64, 37  # 37: no vector width divides it
    a = random.standard_normal((rows, inner)).astype("float32")
    b = random.standard_normal((inner, columns)).astype("float32")
    p = random.integers(-128, 128, (rows, inner)).astype("int8")
    q = random.integers(-128, 128, (inner, columns)).astype("int8")
    x = random.uniform(-1, 1, (rows, 129)).astype("float32")
    wide_a, wide_b, wide_x = a.astype("float64"), b.astype("float64"), x.astype("float64")

    def matmul_relu() -> list[Any]:
        left, right = te.placeholder(a.shape, name="A"), te.placeholder(b.shape, name="B")
        k = te.reduce_axis((0, inner), name="k")
        product = te.compute((rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product")
        zero = tirx.const(0, "float32")
        return [left, right, te.compute((rows, columns), lambda i, j: tirx.max(product[i, j], zero), name="relu")]

    def matmul_int8() -> list[Any]:
        left, right = te.placeholder(p.shape, "int8", name="P"), te.placeholder(q.shape, "int8", name="Q")
        k = te.reduce_axis((0, inner), name="k")
        return [
            left,
            right,
            te.compute(
                (rows, columns),
                lambda i, j: te.sum(left[i, k].astype("int32") * right[k, j].astype("int32"), axis=k),
                name="product",
            ),
        ]

    def exp_sum() -> list[Any]:
        values = te.placeholder(x.shape, name="X")
        k = te.reduce_axis((0, x.shape[1]), name="k")
        return [values, te.compute((rows,), lambda i: te.sum(te.exp(values[i, k]), axis=k), name="total")]

    exponentials = np.exp(wide_x).sum(axis=1)
    return [
        _Case(
            *("matmul_relu", matmul_relu, (a, b), np.maximum(wide_a @ wide_b, 0), "float32"),
            rounding=inner * FLOAT32_EPSILON * float((abs(wide_a) @ abs(wide_b)).max()),
        ),
        _Case("matmul_int8", matmul_int8, (p, q), p.astype("int64") @ q.astype("int64"), "int32", rounding=0.0),
        _Case(
            *("exp_sum", exp_sum, (x,), exponentials, "float32"),
            rounding=x.shape[1] * FLOAT32_EPSILON * float(exponentials.max()),
        ),
    ]


def _prim_func(case: _Case) -> Any:
    from tvm import te

    return te.create_prim_func(case.build()).with_attr("global_symbol", case.function)


def _bound_to_threads(module: Any, target: Any) -> Any:
    from tvm.s_tir import dlight

    with target:
        return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile golden kernels as a program."""
    parser = argparse.ArgumentParser(prog="python -m farm.worker.golden", description="Compile golden kernels.")
    parser.add_argument("--abi", required=True, type=Abi, choices=[*Abi], metavar="|".join(Abi))
    parser.add_argument("--platform", default=Platform.ANDROID, type=Platform, choices=[*Platform], metavar="PLATFORM")
    parser.add_argument("--kinds", default=KIND_CPU, help="cpu, or cpu,opencl")
    parser.add_argument("--out", required=True, type=Path, help="an empty folder")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds.split(",")
    if unknown := set(kinds) - TOLERANCE_FACTOR.keys():
        parser.error(f"unknown kind {', '.join(sorted(unknown))}: known are {', '.join(TOLERANCE_FACTOR)}")
    try:
        made = compile_golden(chosen.abi, chosen.platform, kinds, chosen.out)
    except FarmError as error:
        fields = {"message": error.message, "hint": error.hint, "evidence": error.evidence}
        sys.stdout.write(json.dumps({"error": fields}) + "\n")
        return 1
    sys.stdout.write(json.dumps(made) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
