"""What is in a model: inputs, outputs, operators, parameters, and the multiply-accumulates of one run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from farm.compiler.model import ImportedModel, SourceModel, TensorSpec, numpy_dtype
from farm.compiler.onnx_model import OnnxModel
from farm.compiler.symbolic import dimensions

_CONVOLUTIONS = frozenset(f"relax.nn.conv{n}d" for n in (1, 2, 3))
# Each input value meets every weight of its channel: https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
_TRANSPOSED = frozenset(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))
_COUNTED = _CONVOLUTIONS | _TRANSPOSED | {"relax.matmul"}


@dataclass(frozen=True, slots=True)
class Summary:
    """A model in numbers."""

    name: str
    format: str
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: Mapping[str, int]  # Relax's names; most frequent first
    parameters: int  # elements of all constants, running means and variances included
    parameters_bytes: int
    macs: int  # of convolutions and matrix products; TensorIR (`tir.NAME`) and shapes that data decides count nothing

    def to_wire(self) -> dict[str, Any]:
        """The JSON of `farm model show --json`."""
        return {
            "name": self.name,
            "format": self.format,
            "sha256": self.sha256,
            "inputs": [spec.to_wire() for spec in self.inputs],
            "outputs": [spec.to_wire() for spec in self.outputs],
            "operators": dict(self.operators),
            "parameters": self.parameters,
            "parameters_bytes": self.parameters_bytes,
            "macs": self.macs,
            "open": [],
        }


def outline(source: SourceModel, missing: Sequence[str]) -> dict[str, Any]:
    """What can be said of a model whose shapes are open, as JSON; `missing`: the options that would fix them.

    Operators and parameters are the file's own, and only an ONNX file tells them.
    """
    known: dict[str, Any] = {"operators": None, "parameters": None, "parameters_bytes": None}
    if isinstance(source, OnnxModel):
        elements, size_bytes = source.parameters()
        known = {
            "operators": dict(source.operators().most_common()), "parameters": elements, "parameters_bytes": size_bytes,
        }  # fmt: skip
    return {
        "name": source.name,
        "format": source.format,
        "sha256": source.sha256,
        "inputs": [spec.to_wire() for spec in source.inputs],
        "outputs": [{"name": name} for name in source.outputs],
        **known,
        "macs": None,
        "open": list(missing),
    }


def summarise(model: ImportedModel) -> Summary:
    """Count a model's operators, parameters and multiply-accumulates, all of them from its Relax."""
    operators: Counter[str] = Counter()
    sizes: dict[Any, tuple[int, int]] = {}  # by the constant itself: one that is used twice counts once
    macs = 0
    for node in _nodes(model.module):
        if isinstance(node, tvm.ir.GenericConst):
            sizes[node] = (_elements(node), _elements(node) * numpy_dtype(str(node.value.dtype)).itemsize)
        elif isinstance(node, tvm.ir.Call):
            kind = _kind(node)
            operators[kind.removeprefix("relax.")] += 1
            macs += _macs(kind, node)
    return Summary(
        model.name, model.format, model.sha256, model.inputs, model.outputs, dict(operators.most_common()),
        sum(elements for elements, _ in sizes.values()), sum(size for _, size in sizes.values()), macs,
    )  # fmt: skip


def _nodes(module: Any) -> Iterator[Any]:
    """Every expression of the module's Relax functions, each once."""
    for function in module.functions.values():
        if isinstance(function, relax.Function):
            found: list[Any] = []
            relax.analysis.post_order_visit(function, found.append)
            yield from found


def _kind(call: Any) -> str:
    if not isinstance(call.op, tvm.ir.Op):
        return "call"
    if call.op.name == "relax.call_tir":
        return f"tir.{call.args[0].name_hint.rstrip('0123456789')}"  # TVM numbers functions of one name
    return str(call.op.name)


def _macs(kind: str, call: Any) -> int:
    if kind not in _COUNTED or any(isinstance(size, str) for each in (call, *call.args) for size in _shape(each)):
        return 0
    if kind == "relax.matmul":
        return _elements(call) * int(dimensions(call.args[0].ty)[-1])
    if kind in _CONVOLUTIONS:
        return _elements(call) * _per_channel(call, "O")
    return _elements(call.args[0]) * _per_channel(call, "I")  # transposed


def _elements(value: Any) -> int:
    return math.prod(int(size) for size in dimensions(value.ty))


def _shape(value: Any) -> tuple[int | str, ...]:
    return dimensions(value.ty) if isinstance(value.ty, relax.TensorType) else ()


def _per_channel(call: Any, axis: str) -> int:
    """The kernel's size for one channel of that axis; groups are in it: its other axis is one group's channels."""
    shape = dimensions(call.args[1].ty)
    return math.prod(int(size) for size in shape) // int(shape[str(call.attrs.kernel_layout).index(axis)])
