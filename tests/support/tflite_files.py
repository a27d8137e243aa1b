"""Small TensorFlow Lite files with known weights, written with the flatbuffers builder: no TensorFlow needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

TYPES = {"float32": tflite.TensorType.FLOAT32, "int32": tflite.TensorType.INT32, "int8": tflite.TensorType.INT8}


@dataclass
class TfliteFile:
    """Tensors and operators in order; `inputs` and `outputs` are tensors' numbers."""

    tensors: list[tuple[str, tuple[int, ...], str, np.ndarray[Any, Any] | None]] = field(default_factory=list)
    operators: list[tuple[int, list[int], list[int], Any]] = field(default_factory=list)
    signatures: dict[int, tuple[int, ...]] = field(default_factory=dict)  # -1 where a dimension is open

    def tensor(self, name: str, shape: tuple[int, ...], data: np.ndarray[Any, Any] | None = None) -> int:
        dtype = "float32" if data is None else str(data.dtype)
        self.tensors.append((name, shape, dtype, data))
        return len(self.tensors) - 1

    def operator(self, code: int, inputs: list[int], output: int, options: Any = None) -> None:
        """`options` is None or (BuiltinOptions number, function that writes the table and returns its offset)."""
        self.operators.append((code, inputs, [output], options))

    def data(self, inputs: list[int], outputs: list[int]) -> bytes:
        b = flatbuffers.Builder(1024)
        kept = [each for _, _, _, each in self.tensors if each is not None]
        contents = [b""] + [each.tobytes() for each in kept]  # the first buffer is empty: for tensors without data
        buffers = []
        for content in contents:
            vector = b.CreateByteVector(content) if content else None
            tflite.BufferStart(b)
            if vector is not None:
                tflite.BufferAddData(b, vector)
            buffers.append(tflite.BufferEnd(b))
        tensors, used = [], 0
        for number, (name, shape, dtype, content) in enumerate(self.tensors):
            used += content is not None
            text, sizes = b.CreateString(name), b.CreateNumpyVector(np.array(shape, np.int32))
            signature = self.signatures.get(number)
            signed = None if signature is None else b.CreateNumpyVector(np.array(signature, np.int32))
            tflite.TensorStart(b)
            tflite.TensorAddName(b, text)
            tflite.TensorAddShape(b, sizes)
            tflite.TensorAddType(b, TYPES[dtype])
            tflite.TensorAddBuffer(b, used if content is not None else 0)
            if signed is not None:
                tflite.TensorAddShapeSignature(b, signed)
            tensors.append(tflite.TensorEnd(b))
        codes = sorted({code for code, *_ in self.operators})
        operators = [self._operator(b, codes, *each) for each in self.operators]
        made_codes = [self._code(b, code) for code in codes]
        graph_parts = [
            self._vector(b, tflite.SubGraphStartTensorsVector, tensors),
            b.CreateNumpyVector(np.array(inputs, np.int32)),
            b.CreateNumpyVector(np.array(outputs, np.int32)),
            self._vector(b, tflite.SubGraphStartOperatorsVector, operators),
        ]
        tflite.SubGraphStart(b)
        for add, part in zip(
            (
                tflite.SubGraphAddTensors,
                tflite.SubGraphAddInputs,
                tflite.SubGraphAddOutputs,
                tflite.SubGraphAddOperators,
            ),
            graph_parts,
            strict=True,
        ):
            add(b, part)
        graph = tflite.SubGraphEnd(b)
        model_parts = [
            self._vector(b, tflite.ModelStartOperatorCodesVector, made_codes),
            self._vector(b, tflite.ModelStartSubgraphsVector, [graph]),
            self._vector(b, tflite.ModelStartBuffersVector, buffers),
        ]
        tflite.ModelStart(b)
        tflite.ModelAddVersion(b, 3)
        for add, part in zip(
            (tflite.ModelAddOperatorCodes, tflite.ModelAddSubgraphs, tflite.ModelAddBuffers), model_parts, strict=True
        ):
            add(b, part)
        b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
        return bytes(b.Output())

    @staticmethod
    def _code(b: Any, code: int) -> int:
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddBuiltinCode(b, code)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(code, 127))
        tflite.OperatorCodeAddVersion(b, 1)
        return int(tflite.OperatorCodeEnd(b))

    @staticmethod
    def _operator(b: Any, codes: list[int], code: int, inputs: list[int], outputs: list[int], options: Any) -> int:
        taken, made = b.CreateNumpyVector(np.array(inputs, np.int32)), b.CreateNumpyVector(np.array(outputs, np.int32))
        table = options[1](b) if options else None
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, codes.index(code))
        tflite.OperatorAddInputs(b, taken)
        tflite.OperatorAddOutputs(b, made)
        if options:
            tflite.OperatorAddBuiltinOptionsType(b, options[0])
            tflite.OperatorAddBuiltinOptions(b, table)
        return int(tflite.OperatorEnd(b))

    @staticmethod
    def _vector(b: Any, start: Any, offsets: list[int]) -> int:
        start(b, len(offsets))
        for offset in reversed(offsets):
            b.PrependUOffsetTRelative(offset)
        return int(b.EndVector())


def convolution_options() -> tuple[int, Any]:
    """Stride 1, padding SAME, ReLU."""

    def write(b: Any) -> int:
        tflite.Conv2DOptionsStart(b)
        tflite.Conv2DOptionsAddPadding(b, tflite.Padding.SAME)
        tflite.Conv2DOptionsAddStrideW(b, 1)
        tflite.Conv2DOptionsAddStrideH(b, 1)
        tflite.Conv2DOptionsAddDilationWFactor(b, 1)
        tflite.Conv2DOptionsAddDilationHFactor(b, 1)
        tflite.Conv2DOptionsAddFusedActivationFunction(b, tflite.ActivationFunctionType.RELU)
        return int(tflite.Conv2DOptionsEnd(b))

    return tflite.BuiltinOptions.Conv2DOptions, write


def dense_options() -> tuple[int, Any]:
    def write(b: Any) -> int:
        tflite.FullyConnectedOptionsStart(b)
        return int(tflite.FullyConnectedOptionsEnd(b))

    return tflite.BuiltinOptions.FullyConnectedOptions, write


def convolution_and_dense(kernel: Any, bias: Any, dense: Any, size: int, *, open_batch: bool = False) -> bytes:
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


def by_numpy(kernel: Any, bias: Any, dense: Any, image: Any) -> Any:
    """What `convolution_and_dense` computes."""
    padded, size = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0))), image.shape[1]
    maps = np.zeros((1, size, size, len(bias)), np.float32)
    for y in range(size):
        for x in range(size):
            maps[0, y, x] = np.einsum("ijc,oijc->o", padded[0, y : y + 3, x : x + 3], kernel) + bias
    return np.maximum(maps, 0).reshape(1, -1) @ dense.T


def unsupported(code: int = tflite.BuiltinOperator.RNN) -> bytes:
    """One operator that TVM's front end does not know; with a custom code, one that nobody knows."""
    file = TfliteFile()
    x, y = file.tensor("x", (1, 4)), file.tensor("hashes", (1, 4))
    file.operator(code, [x], y)
    return file.data([x], [y])
