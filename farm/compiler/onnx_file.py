"""ONNX files, read and checked without TVM: clients refuse a damaged model before they upload it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs in its wheel
from onnx.inliner import inline_local_functions

from farm.common.errors import ModelError
from farm.compiler.model import ONNX_FIRST, TensorSpec

MAX_NODES = 1 << 20  # with each function in place of its calls: a few kB can claim billions
MAX_CALLS = 100  # of functions within functions
STALE = "the shapes that the file gives of its inner tensors and outputs contradict its nodes and were left out"


def read_proto(data: bytes, name: str) -> tuple[Any, tuple[str, ...]]:
    """The `onnx.ModelProto` of a file, its own functions inlined, and notes on what was left out of it.

    `name` is for messages.

    Raises:
        ModelError: it is no ONNX model, is cut short, keeps its weights elsewhere, or contradicts itself.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give an ONNX file")
    try:
        proto = onnx.load_model_from_string(data)
    except DecodeError as error:
        is_onnx = data[:1] == ONNX_FIRST
        raise ModelError(
            f"{name} is an ONNX model that is cut short or damaged" if is_onnx else f"{name} is not an ONNX model",
            hint="copy or export it again" if is_onnx else "export the model as ONNX (torch.onnx.export, tf2onnx ...)",
            evidence=str(error),
        ) from error
    if not proto.graph.node or not proto.ir_version:
        raise ModelError(f"{name} is not an ONNX model: it has no graph", hint="is it another format, or cut short?")
    _refuse_external_data(proto, name)
    _check_functions(proto, name)
    try:
        onnx.checker.check_model(proto)
        if proto.functions:
            proto = inline_local_functions(proto, convert_version=True)
        return _consistent(proto)
    except Exception as error:  # ValidationError, InferenceError; of types and texts that do not exist, others too
        raise ModelError(
            f"{name} is not a valid ONNX model: {_one_line(error)}",
            hint="export it again, or correct that node",
            evidence=_text(error),
        ) from error


def _consistent(proto: Any) -> tuple[Any, tuple[str, ...]]:
    """The model, without its stated shapes if they contradict its nodes, and notes."""
    try:
        _infer(proto)
    except onnx.shape_inference.InferenceError:
        fresh = onnx.ModelProto()
        fresh.CopyFrom(proto)
        _without_stated_shapes(fresh)
        _infer(fresh)
        return fresh, (STALE,)
    return proto, ()


def _infer(proto: Any) -> Any:
    # Not data_prop=True: it makes every element of what a ConstantOfShape claims, without a limit.
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True, check_type=True)


def nodes_in(proto: Any) -> Iterator[Any]:
    """Every node of a model, those of subgraphs and functions too."""
    return _messages(proto, onnx.NodeProto)


def arrays_in(proto: Any) -> Iterator[Any]:
    """Every tensor in a model: weights, and attributes of nodes, however deep."""
    return _messages(proto, onnx.TensorProto)


# Nodes that are computed here where they depend on shapes and constants alone. None makes much of little.
_FOLDED = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Floor", "Gather", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "ReduceMax",
    "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose",
    "Unsqueeze", "Where",
})  # fmt: skip
MAX_FOLDED = 1024  # elements of each tensor that is computed here: they are about shapes


def folded(proto: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """The model for these input shapes, with constants in place of nodes that depend on shapes alone.

    TVM takes only constants as the shape of a Reshape, the bounds of a Slice, pads.
    """
    if not any(node.op_type in ("Shape", "ConstantOfShape") for node in proto.graph.node):
        return proto  # which may be gigabytes to copy
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    _without_stated_shapes(made)
    for value in made.graph.input:
        if value.name in shapes:
            sizes = [onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[value.name]]
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(dim=sizes))
    graph, needed = made.graph, {each.name for each in made.graph.output}
    known = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer if _is_small(each.dims)}
    try:
        while True:
            inferred = onnx.shape_inference.infer_shapes(made)
            sizes_of = {each.name: _static(each) for each in (*inferred.graph.value_info, *graph.input)}
            new: dict[str, Any] = {}
            left = []
            for node in graph.node:
                values = None if needed & {*node.output} else _values(node, {**known, **new}, sizes_of, made)
                new |= values or {}
                left.extend([node] if values is None else [])
            if not new:
                return made
            known |= new
            del graph.node[:]
            graph.node.extend(left)
            graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in new.items())
    except Exception:  # noqa: BLE001 - of evaluators and inference; TVM then says which node it cannot convert
        return proto


def _values(node: Any, known: Mapping[str, Any], sizes_of: Mapping[str, Any], proto: Any) -> dict[str, Any] | None:
    """The outputs of a node that depends on shapes and small constants alone; None: it does not."""
    if node.op_type == "Constant":
        tensor = next((each.t for each in node.attribute if each.name == "value"), None)
        small = tensor is not None and _is_small(tensor.dims)
        return {node.output[0]: onnx.numpy_helper.to_array(tensor)} if small else None
    given = {name: known[name] for name in node.input if name in known}
    if node.op_type == "Shape" and sizes_of.get(node.input[0]) is not None:
        given = {node.input[0]: np.broadcast_to(np.float32(0), sizes_of[node.input[0]])}
    elif node.op_type not in _FOLDED or len(given) < len({*node.input} - {""}):
        return None
    if node.op_type == "ConstantOfShape" and not _is_small(given[node.input[0]].tolist()):
        return None
    from onnx.reference import ReferenceEvaluator  # half a second, for which no client needs to wait

    edges = [onnx.helper.make_empty_tensor_value_info(name) for name in given]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output]
    alone = onnx.helper.make_model(
        onnx.helper.make_graph([node], "part", edges, outputs), opset_imports=proto.opset_import
    )
    made = [np.asarray(value) for value in ReferenceEvaluator(alone).run(None, given)]
    return dict(zip(node.output, made, strict=True)) if all(_is_small(value.shape) for value in made) else None


def _is_small(dims: Sequence[int]) -> bool:
    return math.prod(dims) <= MAX_FOLDED


def _static(value: Any) -> tuple[int, ...] | None:
    """A tensor's shape; None: it is not known."""
    tensor = value.type.tensor_type
    known = tensor.HasField("shape") and all(each.HasField("dim_value") for each in tensor.shape.dim)
    return tuple(each.dim_value for each in tensor.shape.dim) if known else None


def _without_stated_shapes(proto: Any) -> None:
    """Drop the shapes that only describe what nodes compute."""
    for graph in _messages(proto, onnx.GraphProto):
        del graph.value_info[:]
    for output in (each for each in proto.graph.output if each.type.HasField("tensor_type")):
        output.type.tensor_type.ClearField("shape")


def _check_functions(proto: Any, name: str) -> None:
    """Refuse functions that call themselves and models that are too large once inlined."""
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size_of(message: Any, depth: int) -> int:
        if depth > MAX_CALLS:
            raise ModelError(
                f"{name}: its functions call each other more than {MAX_CALLS} deep, or themselves",
                hint="export the model without them",
            )
        total = 0
        for node in nodes_in(message):
            key = (node.domain, node.op_type, node.overload)
            if key in functions and key not in sizes:
                sizes[key] = size_of(functions[key], depth + 1)
            total += sizes.get(key, 1)
        return total

    if functions and (total := size_of(proto.graph, 0)) > MAX_NODES:
        raise ModelError(
            f"{name}: with its functions in place it has {total:,} nodes", hint=f"at most {MAX_NODES:,} are read"
        )


def tensors_in(proto: Any, name: str) -> tuple[TensorSpec, ...]:
    """The inputs of an `onnx.ModelProto`; `name` is for messages.

    Raises:
        ModelError: one is no tensor, or has no shape.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    return tuple(_spec(value, name, "input") for value in proto.graph.input if value.name not in constants)


def tensors_out(proto: Any, name: str) -> tuple[TensorSpec, ...]:
    """The outputs of an `onnx.ModelProto`, as far as it gives their shapes."""
    given = (value for value in proto.graph.output if value.type.tensor_type.HasField("shape"))
    return tuple(_spec(value, name, "output") for value in given)


def _spec(value: Any, name: str, what: str) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise ModelError(f"{name}: {what} {value.name!r} is no tensor", hint="only models over tensors can be run")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(f"{name}: {what} {value.name!r} has no shape", hint="export the model with input shapes")
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else dim.dim_param or "?"
        for dim in tensor.shape.dim
    )
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, ValueError, TypeError) as error:
        kind = tensor.elem_type
        raise ModelError(f"{name}: {what} {value.name!r} has the type {kind}, which ONNX has not") from error
    return TensorSpec(value.name, shape, dtype)


def _refuse_external_data(proto: Any, name: str) -> None:
    """ONNX reads such data from the current folder; tensors are in initializers, attributes, subgraphs, functions."""
    for tensor in arrays_in(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelError(
                f"{name} keeps the weights of {tensor.name!r} in another file",
                hint="name the model by its path, with that file in its folder, or save one file: "
                "torch.onnx.export(..., external_data=False)",
            )


def _messages(message: Any, kind: type) -> Iterator[Any]:
    """Every protobuf message of a kind in a message, however deep."""
    if isinstance(message, kind):
        yield message
    if isinstance(message, onnx.TensorProto):
        return
    for described, value in message.ListFields():
        if described.type == described.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(inner, kind)


def _one_line(error: BaseException) -> str:
    return " ".join(_text(error).split())[:300]


def _text(error: BaseException) -> str:
    """The error's text; ONNX's own errors may quote bytes that are no text."""
    try:
        return str(error)
    except UnicodeError:
        return type(error).__name__
