"""ONNX files read with care: what is wrong with one is said in a sentence that names the place."""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import onnx
import tvm
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs in its wheel
from onnx.reference import ReferenceEvaluator
from tvm.relax.frontend.onnx import from_onnx

from farm.compiler.clips import onnx_clips_in_relax
from farm.compiler.formats import ONNX_FIRST
from farm.compiler.model import Array, Evaluated, IRModule, TensorSpec
from farm.compiler.onnx_inputs import input_specs
from farm.compiler.tvm_errors import first_line, frames
from farm.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A checked ONNX model (a SourceModel)."""

    name: str
    proto: Any = field(repr=False)  # onnx.ModelProto
    sha256: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    format: ClassVar[str] = "onnx"

    def to_relax(self, shapes: Mapping[str, Sequence[int]]) -> IRModule:
        """The model as a Relax module (SourceModel.to_relax).

        Raises:
            ModelError: an operator is not supported, or a node cannot be converted; both are named.
        """
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(None), onnx_clips_in_relax():
                warnings.simplefilter("ignore")  # about renamed inputs; they are fed by position
                given = {name: list(shape) for name, shape in shapes.items()}
                return from_onnx(self.proto, shape_dict=given, keep_params_in_input=False)
        except tvm.error.OpNotImplemented as error:
            hint = "rewrite or re-export the model without it"
            raise ModelError(_unsupported(self, str(error)), hint=hint) from error
        except Exception as error:
            node = _node_in(error)
            where = f" at {node}" if node else ""
            raise ModelError(
                f"{self.name}: TVM cannot convert it{where}: {first_line(error)}",
                hint="rewrite that node, or export the model with fixed shapes and constants",
            ) from error

    def operators(self) -> Counter[str]:
        """ONNX's names of the graph's operators, and how often each stands in it."""
        return Counter(node.op_type for node in self.proto.graph.node)

    def parameters(self) -> tuple[int, int]:
        """Elements of all weights, and their bytes."""
        tensors = self.proto.graph.initializer
        sizes = [(math.prod(each.dims), onnx.helper.tensor_dtype_to_np_dtype(each.data_type)) for each in tensors]
        return sum(size for size, _ in sizes), sum(size * dtype.itemsize for size, dtype in sizes)

    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """ONNX's own evaluator (numpy, shares no code with TVM)."""
        try:
            outputs = ReferenceEvaluator(self.proto).run(None, dict(inputs))
        except Exception as error:  # noqa: BLE001 - it raises whatever numpy does; the reason goes into the result
            return Evaluated(None, f"onnx.reference cannot run this model: {first_line(error)}")
        return Evaluated(tuple(np.asarray(output) for output in outputs), "onnx.reference")


def read(data: bytes, name: str) -> OnnxModel:
    """Parse and check an ONNX file; `name` is for messages.

    Raises:
        ModelError: it is no ONNX model, is cut short, keeps its weights elsewhere, or contradicts itself.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give an ONNX file")
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError as error:
        looks = data[:1] == ONNX_FIRST
        raise ModelError(
            f"{name} is an ONNX model that is cut short or damaged" if looks else f"{name} is not an ONNX model",
            hint="copy or export it again" if looks else "export the model as ONNX (torch.onnx.export, tf2onnx ...)",
            evidence=str(error),
        ) from error
    if not proto.graph.node or not proto.ir_version:
        raise ModelError(f"{name} is not an ONNX model: it has no graph", hint="is it another format, or cut short?")
    _refuse_external_data(proto, name)
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, check_type=True, data_prop=True)
    except Exception as error:  # ValidationError, InferenceError; of types and texts that do not exist, others too
        raise ModelError(
            f"{name} is not a valid ONNX model: {_one_line(error)}",
            hint="export it again, or mend that node",
            evidence=_text(error),
        ) from error
    return OnnxModel(
        name,
        proto,
        hashlib.sha256(data).hexdigest(),
        input_specs(proto, name),
        tuple(value.name for value in proto.graph.output),
    )


def _refuse_external_data(proto: Any, name: str) -> None:
    """ONNX reads such data from the current folder; tensors are in initializers, attributes, subgraphs, functions."""
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelError(
                f"{name} keeps the weights of {tensor.name!r} in another file",
                hint="save it as one file: onnx.save_model(model, path, save_as_external_data=False)",
            )


def _tensors(message: Any) -> Iterator[Any]:
    """Every TensorProto in a protobuf message, however deep."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for described, value in message.ListFields():
        if described.type == described.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _tensors(inner)


def _one_line(error: BaseException) -> str:
    return " ".join(_text(error).split())[:300]


def _text(error: BaseException) -> str:
    """What it says; ONNX's own may quote bytes that are no text."""
    try:
        return str(error)
    except UnicodeError:
        return type(error).__name__


def _unsupported(model: OnnxModel, text: str) -> str:
    """TVM lists operator types only; say where the first of each is."""
    kinds = [kind.strip() for kind in text.splitlines()[0].rpartition(":")[2].split(",") if kind.strip()]
    places = []
    for kind in sorted(kinds):
        node = next((node for node in model.proto.graph.node if node.op_type == kind), None)
        places.append(f"{kind} (node {_node_name(node)})" if node is not None else kind)
    return f"{model.name}: TVM's ONNX front end does not support {', '.join(places) or 'one of its operators'}"


def _node_in(error: BaseException) -> str:
    """The ONNX node at which the front end failed; it only prints it."""
    found = ""
    for function, held in frames(error):
        if function == "_construct_nodes" and "node" in held:
            found = f"{held['node'].op_type} (node {_node_name(held['node'])})"
    return found


def _node_name(node: Any) -> str:
    return repr(node.name) if node.name else f"that makes {node.output[0]!r}"
