"""The zoo's networks on this host, untuned: read, imported, compiled, run; beside TVM's own folding and ONNX Runtime.

Then real models out of packages on the index (`benchmarks.real_models`).

All times are processor time of this process: others may be busy on the host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import onnxruntime
import tvm
from tvm import relax

from benchmarks import real_models
from benchmarks.harness import Context, Figure
from farm.compiler.compile import Recipe, compile_model
from farm.compiler.inputs import all_inputs
from farm.compiler.load import import_model, read
from farm.compiler.reference import compare
from farm.compiler.relax_passes import fold_batch_norm
from farm.zoo import MODELS, onnx_bytes

HOST = {"kind": "llvm"}
RUNS = 3


def run(context: Context) -> list[Figure]:
    figures: list[Figure] = []
    for name in MODELS:
        figures += _network(name)
        context.say(f"{name} done; load {os.getloadavg()[0]:.1f}")
    return figures + real_models.figures(context)


def _network(name: str) -> list[Figure]:
    data = onnx_bytes(name)
    source, read_s = _timed(lambda: read(data, name))
    model, import_s = _timed(lambda: import_model(source))
    _, fold_s = _timed(lambda: fold_batch_norm(model.module))
    _, stock_fold_s = _timed(lambda: _fold_as_tvm(model.module))
    executable, compile_s = _timed(lambda: compile_model(model, Recipe(HOST)))
    inputs = all_inputs(model, {})
    machine = relax.VirtualMachine(executable, tvm.cpu())
    tensors = [tvm.runtime.tensor(inputs[spec.name]) for spec in model.inputs]
    run_s = min(_timed(lambda: machine["main"](*tensors))[1] for _ in range(RUNS))
    session = onnxruntime.InferenceSession(data)
    stock_s = min(_timed(lambda: session.run(None, inputs))[1] for _ in range(RUNS))
    told, reference_s = _timed(lambda: source.reference(inputs))
    got, wanted = machine["main"](*tensors).numpy(), session.run(None, inputs)
    off = compare([got], wanted, [spec.name for spec in model.outputs])
    return [
        Figure(f"{name}: read", read_s, "s"),
        Figure(f"{name}: import", import_s, "s"),
        Figure(f"{name}: normalisation folded", fold_s, "s", stock_fold_s),
        Figure(f"{name}: compile", compile_s, "s"),
        Figure(f"{name}: reference by {told.by}", reference_s, "s"),
        Figure(f"{name}: run", run_s, "s", stock_s),
        Figure(f"{name}: largest error, of the largest output", off.max_rel_error, "", None, "1e-4", off.ok),
    ]


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and its processor time: others may be busy on this host."""
    started_s = time.process_time()
    result = work()
    return result, time.process_time() - started_s


def _fold_as_tvm(module: Any) -> Any:
    passes = [
        relax.transform.CanonicalizeBindings(), relax.transform.FoldBatchnormToConv2D(),
        relax.transform.DecomposeOpsForInference(), relax.transform.FoldConstant(),
    ]  # fmt: skip
    with tvm.target.Target(HOST):
        return tvm.transform.Sequential(passes)(module)
