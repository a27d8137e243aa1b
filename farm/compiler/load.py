"""Reads models of every format, imports them into TVM, and counts their operators.

An error about a file has its name and the place in it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from farm.common.errors import ModelError, UserError
from farm.compiler import onnx_model, relax_model, tflite_model, torch_model
from farm.compiler.inputs import NO_DTYPES, NO_SHAPES, check_names, fixed_inputs
from farm.compiler.model import (
    ImportedModel,
    IRModule,
    SourceModel,
    TensorSpec,
    format_of,
    may_be_onnx,
    model_format_error,
    numpy_dtype,
)
from farm.compiler.onnx_data import model_bytes
from farm.compiler.onnx_model import OnnxModel
from farm.compiler.relax_model import refuse_script
from farm.compiler.relax_passes import dimensions, without_clips
from farm.compiler.shape_option import check_dtype

IMPORT = 2  # raise it when the same file becomes another module: what was kept by key is then not used

_READERS: Mapping[str, Callable[[bytes, str], SourceModel]] = {
    "torch": torch_model.read,
    "keras": onnx_model.read_keras,
    "relax": relax_model.read_json,
    "script": refuse_script,
    "tflite": tflite_model.read,
}  # the other formats; each module imports its framework when it reads a file


def read(data: bytes, name: str) -> SourceModel:
    """Parse and check a model file. Its content decides the format, or else the suffix of `name`.

    Raises:
        ModelError: it is no model, is cut short, or a package that reads its format is not installed.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give a model file")
    kind = format_of(data, name)
    if kind in _READERS:
        return _READERS[kind](data, name)
    try:
        return onnx_model.read(data, name)
    except ModelError as error:
        if may_be_onnx(data, name):
            raise
        raise model_format_error(name) from error


def import_model(
    source: SourceModel,
    shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    dtypes: Mapping[str, str] = NO_DTYPES,
    *,
    by_arrays: bool = False,
) -> ImportedModel:
    """Convert a model to Relax with every shape fixed.

    `shapes` fixes what the file leaves open. An input in `dtypes` is fed in that type and converted to the file's at
    the model's start, so the numbers inside stay those of the file. `by_arrays`: a hint may mention --input.

    Raises:
        ModelError: a name is no input; a shape has another rank or contradicts the file; a dimension stays open; an
            operator is not supported or a node cannot be converted (both are named).
    """
    check_names(source, dtypes, "type")
    inputs = fixed_inputs(source, shapes, by_arrays=by_arrays)
    module = without_clips(source.to_relax({spec.name: _sizes(spec) for spec in inputs}))
    inputs = tuple(TensorSpec(spec.name, spec.shape, _dtype(spec, dtypes)) for spec in inputs)
    module = _fed_in(module, [str(spec.dtype) for spec in inputs])
    key = [IMPORT, source.sha256, source.format, [[*_sizes(spec), str(spec.dtype)] for spec in inputs], tvm.__version__]
    return ImportedModel(
        name=source.name,
        format=source.format,
        sha256=source.sha256,
        key=hashlib.sha256(json.dumps(key).encode()).hexdigest(),
        module=module,
        inputs=inputs,
        outputs=_outputs(module, source),
        source=source,
    )


def load(
    path_or_bytes: Path | str | bytes,
    *,
    name: str = "",
    shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    dtypes: Mapping[str, str] = NO_DTYPES,
) -> ImportedModel:
    """`read` and `import_model` in one; `name` is for messages and defaults to the file's.

    Of an ONNX file by path, tensors in other files of its folder are taken, too.

    Raises:
        UserError: there is no such file, or it cannot be read.
        ModelError: as `read` and `import_model`.
    """
    if isinstance(path_or_bytes, bytes):
        return import_model(read(path_or_bytes, name or "the model"), shapes, dtypes)
    path = Path(path_or_bytes)
    return import_model(read(model_bytes(path), name or path.name), shapes, dtypes)


def file_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _dtype(spec: TensorSpec, dtypes: Mapping[str, str]) -> np.dtype[Any]:
    if spec.name not in dtypes:
        return spec.dtype
    check_dtype(dtypes[spec.name])
    return numpy_dtype(dtypes[spec.name])


def _sizes(spec: TensorSpec) -> list[int]:
    return [size for size in spec.shape if isinstance(size, int)]  # all are: the spec is fixed


def _fed_in(module: IRModule, dtypes: Sequence[str]) -> IRModule:
    """The module with parameters of these types, converted at the start of `main` to the types it was written for."""
    main = module["main"]
    if [str(parameter.ty.dtype) for parameter in main.params] == list(dtypes):
        return module
    builder = relax.BlockBuilder(module)
    parameters, conversions = [], []
    for old, dtype in zip(main.params, dtypes, strict=True):
        new = relax.Var(old.name, relax.TensorType(old.ty.shape.values, dtype))
        parameters.append(new)
        converted = builder.normalize(relax.op.astype(new, str(old.ty.dtype)))
        conversions.append(relax.VarBinding(old, converted))  # what was a parameter is now computed from one
    body = relax.SeqExpr([relax.BindingBlock(conversions), *main.body.blocks], main.body.body)
    changed = relax.Function(parameters, body, main.ret_ty, is_pure=main.is_pure).with_attrs(main.attrs)
    functions = dict(module.functions.items())
    functions[module.get_global_var("main")] = changed
    return relax.transform.Normalize()(tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos))


def _outputs(module: IRModule, source: SourceModel) -> tuple[TensorSpec, ...]:
    found: list[TensorSpec] = []
    _gather(source.name, module["main"].ret_ty, found)
    names = source.outputs if len(source.outputs) == len(found) else [f"output_{i}" for i in range(len(found))]
    return tuple(TensorSpec(name, spec.shape, spec.dtype) for name, spec in zip(names, found, strict=True))


def _gather(name: str, kind: Any, found: list[TensorSpec]) -> None:
    """The tensors in a return type, tuples taken apart in order."""
    if isinstance(kind, relax.TupleType):
        for part in kind.fields:
            _gather(name, part, found)
    elif not isinstance(kind, relax.TensorType):
        raise ModelError(
            f"{name}: output {len(found)} is no tensor but {str(kind)[:80]}",
            hint="only models over tensors can be run: export the model without that output",
        )
    else:
        found.append(TensorSpec("", dimensions(kind), numpy_dtype(str(kind.dtype))))


_CONVOLUTIONS = frozenset(f"relax.nn.conv{n}d" for n in (1, 2, 3))
# Each input value meets every weight of its channel: https://onnx.ai/onnx/operators/onnx__ConvTranspose.html
_TRANSPOSED = frozenset(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))
_COUNTED = _CONVOLUTIONS | _TRANSPOSED | {"relax.matmul"}


def outline(source: SourceModel, missing: Sequence[str]) -> dict[str, Any]:
    """The known facts of a model whose shapes are open, as JSON; `missing`: the options that would fix them.

    Operators and parameters are the file's own; only an ONNX file has them.
    """
    known: dict[str, Any] = {"operators": None, "parameters": None, "parameters_bytes": None}
    if isinstance(source, OnnxModel) and source.format == "onnx":  # what Keras exports is not in its file
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
        "notes": list(source.notes),
    }


def summarise(model: ImportedModel) -> dict[str, Any]:
    """The JSON of `farm model show --json`, counted in the model's Relax.

    `operators` has Relax's names, most frequent first; `parameters` are the elements of all constants, running means
    and variances included; `macs` are the multiply-accumulates of convolutions and matrix products in one run: TensorIR
    (`tir.NAME`) and shapes that data decides count nothing.
    """
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
    return {
        "name": model.name,
        "format": model.format,
        "sha256": model.sha256,
        "inputs": [spec.to_wire() for spec in model.inputs],
        "outputs": [spec.to_wire() for spec in model.outputs],
        "operators": dict(operators.most_common()),
        "parameters": sum(elements for elements, _ in sizes.values()),
        "parameters_bytes": sum(size for _, size in sizes.values()),
        "macs": macs,
        "open": [],
        "notes": list(model.source.notes),
    }


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
