"""The reference kernel: one fixed piece of arithmetic whose time shows how fast a phone is now.

Run beside a model, it separates slow code from a slow clock; run on several phones, it compares their speeds. It
is the same for every phone of an ABI: compiled for the ABI's baseline, never for a core. What it sees is the clock of
the core (or GPU) it runs on; it moves no memory to speak of, so a throttled memory bus escapes it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import te

from farm.common.files import hash_file
from farm.compiler.files import locked, replaced
from farm.compiler.link import exporter, find_linker
from farm.compiler.targets import abi_of, target_from

REVISION = 1  # raise it when the arithmetic changes: times of different revisions are never compared
FUNCTION = "farm_reference"
SIZE = 64  # three float32 matrices of 16 KiB: they stay in the first cache of every core
# Products in one run: about 1 ms of a large core (0.9 ms on an x86-64 server) or of a phone's GPU.
ROUNDS = {"cpu": 8, "opencl": 512}
READINGS = 3  # the median of so many is one reading: a process that gets in the way once does not count
READING_S = 0.001  # each lasts at least so long
MAX_RUNS = 1000  # in one of them


@dataclass(frozen=True, slots=True)
class ReferenceKernel:
    """A library to upload. Kernels of one key are the same machine code, so their times may be compared."""

    library: Path
    key: str
    kind: str  # "cpu" or "opencl"


def reference_kernel(target: object, cache: Path) -> ReferenceKernel:
    """The kernel for a target's processor, from `cache` or compiled now (0.1 s, once).

    Raises:
        TargetError: no such phone exists.
        HostError: the host cannot link for it.
    """
    abi, platform = abi_of(target)
    kind = "opencl" if target_from(target).kind.name == "opencl" else "cpu"
    host = _baseline(target)
    recipe = [REVISION, kind, host, tvm.__version__, find_linker(abi, platform).name]
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"reference-kernel-{key}.so"
    with locked(cache / f"reference-kernel-{key}.lock"):
        noted = path.with_suffix(".sha256")
        if _is_whole(path, noted):
            for each in (path, noted):
                os.utime(each)  # wanted again: not to be deleted yet
        else:
            with replaced(path) as partial:
                _compiled(kind, host).export_library(str(partial), fcompile=exporter(abi, platform))
                noted.write_text(hash_file(partial))
    return ReferenceKernel(path, key, kind)


def _is_whole(library: Path, noted: Path) -> bool:
    """Whether a kernel was made before and is unchanged; a torn one would be held against phones and models."""
    try:
        return noted.read_text() == hash_file(library)
    except (OSError, ValueError):
        return False


def load_kernel(session: Any, kernel: ReferenceKernel) -> Callable[[], float]:
    """Upload the kernel into an open `tvm.rpc` session and time it once. TVM's errors pass through.

    Returns the function that takes one reading: the seconds of one run. One round trip to the phone, and about 5 ms
    there.
    """
    name = f"{kernel.library.stem}.so"
    session.upload(bytearray(kernel.library.read_bytes()), name)  # by path, TVM never closes the file
    module, device = session.load_module(name), session.device(kernel.kind, 0)
    arguments = kernel_arguments(device)

    def reader(number: int) -> Callable[[], float]:
        timer = module.time_evaluator(FUNCTION, device, number=number, repeat=READINGS)
        return lambda: float(median(timer(*arguments).results))

    return reader(min(MAX_RUNS, math.ceil(READING_S / reader(1)())))


def kernel_arguments(device: Any) -> list[Any]:
    """The two matrices that it multiplies and one for the product, always the same, on a device."""
    random = np.random.default_rng(REVISION)
    values = [random.uniform(-1, 1, (SIZE, SIZE)).astype("float32") for _ in range(3)]
    return [tvm.runtime.tensor(value, device) for value in values]


def _baseline(target: object) -> dict[str, Any]:
    """The plainest CPU of the target's ABI. How floats are passed is part of an ABI; an instruction set is not."""
    found = target_from(target)
    attributes = dict((found.host or found).attrs)
    kept = {name: str(attributes[name]) for name in ("mtriple", "mfloat-abi", "mabi") if attributes.get(name)}
    return {"kind": "llvm", **kept}


def _compiled(kind: str, host: dict[str, Any]) -> Any:
    left, right = te.placeholder((SIZE, SIZE), name="A"), te.placeholder((SIZE, SIZE), name="B")
    again, inner = te.reduce_axis((0, ROUNDS[kind]), name="again"), te.reduce_axis((0, SIZE), name="k")
    product = te.compute(
        (SIZE, SIZE), lambda i, j: te.sum(left[i, inner] * right[inner, j], axis=[again, inner]), name="C"
    )
    function = te.create_prim_func([left, right, product]).with_attr("global_symbol", FUNCTION)
    module, target = tvm.IRModule({FUNCTION: function}), tvm.target.Target(host)
    if kind == "opencl":
        from tvm.s_tir import dlight

        # Plain OpenCL, not a vendor's flavour: the same kernel for Adreno, Mali and others.
        target = tvm.target.Target({"kind": "opencl"}, host=target)
        with target:
            module = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)
    return tvm.compile(module, target=target)
