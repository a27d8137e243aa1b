"""Reads models of every format and imports them into TVM. What is wrong with a file is said with its name and place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from farm.compiler import onnx_model, relax_model, tflite_model
from farm.compiler.clips import without_clips
from farm.compiler.formats import format_of, may_be_onnx, unknown_format
from farm.compiler.inputs import NO_DTYPES, NO_SHAPES, check_names, fixed_inputs
from farm.compiler.model import ImportedModel, IRModule, SourceModel, TensorSpec, numpy_dtype
from farm.compiler.symbolic import dimensions
from farm.core.errors import ModelError, UserError
from farm.core.shape_option import check_dtype

IMPORT = 1  # raise it when the same file becomes another module: what was kept by key is then not used


def read(data: bytes, name: str) -> SourceModel:
    """Parse and check a model file. Its content tells the format, or else the suffix of `name`.

    Raises:
        ModelError: it is no model, is cut short, or a package that reads its format is not installed.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give a model file")
    kind = format_of(data, name)
    if kind == "torch":
        from farm.compiler import torch_model

        return torch_model.read(data, name)
    if kind == "keras":
        from farm.compiler import keras_model

        return keras_model.read(data, name)
    if kind == "relax":
        return relax_model.read_json(data, name)
    if kind == "script":
        return relax_model.read_script(data, name)
    if kind == "tflite":
        return tflite_model.read(data, name)
    try:
        return onnx_model.read(data, name)
    except ModelError as error:
        if may_be_onnx(data, name):
            raise
        raise unknown_format(name) from error


def import_model(
    source: SourceModel,
    shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    dtypes: Mapping[str, str] = NO_DTYPES,
    *,
    by_arrays: bool = False,
) -> ImportedModel:
    """Convert a model to Relax with every shape fixed.

    `shapes` fixes what the file leaves open. An input in `dtypes` is fed in that type and converted to the file's at
    the model's start, so the numbers inside stay those of the file. `by_arrays`: a hint may tell of --input.

    Raises:
        ShapeError: a name is no input; a shape has another rank or contradicts the file; a dimension stays open.
        ModelError: an operator is not supported, or a node cannot be converted; both are named.
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

    Raises:
        UserError: there is no such file, or it cannot be read.
        ModelError: as `read` and `import_model`.
    """
    if isinstance(path_or_bytes, bytes):
        return import_model(read(path_or_bytes, name or "the model"), shapes, dtypes)
    path = Path(path_or_bytes)
    return import_model(read(file_bytes(path), name or path.name), shapes, dtypes)


def file_bytes(path: Path) -> bytes:
    """What a file holds.

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
    """The module with parameters of these types, converted at the start of `main` to what it was written for."""
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
