"""50 networks, each with one wrong kernel on the phone's side alone: named or not, in how many uploads; 50 right ones.

A virtual phone with OpenCL computes all: on its CPU in float32, float16 and 8 bit integers, on its GPU with buffers and
with textures. What right ones compute is off in its last digits, as another processor's sums are.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness import Context, Figure
from farm.compiler.compile import Recipe
from farm.compiler.cut import OpenModel
from farm.compiler.inputs import all_inputs
from farm.compiler.load import import_model, read
from farm.compiler.model import Array, SourceModel
from farm.compiler.targets import device_of
from farm.kinds.run.locate import PhoneSearch, Uploads, search, shown_alone
from farm.simulation.virtual_farm import VirtualFarm, phones_of, virtual_farm
from farm.worker.session import PhoneSession
from farm.zoo import onnx_bytes
from tests.support.compiling import HOST
from tests.support.texture_models import model_around
from tests.support.wrong_kernels import kernels, with_noise, with_wrong_kernel

PROFILE = "oneplus-12+opencl"
SESSION_LIMIT_S = 1800
SEED = 20
NETWORKS, MIN_NAMED = 50, 49
MAX_S, MAX_UPLOADS = 180.0, 12
ROOM_BYTES = 1 << 16  # of a look: little, so that searches of these small networks need several
LANE_SHARE = 0.5  # of the wrong kernels without textures: one element of four is wrong
LAYERS = 4  # of the networks of single operators, each between two convolutions of one pixel
ALIKE = (  # they keep the size
    "convolution", "convolution, dilated", "convolution, depthwise", "convolution in groups", "relu", "leaky relu",
    "convolution of 6 channels", "sigmoid", "tanh", "hard swish", "add", "multiply by one per channel",
    "multiply by one per column", "squeeze and excite", "concatenate", "concatenate 3 channels", "softmax of channels",
    "average pool that counts its padding", "instance normalisation",
)  # fmt: skip
GPU = {"tag": "qcom/adreno-opencl", "host": HOST}


@dataclass(frozen=True, slots=True)
class Network:
    """A model and how it is built."""

    name: str
    source: SourceModel
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one network."""

    network: str
    wrong: str  # the kernel
    named: bool  # it was, and the phone was blamed
    accused: bool  # an operator, while all were right
    uploads: int
    seconds: float
    packed: bool  # whether the operator shows it alone


def run(context: Context) -> list[Figure]:
    """Each search as `farm run --locate` makes it once its outputs are wrong.

    Raises:
        HostError: this host has no OpenCL driver, or no compiler for the runtime.
    """
    tried: list[Tried] = []
    with virtual_farm(phones_of([PROFILE]), report=context.say) as farm:
        farm.wait_ready(1)
        for network in islice(networks(), NETWORKS):
            tried.append(_tried(network, farm, context.folder))
            context.say(f"{len(tried)}: {tried[-1]}")
    return figures(tried)


def figures(tried: list[Tried]) -> list[Figure]:
    """What was promised of them."""
    named, accused = sum(each.named for each in tried), sum(each.accused for each in tried)
    uploads, slowest = max(each.uploads for each in tried), max(each.seconds for each in tried)
    return [
        Figure("networks with a wrong kernel", len(tried), "", None, f"{NETWORKS}", len(tried) == NETWORKS),
        Figure("wrong kernels named", named, "", None, f"at least {MIN_NAMED}", named >= MIN_NAMED),
        Figure("operators of right networks accused", accused, "", None, "0", accused == 0),
        Figure("operators that a package shows alone", sum(each.packed for each in tried), ""),
        Figure("most uploads", uploads, "", None, f"at most {MAX_UPLOADS}", uploads <= MAX_UPLOADS),
        Figure("uploads, median", statistics.median(each.uploads for each in tried), ""),
        Figure("slowest search", slowest, "s", None, f"at most {MAX_S:g}", slowest <= MAX_S),
        Figure("search, median", statistics.median(each.seconds for each in tried), "s"),
    ]


def networks() -> Iterator[Network]:
    """Networks of every kind of build."""
    small = read(onnx_bytes("small_cnn"), "small_cnn.onnx")
    cpu, half, gpu, textures = Recipe(HOST), Recipe(HOST, "float16"), Recipe(GPU), Recipe(GPU, texture=True)
    seeds = count()
    for recipe, size, title in (
        (cpu, 20, "CPU"),
        (half, 8, "CPU, float16"),
        (gpu, 7, "GPU"),
        (textures, 5, "GPU with textures"),
    ):
        for seed in islice(seeds, size):
            operators = random.Random(seed).sample(ALIKE, LAYERS)
            yield Network(f"operators {seed}, {title}", model_around(*operators).source, recipe)
        yield Network(f"small_cnn, {title}", small, recipe)
    for layers in range(2, 7):
        yield Network(f"{layers} layers of 8 bits, CPU", quantised(layers), cpu)
    yield Network("mobilenet_v2, CPU", read(onnx_bytes("mobilenet_v2"), "mobilenet_v2.onnx"), cpu)


def quantised(layers: int) -> SourceModel:
    """A chain of convolutions on 8 bit numbers, each between a DequantizeLinear and a QuantizeLinear."""
    generator = np.random.default_rng(layers)
    nodes, weights, x = [], [_tensor("scale", np.float32(0.05)), _tensor("zero", np.uint8(128))], "x"
    for at in range(layers):
        weights.append(_tensor(f"w{at}", generator.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8))
        y = f"y{at}" if at < layers - 1 else "y"
        nodes += [
            helper.make_node("DequantizeLinear", [x, "scale", "zero"], [f"real{at}"], name=f"dequantise{at}"),
            helper.make_node("Conv", [f"real{at}", f"w{at}"], [f"sum{at}"], pads=[1] * 4, name=f"conv{at}"),
            helper.make_node("QuantizeLinear", [f"sum{at}", "scale", "zero"], [y], name=f"quantise{at}"),
        ]
        x = y
    shape = [1, 8, 12, 12]
    ends = [[helper.make_tensor_value_info(name, TensorProto.UINT8, shape)] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "quantised", *ends, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return read(model.SerializeToString(), f"quantised{layers}.onnx")


def _tensor(name: str, values: Any) -> Any:
    return numpy_helper.from_array(np.asarray(values), name)


def inputs_of(model: Any) -> dict[str, Array]:
    """Seeded; 8 bit ones of the whole range, which `all_inputs` does not use."""
    made = all_inputs(model, {})
    generator = np.random.default_rng(SEED)
    return {
        name: generator.integers(0, 256, array.shape).astype(array.dtype) if array.dtype == np.uint8 else array
        for name, array in made.items()
    }


def _tried(network: Network, farm: VirtualFarm, folder: Path) -> Tried:
    from tvm import rpc

    with network.source.naming():
        model = import_model(network.source)
    opened, inputs = OpenModel(model, network.recipe), inputs_of(model)
    [name] = farm.names()
    session = PhoneSession(rpc.connect_tracker(*farm.tracker()).request(name, session_timeout=SESSION_LIMIT_S))
    try:
        uploads = Uploads(opened, session, session.device(device_of(network.recipe.target)), folder)
        opened.change = with_noise
        accused = search(opened, inputs, uploads.run, lambda _: None, ROOM_BYTES).search.first is not None
        draw = random.Random(network.name)
        kernel, lane = draw.choice(able(opened)), draw.random() < LANE_SHARE and not network.recipe.texture
        opened.change = partial(with_wrong_kernel, kernel=kernel, lane=lane)
        before, begun_s = uploads.count, time.monotonic()
        found = search(opened, inputs, uploads.run, lambda _: None, ROOM_BYTES)
        named, packed = _judged(opened, kernel, found, inputs, uploads)
        seconds = time.monotonic() - begun_s
    finally:
        session.close()
    wrong = f"{kernel}{', one lane' * lane}"
    return Tried(network.name, wrong, named, accused, uploads.count - before, seconds, packed)


def able(opened: OpenModel) -> list[str]:
    """The kernels of a build that can be made wrong: those that it calls, of which TVM makes no view."""
    able_here = set(kernels(opened.module))
    return sorted({each.kernel for each in opened.operators} & able_here)


def _judged(
    opened: OpenModel, kernel: str, found: PhoneSearch, inputs: Mapping[str, Array], uploads: Uploads
) -> tuple[bool, bool]:
    """Whether the kernel was named, at its first call, and the phone blamed; and whether it shows alone."""
    place = found.search.first
    if place is None:
        return False, False
    first = next(at for at, each in enumerate(opened.operators) if each.kernel == kernel)
    blame, _, case = shown_alone(opened, place, found, inputs, uploads.run, uploads.library)
    return place == first and blame == "phone", case is not None
