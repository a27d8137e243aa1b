"""Keras files (.keras, .h5), converted to ONNX by Keras itself on its PyTorch backend: no TensorFlow. Extra [keras]."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from farm.compiler import onnx_model
from farm.compiler.model import Array, Evaluated, IRModule, TensorSpec
from farm.compiler.tvm_errors import end_of, first_line
from farm.core.errors import ModelError
from farm.core.extras import pip_install

INSTALL = f"{pip_install('keras')} into the toolchain's environment, or export the model as ONNX"
EXPORT_HINT = "export it where it was made: model.export('net.onnx', format='onnx') with Keras, or tf2onnx"


@dataclass(frozen=True, slots=True)
class KerasModel:
    """A Keras model and what it is as ONNX (a SourceModel). Layouts are Keras's: images are NHWC."""

    name: str
    keras: Any = field(repr=False)  # keras.Model
    onnx: onnx_model.OnnxModel = field(repr=False)
    sha256: str
    format: ClassVar[str] = "keras"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """As the ONNX model has them."""
        return self.onnx.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """As the ONNX model has them."""
        return self.onnx.outputs

    def to_relax(self, shapes: Mapping[str, Sequence[int]]) -> IRModule:
        """The model as a Relax module (SourceModel.to_relax).

        Raises:
            ModelError: an operator is not supported, or a node cannot be converted; both are named.
        """
        return self.onnx.to_relax(shapes)

    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """Keras itself, so that the conversion to ONNX is checked too."""
        import keras

        try:
            with _quiet():
                given = [keras.ops.convert_to_tensor(inputs[spec.name]) for spec in self.inputs]
                made = self.keras(given if len(given) > 1 else given[0], training=False)
                outputs = [np.asarray(keras.ops.convert_to_numpy(each)) for each in keras.tree.flatten(made)]
        except Exception as error:  # noqa: BLE001 - whatever a layer raises; the reason goes into the result
            return Evaluated(None, f"Keras cannot run this model: {first_line(error)}")
        return Evaluated(tuple(outputs), f"keras {keras.__version__} on {keras.backend.backend()}")


def read(data: bytes, name: str) -> KerasModel:
    """Load a Keras file and convert it; layers that carry code of their own (Lambda) are refused.

    Raises:
        ModelError: Keras, PyTorch or onnxscript is not installed; the file cannot be read or converted.
    """
    os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads it when it is imported
    try:
        import keras
        import onnxscript  # type: ignore[import-not-found, unused-ignore]  # noqa: F401 (Keras's export needs it)
        import torch  # noqa: F401
    except ImportError as error:
        raise ModelError(f"{name} is a Keras model, and {error.name} is not installed here", hint=INSTALL) from error
    suffix = ".h5" if data[:4] == b"\x89HDF" else ".keras"
    with tempfile.TemporaryDirectory(prefix="farm-keras-") as folder, _quiet():
        path, converted = Path(folder) / f"model{suffix}", Path(folder) / "model.onnx"
        path.write_bytes(data)
        try:
            model = keras.saving.load_model(path, compile=False, safe_mode=True)
        except Exception as error:
            raise ModelError(
                f"{name}: Keras {keras.__version__} cannot read it: {first_line(error)}",
                hint=EXPORT_HINT,
                evidence=end_of(error),
            ) from error
        try:
            model([np.zeros([size or 1 for size in each.shape], each.dtype) for each in model.inputs])
            model.export(converted, format="onnx", verbose=False)
            onnx_bytes = converted.read_bytes()
        except Exception as error:
            raise ModelError(
                f"{name}: Keras {keras.__version__} cannot convert it to ONNX: {first_line(error)}",
                hint=EXPORT_HINT,
                evidence=end_of(error),
            ) from error
    return KerasModel(name, model, onnx_model.read(onnx_bytes, name), hashlib.sha256(data).hexdigest())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # about the exporter's own internals
        yield
