"""Programs that `torch.export.save` wrote (.pt2). Needs the extra [torch]; tensors alone are unpickled from a file."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from farm.common.errors import ModelError
from farm.common.install import pip_install
from farm.compiler.model import Array, Evaluated, IRModule, SourceModel, TensorSpec, numpy_dtype, shape_error
from farm.compiler.relax_passes import bound, sizes_by_name
from farm.compiler.shape_option import MAX_DIMENSION
from farm.compiler.tvm_errors import end_of, first_line, frames

INSTALL = f"{pip_install('torch')} into the toolchain's environment, or export the model as ONNX"


@dataclass(frozen=True, slots=True)
class TorchModel(SourceModel):
    """An exported program. Open dimensions have torch's own names for them, such as `s77`."""

    program: Any = field(repr=False)  # torch.export.ExportedProgram
    format: ClassVar[str] = "torch"

    @property
    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """The exported ranges. torch's infinity (int_oo) is no int."""
        return {
            str(symbol): (int(max(allowed.lower, 1)), int(min(allowed.upper, MAX_DIMENSION)))
            for symbol, allowed in self.program.range_constraints.items()
        }

    def to_relax(self, shapes: Mapping[str, Sequence[int]]) -> IRModule:
        """The model as a Relax module (SourceModel.to_relax).

        Raises:
            ModelError: a dimension is outside what it was exported for; one name stands for two sizes; an operator is
                not supported or a node cannot be converted (both are named).
        """
        from tvm.relax.frontend.torch import from_exported_program

        sizes = self._sizes(shapes)
        try:
            with _quiet():
                module = from_exported_program(self.program)
        except Exception as error:
            raise ModelError(
                _conversion_error(self, error), hint="rewrite that part of the model, or export it as ONNX"
            ) from error
        return bound(module, sizes)

    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """PyTorch itself, on the CPU."""
        import torch
        from torch.utils import _pytree

        try:
            with _quiet(), torch.no_grad():
                given = [_tensor(inputs[spec.name]) for spec in self.inputs]
                args, kwargs = _pytree.tree_unflatten(given, self.program.call_spec.in_spec)
                outputs = _pytree.tree_leaves(self.program.module()(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever torch raises; the reason goes into the result
            return Evaluated(None, f"torch cannot run this model: {first_line(error)}")
        return Evaluated(tuple(_array(each) for each in outputs), f"torch {torch.__version__}")

    def _sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, str]]:
        sizes = sizes_by_name(self.name, self.inputs, shapes)
        for symbol, (least, most) in self.bounds.items():
            size, _ = sizes.get(symbol, (least, ""))
            if not least <= size <= most:
                raise shape_error(
                    f"{self.name}: dimension {symbol!r} is {size}, and it was exported for {least} to {most}",
                    hint="choose a size in that range, or export the model for others",
                )
        return sizes


def read(data: bytes, name: str) -> TorchModel:
    """Parse a .pt2 file; `name` is for messages.

    Raises:
        ModelError: torch is not installed, cannot read it, or the program takes something else than tensors.
    """
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"{name} is a program of torch.export, and PyTorch is not installed here", hint=INSTALL
        ) from error
    try:
        with _quiet(), _tensors_only():
            program = torch.export.load(io.BytesIO(data))
    except Exception as error:
        raise ModelError(
            f"{name}: PyTorch {torch.__version__} cannot read it: {first_line(error)}",
            hint="copy it again, or save it again with torch.export.save and this version of PyTorch",
            evidence=end_of(error),
        ) from error
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return TorchModel(
        name,
        hashlib.sha256(data).hexdigest(),
        tuple(_spec(each, values.get(each), name) for each in signature.user_inputs),
        tuple(str(each) for each in signature.user_outputs),
        program,
    )


def _spec(input_name: object, value: Any, name: str) -> TensorSpec:
    import torch

    if not isinstance(value, torch.Tensor):
        raise ModelError(f"{name}: input {input_name!r} is no tensor", hint="only models over tensors can be run")
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    try:
        return TensorSpec(str(input_name), shape, numpy_dtype(str(value.dtype).removeprefix("torch.")))
    except TypeError as error:
        raise ModelError(f"{name}: input {input_name!r} is {value.dtype}, which numpy does not know") from error


def _conversion_error(model: TorchModel, error: Exception) -> str:
    """The message of a failed conversion, with the graph's node, which only the front end's frames have."""
    where = ""
    for place, held in frames(error):
        if place == "_check_unsupported_func_type" and held.get("missing_func_types"):
            missing = {_kind(node): node.name for node in held["nodes"] if _kind(node) in held["missing_func_types"]}
            listed = ", ".join(f"{kind} (node {node!r})" for kind, node in sorted(missing.items()))
            return f"{model.name}: TVM's PyTorch front end does not support {listed}"
        if place == "_translate_fx_graph" and "node" in held:
            where = f" at {_kind(held['node'])} (node {held['node'].name!r})"
    return f"{model.name}: TVM cannot convert it{where}: {first_line(error)}"


def _kind(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _tensor(array: Array) -> Any:
    import torch

    if array.dtype == numpy_dtype("bfloat16"):  # numpy and torch share no such type
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _array(tensor: Any) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.uint16).numpy()).view(numpy_dtype("bfloat16"))
    return np.asarray(tensor.detach().numpy())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its own internals
        yield


@contextlib.contextmanager
def _tensors_only() -> Iterator[None]:
    """torch.export.load unpickles whatever is in the file; with this, torch.load takes tensors and nothing else."""
    name, before = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
