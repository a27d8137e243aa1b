"""Targets to compile for, and what comes out of an executable that runs here."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from farm.compiler.inputs import all_inputs
from farm.compiler.reference import flatten

PHONE = {"kind": "llvm", "mtriple": "aarch64-linux-android", "mattr": ["+neon"], "num-cores": 4}
HOST = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2}
ADRENO = {"tag": "qcom/adreno-opencl", "host": PHONE}


def outputs_of(executable: Any, model: Any) -> Any:
    """What it computes from the inputs that farm makes up."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return flatten(machine["main"](*(tvm.runtime.tensor(array) for array in all_inputs(model, {}).values())))
