"""ONNX files, and Keras files (.keras, .h5). An error about a file names the place in it.

Keras itself converts its files to ONNX, on its PyTorch backend: no TensorFlow is needed. Extra [keras].
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx, onnx_frontend

from farm.common.errors import ModelError
from farm.common.install import pip_install
from farm.compiler.model import Array, Evaluated, IRModule, Naming, SourceModel
from farm.compiler.naming import bound, numbers, variables_named
from farm.compiler.onnx_file import arrays_in, folded, nodes_in, read_proto, tensors_in
from farm.compiler.relax_passes import onnx_clips_in_relax
from farm.compiler.shape_option import MAX_RANK
from farm.compiler.tvm_errors import end_of, first_line, frames


@dataclass(frozen=True, slots=True)
class OnnxModel(SourceModel):
    """A checked ONNX model."""

    proto: Any = field(repr=False)  # onnx.ModelProto
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
                return from_onnx(folded(self.proto, given), shape_dict=given, keep_params_in_input=False)
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
        """ONNX's names of the model's operators, and how often each stands in it."""
        return Counter(node.op_type for node in nodes_in(self.proto))

    def parameters(self) -> tuple[int, int]:
        """Elements of all constants, and their bytes."""
        tensors = arrays_in(self.proto)
        sizes = [(math.prod(each.dims), onnx.helper.tensor_dtype_to_np_dtype(each.data_type)) for each in tensors]
        return sum(size for size, _ in sizes), sum(size * dtype.itemsize for size, dtype in sizes)

    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """ONNX's own evaluator (numpy, shares no code with TVM)."""
        try:
            outputs = ReferenceEvaluator(_at_opset(self.proto)).run(None, dict(inputs))
        except Exception as error:  # noqa: BLE001 - it raises whatever numpy does; the reason goes into the result
            return Evaluated(None, f"onnx.reference cannot run this model: {first_line(error)}")
        return Evaluated(tuple(np.asarray(output) for output in outputs), "onnx.reference")

    def second_reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """ONNX Runtime, where it is installed."""
        try:
            runtime = import_module("onnxruntime")
        except ImportError:
            return Evaluated(None, "onnxruntime is not installed here")
        try:
            options = runtime.SessionOptions()
            options.log_severity_level = 4  # its warnings are about the file
            session = runtime.InferenceSession(
                self.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            outputs = session.run(None, dict(inputs))
        except Exception as error:  # noqa: BLE001 - protobuf's and its own; the reason goes into the result
            return Evaluated(None, f"onnxruntime cannot run this model: {first_line(error)}")
        return Evaluated(tuple(np.asarray(output) for output in outputs), f"onnxruntime {runtime.__version__}")

    @contextlib.contextmanager
    def naming(self) -> Iterator[Naming]:
        """Within, variables have the numbers of their nodes."""
        with _nodes_numbered(self.proto):
            yield partial(_nodes_of, self.proto.graph)

    def disputed_part(self, inputs: Mapping[str, Array]) -> str:
        """The first node for which TVM and onnx.reference differ, given onnx.reference's inputs of the node."""
        proto = _at_opset(self.proto)
        found = ReferenceEvaluator(proto).run(None, dict(inputs), intermediate=True)
        known = {name: np.asarray(value) for name, value in found.items()}
        tried = set()
        for node in proto.graph.node:
            values = {name: known[name] for name in [*node.input, *node.output] if name in known}
            kind = (node.op_type, *(each.SerializeToString() for each in node.attribute), *map(_like, values.values()))
            if node.op_type != "Constant" and kind not in tried and not _computes(proto, node, values):
                return f"{node.op_type} (node {_node_name(node)}) has other numbers in TVM than in onnx.reference"
            tried.add(kind)
        return ""


_NUMBERED = re.compile(r"node(\d+)")


@contextlib.contextmanager
def _nodes_numbered(proto: Any) -> Iterator[None]:
    """Give nodes numbers for names, and TVM's variables those of the nodes they are made for."""
    importer, names = onnx_frontend.ONNXGraphImporter, [node.name for node in proto.graph.node]
    convert = importer._convert_operator  # noqa: SLF001

    with variables_named() as parts:

        def convert_named(self: Any, kind: str, inputs: Any, attributes: Any, opset: int) -> Any:
            found = _NUMBERED.fullmatch(attributes["tvm_custom"]["name"])
            parts.number = int(found[1]) if found else None
            try:
                made = convert(self, kind, inputs, attributes, opset)
                return made if "Sequence" in kind or "Optional" in kind else bound(self.bb, made)
            finally:
                parts.number = None

        try:
            importer._convert_operator = convert_named  # noqa: SLF001
            for number, node in enumerate(proto.graph.node):
                node.name = f"node{number}"
            yield
        finally:
            importer._convert_operator = convert  # noqa: SLF001
            for node, name in zip(proto.graph.node, names, strict=True):
                node.name = name


def _nodes_of(graph: Any, variables: Sequence[str], others: Collection[str]) -> list[str]:
    """The nodes that became these variables; with those folded into them, which became no variable of their own."""
    makers = {name: number for number, node in enumerate(graph.node) for name in node.output}
    elsewhere, found = numbers(others), numbers(variables)
    waiting = list(found)
    while waiting:
        for name in graph.node[waiting.pop()].input:
            number = makers.get(name)
            if number is not None and number not in found | elsewhere and graph.node[number].op_type != "Constant":
                found.add(number)
                waiting.append(number)
    return [f"{graph.node[each].op_type} (node {_node_name(graph.node[each])})" for each in sorted(found)]


def read(data: bytes, name: str) -> OnnxModel:
    """Parse and check an ONNX file; `name` is for messages.

    Raises:
        ModelError: as `farm.compiler.onnx_file.read_proto`.
    """
    proto, notes = read_proto(data, name)
    inputs, outputs = tensors_in(proto, name), tuple(value.name for value in proto.graph.output)
    return OnnxModel(name, hashlib.sha256(data).hexdigest(), inputs, outputs, proto, notes=notes)


OPSET = 17  # onnx.reference is wrong at older ones: BatchNormalization up to 13, Softmax of four dimensions up to 12


def _at_opset(proto: Any) -> Any:
    """The model at `OPSET`, unless it is newer or ONNX cannot convert it."""
    if all(each.version >= OPSET for each in proto.opset_import if each.domain in ("", "ai.onnx")):
        return proto
    try:
        return onnx.version_converter.convert_version(proto, OPSET)
    except Exception:  # noqa: BLE001 - RuntimeError, and ONNX's own of C++
        return proto


def _like(value: Array) -> tuple[Any, ...]:
    """What a node's code depends on: type and shape, and the numbers of what may be a shape."""
    small = value.dtype.kind == "i" and value.size <= MAX_RANK
    return (str(value.dtype), value.shape, value.tobytes() if small else b"")


def _computes(proto: Any, node: Any, values: Mapping[str, Array]) -> bool:
    """Whether TVM computes a node's outputs in `values`; all inputs but the first are constants.

    A node that TVM cannot compile alone passes.
    """
    fed, *constants = [name for name in dict.fromkeys(node.input) if name in values] or [""]
    if not fed:
        return True
    tensors = [onnx.numpy_helper.from_array(values[name], name) for name in constants]
    given = {name: values[name] for name in node.output if name in values}
    graph = onnx.helper.make_graph([node], "part", _edges({fed: values[fed]}), _edges(given), tensors)
    alone = onnx.helper.make_model(graph, opset_imports=proto.opset_import)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(None), onnx_clips_in_relax():
            module = from_onnx(alone, keep_params_in_input=False)
        machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
        made = machine["main"](tvm.runtime.tensor(values[fed]))
    except Exception:  # noqa: BLE001 - TVM's own kinds
        return True
    outputs = [made.numpy()] if hasattr(made, "numpy") else [each.numpy() for each in made]
    return all(
        np.allclose(one, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max(initial=0), equal_nan=True)
        for one, wanted in zip(outputs, given.values(), strict=True)
    )


def _edges(values: Mapping[str, Array]) -> list[Any]:
    kind = onnx.helper.np_dtype_to_tensor_dtype
    return [onnx.helper.make_tensor_value_info(name, kind(each.dtype), each.shape) for name, each in values.items()]


def _unsupported(model: OnnxModel, text: str) -> str:
    """The error's operators, with the first node of each: TVM lists operator types only."""
    kinds = [kind.strip() for kind in text.splitlines()[0].rpartition(":")[2].split(",") if kind.strip()]
    places = []
    for kind in sorted(kinds):
        node = next((node for node in model.proto.graph.node if node.op_type == kind), None)
        places.append(f"{kind} (node {_node_name(node)})" if node is not None else kind)
    return f"{model.name}: TVM's ONNX front end does not support {', '.join(places) or 'one of its operators'}"


def _node_in(error: BaseException) -> str:
    """The ONNX node at which the front end failed, which it only prints."""
    found = ""
    for function, held in frames(error):
        if function == "_construct_nodes" and "node" in held:
            found = f"{held['node'].op_type} (node {_node_name(held['node'])})"
    return found


def _node_name(node: Any) -> str:
    return repr(node.name) if node.name else f"that makes {node.output[0]!r}"


SAFE_KERAS = (3, 15)  # the first that reads nothing but the file itself
INSTALL = f"{pip_install('keras')} into the toolchain's environment, or export the model as ONNX"
EXPORT_HINT = "export it where it was made: model.export('net.onnx', format='onnx') with Keras, or tf2onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class KerasModel(OnnxModel):
    """A Keras model with its ONNX form. Layouts are Keras's: images are NHWC."""

    keras: Any = field(repr=False)  # keras.Model
    format: ClassVar[str] = "keras"

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

    def second_reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """An evaluator of the ONNX form. If TVM agrees with it, Keras's export has changed the model."""
        found = OnnxModel.second_reference(self, inputs)
        return found if found.outputs is not None else OnnxModel.reference(self, inputs)


def read_keras(data: bytes, name: str) -> KerasModel:
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
    if tuple(map(int, keras.__version__.split(".")[:2])) < SAFE_KERAS:
        raise ModelError(
            f"{name} is a Keras model, and Keras {keras.__version__} lets a file name other files of this host",
            hint=f"{pip_install('keras')} --upgrade, or export the model as ONNX",
        )
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
    exported = read(onnx_bytes, name)
    return KerasModel(
        name=name,
        proto=exported.proto,
        sha256=hashlib.sha256(data).hexdigest(),
        inputs=exported.inputs,
        outputs=exported.outputs,
        keras=model,
        notes=exported.notes,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # about the exporter's own internals
        yield
