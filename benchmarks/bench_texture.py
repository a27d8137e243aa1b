"""Errors of operators and networks with textures on this host's OpenCL driver, beside those with buffers."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import tvm

from benchmarks.harness import Context, Figure
from farm.compiler.compile import Recipe, compile_library, compile_model
from farm.compiler.load import load
from farm.compiler.model import ImportedModel
from farm.compiler.reference import compare
from farm.compiler.relax_passes import FLOAT32
from farm.compiler.tvm_errors import first_line
from farm.simulation.opencl import opencl_folder
from farm.zoo import onnx_bytes
from tests.support.compiling import HOST, outputs_of
from tests.support.opencl import has_float16, opencl_library
from tests.support.texture_models import OPERATORS, model_around, outputs_on, wrong_on

TARGET = {"tag": "qcom/adreno-opencl", "host": HOST}
NETWORKS = ("small_cnn", "resnet18", "mobilenet_v2")
FACTOR = 2.0  # of the buffers' error
ROUNDING = 5e-7  # of the largest output: four units in the last place of float32, whatever buffers happen to have


def run(context: Context) -> list[Figure]:
    """Every error is of the largest output, against this host's; the buffers' error is the rival's number.

    Raises:
        HostError: this host has no OpenCL driver.
    """
    opencl_folder()
    ctypes.CDLL(os.fspath(opencl_library()), ctypes.RTLD_GLOBAL)
    device, figures, wrong = tvm.opencl(0), [], 0
    models = {name: model_around(name) for name in OPERATORS}
    networks = {name: load(onnx_bytes(name), name=f"{name}.onnx") for name in NETWORKS}
    cases = [(name, model, FLOAT32) for name, model in {**models, **networks}.items()]
    if has_float16():
        cases += [(name, model, "float16") for name, model in networks.items()]
    for name, model, precision in cases:
        title = name if precision == FLOAT32 else f"{name}, {precision}"
        found, mistakes = _compared(title, model, precision, device, context)
        figures.append(found)
        wrong += mistakes
        context.say(f"{title}: {found.value:.1e}, with buffers {found.stock or float('nan'):.1e}")
    return [*figures, Figure("operators that compute wrong numbers", wrong, "", None, "0", wrong == 0)]


def _compared(name: str, model: ImportedModel, precision: str, device: Any, context: Context) -> tuple[Figure, int]:
    textures = compile_library(model, Recipe(TARGET, precision, texture=True), context.folder)
    buffers = compile_library(model, Recipe(TARGET, precision), context.folder)
    host = outputs_of(compile_model(model, Recipe(HOST)), model)
    outputs = [each.name for each in model.outputs]
    ours = compare(outputs_on(device, textures, model), host, outputs, precision)
    try:
        stock = compare(outputs_on(device, buffers, model), host, outputs, precision).max_rel_error
    except Exception as error:  # noqa: BLE001 - TVM's own: the driver refuses what TVM does with buffers
        context.say(f"{name} does not run with buffers: {first_line(error)}")
        stock = None
    right = ours.ok and (stock is None or ours.max_rel_error <= max(FACTOR * stock, ROUNDING))
    goal = f"within {FACTOR:g} times the buffers' error, or {ROUNDING:g}"
    return Figure(f"{name}: error", ours.max_rel_error, "", stock, goal, right), len(
        wrong_on(device, textures, precision)
    )
