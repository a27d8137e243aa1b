"""Small TensorFlow Lite files with known weights, written with the flatbuffers builder: no TensorFlow needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

TYPES = {
    "resource": tflite.TensorType.RESOURCE,
    "float32": tflite.TensorType.FLOAT32,
    "int32": tflite.TensorType.INT32,
    "int8": tflite.TensorType.INT8,
}


@dataclass
class TfliteFile:
    """Tensors and operators in order; `inputs` and `outputs` are tensors' numbers."""

    tensors: list[tuple[str, tuple[int, ...], str, np.ndarray[Any, Any] | None]] = field(default_factory=list)
    operators: list[tuple[int, list[int], list[int], Any]] = field(default_factory=list)
    signatures: dict[int, tuple[int, ...]] = field(default_factory=dict)  # -1 where a dimension is open
    scales: dict[int, float] = field(default_factory=dict)  # of quantized tensors

    def tensor(self, name, shape, data=None, dtype="float32"):
        dtype = dtype if data is None else str(data.dtype)
        self.tensors.append((name, shape, dtype, data))
        return len(self.tensors) - 1

    def operator(self, code, inputs, output, options=None):
        """`options` is None or (BuiltinOptions number, function that writes the table and returns its offset)."""
        self.operators.append((code, inputs, [] if output is None else [output], options))

    def data(self, inputs, outputs):
        b = flatbuffers.Builder(1024)
        kept = [each for _, _, _, each in self.tensors if each is not None]
        contents = [b""] + [each.tobytes() for each in kept]  # the first buffer is empty: for tensors without data
        vectors = [b.CreateByteVector(content) if content else None for content in contents]
        buffers = [_table(b, "Buffer", Data=vector) for vector in vectors]
        tensors, used = [], 0
        for number, (name, shape, dtype, content) in enumerate(self.tensors):
            used += content is not None
            signature, quantized = self.signatures.get(number), None
            if number in self.scales:
                scale = b.CreateNumpyVector(np.array([self.scales[number]], np.float32))
                zero = b.CreateNumpyVector(np.array([0], np.int64))
                quantized = _table(b, "QuantizationParameters", Scale=scale, ZeroPoint=zero)
            made = _table(
                b, "Tensor", Name=b.CreateString(name), Shape=_numbers(b, shape), Type=TYPES[dtype],
                Buffer=used if content is not None else 0, ShapeSignature=signature and _numbers(b, signature),
                Quantization=quantized,
            )  # fmt: skip
            tensors.append(made)
        codes = sorted({code for code, *_ in self.operators})
        operators = []
        for code, taken, results, options in self.operators:
            kind, written = (options[0], options[1](b)) if options else (None, None)
            made = _table(
                b, "Operator", OpcodeIndex=codes.index(code), Inputs=_numbers(b, taken), Outputs=_numbers(b, results),
                BuiltinOptionsType=kind, BuiltinOptions=written,
            )  # fmt: skip
            operators.append(made)
        made_codes = [
            _table(b, "OperatorCode", BuiltinCode=code, DeprecatedBuiltinCode=min(code, 127), Version=1)
            for code in codes
        ]
        graph = _table(
            b, "SubGraph", Tensors=_vector(b, tflite.SubGraphStartTensorsVector, tensors), Inputs=_numbers(b, inputs),
            Outputs=_numbers(b, outputs), Operators=_vector(b, tflite.SubGraphStartOperatorsVector, operators),
        )  # fmt: skip
        model = _table(
            b, "Model", Version=3, OperatorCodes=_vector(b, tflite.ModelStartOperatorCodesVector, made_codes),
            Subgraphs=_vector(b, tflite.ModelStartSubgraphsVector, [graph]),
            Buffers=_vector(b, tflite.ModelStartBuffersVector, buffers),
        )  # fmt: skip
        b.Finish(model, file_identifier=b"TFL3")
        return bytes(b.Output())


def _table(b, kind, **fields):
    """A table of the schema; a field that is None is left out. What it refers to is written before."""
    getattr(tflite, f"{kind}Start")(b)
    for name, value in fields.items():
        if value is not None:
            getattr(tflite, f"{kind}Add{name}")(b, value)
    return int(getattr(tflite, f"{kind}End")(b))


def _numbers(b, numbers):
    return int(b.CreateNumpyVector(np.array(numbers, np.int32)))


def _vector(b, start, offsets):
    start(b, len(offsets))
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def convolution_options():
    """Stride 1, padding SAME, ReLU."""
    fields = {
        "Padding": tflite.Padding.SAME, "StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1,
        "FusedActivationFunction": tflite.ActivationFunctionType.RELU,
    }  # fmt: skip
    return tflite.BuiltinOptions.Conv2DOptions, lambda b: _table(b, "Conv2DOptions", **fields)


def dense_options():
    return tflite.BuiltinOptions.FullyConnectedOptions, lambda b: _table(b, "FullyConnectedOptions")


def convolution_and_dense(kernel, bias, dense, size, *, open_batch=False):
    """`image` (1 x size x size x channels), 3x3 convolution (kernel: out, 3, 3, in), ReLU, dense: `scores` (1 x n)."""
    file = TfliteFile()
    channels, classes = kernel.shape[0], dense.shape[0]
    image = file.tensor("image", (1, size, size, kernel.shape[3]))
    maps = file.tensor("maps", (1, size, size, channels))
    scores = file.tensor("scores", (1, classes))
    weights, shift = file.tensor("kernel", kernel.shape, kernel), file.tensor("bias", bias.shape, bias)
    matrix = file.tensor("matrix", dense.shape, dense)
    if open_batch:
        file.signatures[image] = (-1, size, size, kernel.shape[3])
    file.operator(tflite.BuiltinOperator.CONV_2D, [image, weights, shift], maps, convolution_options())
    row = file.tensor("row", (1, dense.shape[1]))
    sizes = file.tensor("sizes", (2,), np.array([1, dense.shape[1]], np.int32))
    file.operator(tflite.BuiltinOperator.RESHAPE, [maps, sizes], row)
    file.operator(tflite.BuiltinOperator.FULLY_CONNECTED, [row, matrix, -1], scores, dense_options())
    return file.data([image], [scores])


def by_numpy(kernel, bias, dense, image):
    """What `convolution_and_dense` computes."""
    padded, size = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0))), image.shape[1]
    maps = np.zeros((1, size, size, len(bias)), np.float32)
    for y in range(size):
        for x in range(size):
            maps[0, y, x] = np.einsum("ijc,oijc->o", padded[0, y : y + 3, x : x + 3], kernel) + bias
    return np.maximum(maps, 0).reshape(1, -1) @ dense.T


def unsupported(code=tflite.BuiltinOperator.RNN):
    """One operator that TVM's front end does not know; with a custom code, one that nobody knows."""
    file = TfliteFile()
    x, y = file.tensor("x", (1, 4)), file.tensor("hashes", (1, 4))
    file.operator(code, [x], y)
    return file.data([x], [y])
