"""A model as the farm sees it: a file that was read, and what TVM made of it. Every format is one `SourceModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from farm.core.errors import ModelError

Array = np.ndarray[Any, Any]
IRModule = Any  # tvm.IRModule; TVM publishes no types


class ShapeError(ModelError):
    """The shapes or types asked for do not fit the model."""

    code = "bad_shape"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the graph's edge. A dimension that the file does not fix is its name, or "?"."""

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"name": self.name, "shape": list(self.shape), "dtype": str(self.dtype)}


class SourceModel(Protocol):
    """A file that was read and checked. Nothing is converted yet: this is cheap."""

    @property
    def name(self) -> str:
        """What people call it: its file name."""

    @property
    def format(self) -> str:
        """`onnx`, `torch`, `tflite`, `relax` or `keras`."""

    @property
    def sha256(self) -> str:
        """Of the file."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """In the file's order; dimensions may be open."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names, in the file's order."""

    def to_relax(self, shapes: Mapping[str, Sequence[int]]) -> IRModule:
        """The model as a Relax module: weights are constants, the parameters of `main` are the inputs in order.

        `shapes` has every input. Types are the file's: `farm.compiler.load.import_model` changes them afterwards.

        Raises:
            ModelError: an operator is not supported, or cannot be converted; both are named.
        """

    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """The outputs for these inputs (of the file's types) by an evaluator that is not TVM."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What an evaluator that is not TVM says about a model."""

    outputs: tuple[Array, ...] | None  # None: there is no such evaluator, or it cannot run this model
    by: str  # which evaluator, or why there is none


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model in TVM's hands, every shape fixed."""

    name: str
    format: str
    sha256: str  # of the file
    key: str  # SHA-256 of what shaped `module`: file, shapes, types, TVM version. For caches and records
    module: IRModule = field(repr=False, compare=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: SourceModel = field(repr=False, compare=False)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """A type of TVM's as numpy's; bfloat16 and 8 bit floats are ml_dtypes'."""
    return np.dtype(getattr(ml_dtypes, name, name))


def typed(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array from an .npz in its type: those that numpy itself does not know (bfloat16) come back as raw bytes."""
    return array.view(dtype) if array.dtype.kind == "V" else array


def shown(shape: Sequence[int | str]) -> str:
    """A shape for messages: `1x3x224x224`."""
    return "x".join(map(str, shape)) or "scalar"
