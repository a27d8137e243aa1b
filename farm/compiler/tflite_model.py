"""TensorFlow Lite files (.tflite): https://github.com/google-ai-edge/LiteRT/blob/main/tflite/schema/schema.fbs."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import tvm
from tvm import relax

from farm.common.errors import ModelError
from farm.common.install import pip_install
from farm.compiler.model import Array, Evaluated, IRModule, Naming, SourceModel, TensorSpec, numpy_dtype
from farm.compiler.naming import bound, numbers, variables_named
from farm.compiler.tvm_errors import end_of, first_line, frames

INSTALL = f"{pip_install('tvm')} into the toolchain's environment"
_OPERATOR_LOOPS = ("check_unsupported_ops", "convert_op_to_relax")  # functions of TVM's front end
ASSIGN = "ASSIGN_VARIABLE"
STATE = "it keeps state in variables: here each run begins with their first values"
_MOVING = frozenset({ASSIGN, "EXPAND_DIMS", "READ_VARIABLE", "STRIDED_SLICE"})  # numbers, unchanged
_NAMES = re.compile(r"'([A-Z0-9_]+)'")  # of operators in TVM's errors
OPEN = -1  # a size in Tensor.shape_signature that the file leaves open


@dataclass(frozen=True, slots=True)
class TfliteModel(SourceModel):
    """A checked TensorFlow Lite model. Its layouts are TensorFlow's: images are NHWC."""

    flatbuffer: Any = field(repr=False)  # tflite.Model
    data: bytes = field(repr=False)  # the file
    format: ClassVar[str] = "tflite"

    def to_relax(self, shapes: Mapping[str, Sequence[int]]) -> IRModule:
        """The model as a Relax module (SourceModel.to_relax).

        Raises:
            ModelError: an operator is not supported, or cannot be converted; both are named.
        """
        from tvm.relax.frontend.tflite import from_tflite

        try:
            with _corrected_front_end():
                return from_tflite(self.flatbuffer, shape_dict={name: tuple(shape) for name, shape in shapes.items()})
        except Exception as error:
            listed = self._unsupported(str(error)) if isinstance(error, tvm.error.OpNotImplemented) else ""
            where = _where(self.flatbuffer, error)
            raise ModelError(
                f"{self.name}: TVM's TensorFlow Lite front end does not support {listed}"
                if listed
                else f"{self.name}: TVM cannot convert it{where}: {first_line(error)}",
                hint="rewrite that operator, or export the model as ONNX",
                evidence=end_of(error),
            ) from error

    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:  # noqa: ARG002 (as every SourceModel)
        """None: `second_reference` may have one."""
        return Evaluated(None, "no evaluator of TensorFlow Lite files but TVM is here")

    def second_reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """LiteRT, where it is installed."""
        try:
            litert = import_module("ai_edge_litert.interpreter")
        except ImportError:
            return Evaluated(None, "LiteRT (ai-edge-litert) is not installed here")
        try:
            interpreter = litert.Interpreter(model_content=self.data)
            places = [each["index"] for each in interpreter.get_input_details()]
            arrays = [inputs[spec.name] for spec in self.inputs]
            for place, array in zip(places, arrays, strict=True):
                interpreter.resize_tensor_input(place, array.shape)
            interpreter.allocate_tensors()
            for place, array in zip(places, arrays, strict=True):
                interpreter.set_tensor(place, array)
            interpreter.invoke()
            outputs = [interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()]
        except Exception as error:  # noqa: BLE001 - RuntimeError, ValueError; the reason goes into the result
            return Evaluated(None, f"LiteRT cannot run this model: {first_line(error)}")
        return Evaluated(tuple(map(np.asarray, outputs)), "LiteRT")

    @contextlib.contextmanager
    def naming(self) -> Iterator[Naming]:
        """Within, variables have the numbers of their operators."""
        graph = self.flatbuffer.Subgraphs(0)

        def words(variables: Sequence[str], _others: Collection[str]) -> list[str]:
            return [f"{_kind(self.flatbuffer, each)} ({_place(graph, each)})" for each in sorted(numbers(variables))]

        with _operators_numbered(graph):
            yield words

    def _unsupported(self, text: str) -> str:
        """The operators in TVM's error, with the first place of each; empty when the error lists none."""
        graph, places = self.flatbuffer.Subgraphs(0), []
        for kind in dict.fromkeys(_NAMES.findall(text)):
            found = next((i for i in range(graph.OperatorsLength()) if _kind(self.flatbuffer, i) == kind), None)
            places.append(kind if found is None else f"{kind} ({_place(graph, found)})")
        return ", ".join(places)


def read(data: bytes, name: str) -> TfliteModel:
    """Parse and check a .tflite file; `name` is for messages.

    Raises:
        ModelError: the package tflite is not installed; the file is cut short, damaged, or keeps its weights elsewhere.
    """
    try:
        import tflite
    except ImportError as error:
        raise ModelError(
            f"{name} is a TensorFlow Lite model, and the package tflite is not installed here", hint=INSTALL
        ) from error
    try:
        model = tflite.Model.GetRootAsModel(data, 0)
        if model.SubgraphsLength() < 1:
            raise ValueError("it has no graph")
        _walk(model, name)
        graph = model.Subgraphs(0)
        inputs = tuple(_spec(graph, graph.Inputs(i), name) for i in range(graph.InputsLength()))
        outputs = tuple(_tensor_name(graph, graph.Outputs(i)) for i in range(graph.OutputsLength()))
    except ModelError:
        raise
    except Exception as error:  # flatbuffers follows offsets wherever they point: struct.error, IndexError, numpy's
        raise ModelError(
            f"{name} is a TensorFlow Lite model that is cut short or damaged",
            hint="copy or convert it again",
            evidence=str(error),
        ) from error
    kinds = {_kind(model, index) for index in range(graph.OperatorsLength())}
    notes = (STATE,) if ASSIGN in kinds else ()
    return TfliteModel(name, hashlib.sha256(data).hexdigest(), inputs, outputs, model, data, notes=notes)


@contextlib.contextmanager
def _operators_numbered(graph: Any) -> Iterator[None]:
    """Let TVM's front end give variables the numbers of the operators that they are made for."""
    from tvm.relax.frontend.tflite.tflite_frontend import ExprTable, OperatorConverter

    operators = {graph.Operators(at).Outputs(0): at for at in range(graph.OperatorsLength())}
    kind_of, set_value = OperatorConverter.get_op_code_str, ExprTable.set_expr
    converters: list[Any] = []

    with variables_named() as parts:

        def kind_of_next(self: Any, op: Any) -> Any:
            parts.number, converters[:] = operators.get(op.Outputs(0)), [self]
            return kind_of(self, op)

        def set_bound(self: Any, name: str, value: Any, force_override: bool = False) -> None:
            set_value(self, name, bound(converters[0].bb, value) if converters else value, force_override)

        OperatorConverter.get_op_code_str, ExprTable.set_expr = kind_of_next, set_bound
        try:
            yield
        finally:
            OperatorConverter.get_op_code_str, ExprTable.set_expr = kind_of, set_value


@contextlib.contextmanager
def _corrected_front_end() -> Iterator[None]:
    """Make TVM's front end (0.27) convert operators that it has but fails on.

    It gives EXPAND_DIMS an argument too many. It refuses ASSIGN_VARIABLE outside of an initialisation: here a later
    READ_VARIABLE of the same run has the new value. It refuses quantized numbers even where they are only moved.
    """
    from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter

    originals: dict[str, Any] = {}

    def check(self: Any) -> None:
        try:
            originals["check_unsupported_ops"](self)
        except tvm.error.OpNotImplemented as error:
            if not _MOVING.issuperset(_NAMES.findall(str(error))):
                raise

    def expand_dims(self: Any, op: Any) -> Any:
        data, axis = self.get_input_tensors(op)
        return relax.op.expand_dims(self.get_tensor_expr(data), int(np.ravel(self.get_tensor_value(axis))[0]))

    def assign_variable(self: Any, op: Any) -> None:
        handle, value = self.get_input_tensors(op)
        key = self._get_resource_key_for_handle(handle, ASSIGN)
        self.conversion_state["resource_values"][key] = self.get_tensor_expr(value)

    corrected = {
        "convert_expand_dims": expand_dims, "convert_assign_variable": assign_variable, "check_unsupported_ops": check,
    }  # fmt: skip
    originals |= {name: vars(OperatorConverter)[name] for name in corrected}
    for name, function in corrected.items():
        setattr(OperatorConverter, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(OperatorConverter, name, function)


def _walk(model: Any, name: str) -> None:
    """Touch everything that the conversion follows: a cut file fails here."""
    for i in range(model.BuffersLength()):
        buffer = model.Buffers(i)
        if buffer.Offset() > 1:  # 0 and 1 mean: inside the flatbuffer
            raise ModelError(f"{name} keeps its weights outside the model", hint="convert it to below 2 GB")
        buffer.DataAsNumpy()
    graph = model.Subgraphs(0)
    for i in range(graph.TensorsLength()):
        tensor = graph.Tensors(i)
        tensor.ShapeAsNumpy()
        _tensor_name(graph, i)
        if tensor.Buffer() >= model.BuffersLength():
            raise ValueError("a tensor without a buffer")
    for i in range(graph.OperatorsLength()):
        _kind(model, i)
        _place(graph, i)


def _spec(graph: Any, index: int, model: str) -> TensorSpec:
    from tvm.relax.frontend.tflite.tflite_frontend import _decode_type

    tensor, name = graph.Tensors(index), _tensor_name(graph, index)
    kind = _decode_type(tensor.Type())
    if kind in ("string", "complex64"):
        raise ModelError(f"{model}: input {name!r} is {kind}", hint="only models over tensors of numbers can be run")
    shape = [int(tensor.Shape(i)) for i in range(tensor.ShapeLength())]
    for i in range(tensor.ShapeSignatureLength()):
        if tensor.ShapeSignature(i) == OPEN:
            shape[i] = OPEN
    return TensorSpec(name, tuple("?" if size == OPEN else size for size in shape), numpy_dtype(kind))


def _kind(model: Any, index: int) -> str:
    """The operator's name as TVM's front end has it."""
    import tflite

    names = {value: name for name, value in vars(tflite.BuiltinOperator).items() if not name.startswith("_")}
    code = model.OperatorCodes(model.Subgraphs(0).Operators(index).OpcodeIndex())
    kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())  # files from before 2020 have the second only
    return code.CustomCode().decode() if code.CustomCode() else str(names[kind])


def _place(graph: Any, index: int) -> str:
    operator = graph.Operators(index)
    made = f" that makes {_tensor_name(graph, operator.Outputs(0))!r}" if operator.OutputsLength() else ""
    return f"operator {index}{made}"


def _tensor_name(graph: Any, index: int) -> str:
    from tvm.relax.frontend.tflite.tflite_frontend import get_tensor_name

    return str(get_tensor_name(graph, index))


def _where(model: Any, error: BaseException) -> str:
    """The operator at which the front end failed; its error does not name it."""
    found = ""
    for function, held in frames(error):
        if function in _OPERATOR_LOOPS and "op_idx" in held:
            found = f" at {_kind(model, held['op_idx'])} ({_place(model.Subgraphs(0), held['op_idx'])})"
    return found
