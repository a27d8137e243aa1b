"""What `farm bench --profile` costs the run that it looks into: networks with and without notes of times, in turns.

On this host's processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from benchmarks.harness import Context, Figure, under
from benchmarks.undisturbed import SEED, undisturbed_s
from farm.compiler.compile import Recipe, compile_model, compile_stamped
from farm.compiler.load import import_model, read
from farm.compiler.model import ImportedModel
from farm.worker.timing import Timer, timer_of
from farm.zoo import onnx_bytes
from tests.support.tunable import dense_onnx

GOAL_PERCENT = 3.0
ROUNDS, RUNS = 400, 50  # turns of each build, runs in a turn
RECIPE = Recipe({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"})
NETWORKS: Mapping[str, Callable[[], bytes]] = {
    "small_cnn": lambda: onnx_bytes("small_cnn"),
    "eight dense layers": lambda: dense_onnx(128, 8),
}


def run(context: Context) -> list[Figure]:
    """How much longer a run takes with notes."""
    figures = []
    for name, network in NETWORKS.items():
        context.say(name)
        model = import_model(read(network(), f"{name}.onnx"), {}, {})
        plain_s, noting_s = undisturbed_s((_plain(model), _noting(model)), rounds=ROUNDS, runs=RUNS)
        figures.append(Figure(f"{name}, one run", 1e6 * plain_s, "us"))
        figures.append(under(f"{name}, longer by", 100 * (noting_s / plain_s - 1), "%", GOAL_PERCENT))
    return figures


def _plain(model: ImportedModel) -> Timer:
    return _timer(compile_model(model, RECIPE), _inputs(model))


def _noting(model: ImportedModel) -> Timer:
    return _timer(compile_stamped(model, RECIPE)[0], _inputs(model))


def _inputs(model: ImportedModel) -> list[Any]:
    random = np.random.default_rng(SEED)
    return [random.random([int(size) for size in spec.shape]).astype(spec.dtype) for spec in model.inputs]


def _timer(executable: Any, inputs: Sequence[Any]) -> Timer:
    device = tvm.cpu()
    machine = relax.VirtualMachine(executable, device)
    machine.set_input("main", *(tvm.runtime.tensor(array, device) for array in inputs))
    machine.invoke_stateful("main")
    return timer_of(machine, device)
