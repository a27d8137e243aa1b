"""A model as the farm sees it: a file's format, its contents, and its form in TVM.

Every format is one `SourceModel`. No TVM is imported: a client checks a file before it uploads it.
"""

from __future__ import annotations

import io
import re
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from farm.common.errors import Code, ModelError
from farm.common.files import SAVED_MODEL_HINT

Array = np.ndarray[Any, Any]
IRModule = Any  # tvm.IRModule; TVM publishes no types


shape_error = partial(ModelError, code=Code.BAD_SHAPE)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the graph's edge. A dimension that the file does not fix is its name, or "?"."""

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"name": self.name, "shape": list(self.shape), "dtype": str(self.dtype)}


Naming = Callable[[Sequence[str], Collection[str]], Sequence[str]]
"""The parts of a file that became these variables, in the file's words; the second argument has all other variables."""


@dataclass(frozen=True, slots=True)
class SourceModel(ABC):
    """A file that was read and checked. Nothing is converted yet: this is cheap."""

    name: str  # for people: that of the file
    sha256: str  # of the file
    inputs: tuple[TensorSpec, ...]  # in the file's order; dimensions may be open
    outputs: tuple[str, ...]  # names, in the file's order; empty: the file does not name them
    notes: tuple[str, ...] = field(default=(), kw_only=True)  # sentences on what was left out of the file
    format: ClassVar[str]  # `onnx`, `torch`, `tflite`, `relax` or `keras`

    @property
    def bounds(self) -> Mapping[str, tuple[int, int]]:
        """The smallest and the largest size of each open dimension that has bounds."""
        return {}

    @abstractmethod
    def to_relax(self, shapes: Mapping[str, Sequence[int]]) -> IRModule:
        """The model as a Relax module: weights are constants, the parameters of `main` are the inputs in order.

        `shapes` has every input. Types are the file's: `farm.compiler.load.import_model` changes them afterwards.

        Raises:
            ModelError: an operator is not supported, or cannot be converted; both are named.
        """

    @abstractmethod
    def reference(self, inputs: Mapping[str, Array]) -> Evaluated:
        """The outputs for these inputs (of the file's types) by an evaluator that is not TVM."""

    def second_reference(self, inputs: Mapping[str, Array]) -> Evaluated:  # noqa: ARG002
        """The outputs by another evaluator, if TVM and `reference` differ or `reference` has no outputs."""
        return Evaluated(None, "there is no second evaluator of this format")

    def disputed_part(self, inputs: Mapping[str, Array]) -> str:  # noqa: ARG002
        """The first part for which TVM and `reference` compute different outputs from equal inputs; "": none.

        A format whose own framework computes `reference` has none: the framework decides.
        """
        return ""

    def naming(self) -> AbstractContextManager[Naming]:
        """Within, `to_relax` names variables so that they can be traced to the parts of the file."""
        return nullcontext(lambda variables, _others: variables)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result of an evaluator that is not TVM."""

    outputs: tuple[Array, ...] | None  # None: there is no such evaluator, or it cannot run this model
    by: str  # the evaluator, or why there is none


@dataclass(frozen=True, slots=True)
class Reference:
    """The expected outputs."""

    outputs: tuple[Array, ...]
    host_outputs: tuple[Array, ...]  # what TVM computed on the host that made this
    independent: bool  # False: nothing but TVM can run this model there, and `outputs` are the host's
    by: str  # what computed `outputs`
    note: str = ""  # why it is not independent, or why it may be wrong although it is
    precise: tuple[Array, ...] = ()  # what TVM computed there in a package's precision; empty: float32, or unknown

    @property
    def disputed(self) -> bool:
        """Whether TVM computes other numbers and nothing decides which are right."""
        return self.independent and bool(self.note)


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


FORMATS = (
    "ONNX (.onnx), torch.export (.pt2), TensorFlow Lite (.tflite), Keras (.keras, .h5), TVMScript (.py), Relax JSON"
)
MAX_UNPACKED_BYTES = 4 << 30  # that a much smaller archive may claim
ONNX_FIRST = b"\x08"  # every ONNX file begins with ir_version, field 1 of ModelProto
SAVED_MODEL_FIRST = b"\x08\x01\x12"  # saved_model_schema_version 1, then a MetaGraphDef
TFLITE_MAGIC = b"TFL3"  # the schema's file_identifier, at byte 4
_BY_SUFFIX = {  # formats whose content has a mark
    "pt2": "a program of torch.export", "tflite": "a TensorFlow Lite model", "keras": "a Keras model",
    "h5": "a Keras model", "json": "a Relax module",
}  # fmt: skip
_IS_SCRIPT = re.compile(rb"^\s*@(I\.ir_module|R\.function)", re.MULTILINE)


def check_format(data: bytes, name: str) -> None:
    """Refuse files of no model format; a model that is damaged inside may pass.

    Raises:
        ModelError: it is none.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give a model file")
    if format_of(data, name) == "onnx" and not may_be_onnx(data, name):
        raise model_format_error(name)


def format_of(data: bytes, name: str) -> str:
    """`onnx`, `torch`, `keras`, `tflite`, `relax` (JSON) or `script` (TVMScript). A file without any mark may be ONNX.

    Raises:
        ModelError: it is something else that is easily taken for a model.
    """
    if data[4:8] == TFLITE_MAGIC:
        return "tflite"
    if data[:8] == b"\x89HDF\r\n\x1a\n":
        return "keras"
    if data[:4] == b"PK\x03\x04":
        return _kind_of_zip(data, name)
    if data[257:262] == b"ustar":
        raise ModelError(
            f"{name} is a .tar archive and no model file",
            hint="of a package of `farm compile`, give the model it is of",
        )
    if data[:64].lstrip()[:1] == b"{":
        return "relax"
    if data[:3] == SAVED_MODEL_FIRST and name.lower().endswith(".pb"):
        raise ModelError(f"{name} is of a TensorFlow SavedModel, which is not read", hint=SAVED_MODEL_HINT)
    suffix = name.lower().rpartition(".")[2]
    if suffix == "py" or (b"\0" not in data[:4096] and _IS_SCRIPT.search(data)):
        return "script"
    if suffix in _BY_SUFFIX:
        raise ModelError(f"{name} is not {_BY_SUFFIX[suffix]}", hint="is it another format, or cut short?")
    return "onnx"


def may_be_onnx(data: bytes, name: str) -> bool:
    """Whether a file that is nothing else is called ONNX or begins as such files do."""
    return data[:1] == ONNX_FIRST or name.lower().endswith(".onnx")


def model_format_error(name: str) -> ModelError:
    """The error of a file that is no model."""
    return ModelError(f"{name} is of no known model format", hint=f"formats: {FORMATS}")


def _kind_of_zip(data: bytes, name: str) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.namelist()
            claimed = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # of a later version of zip, of bad names
        raise ModelError(f"{name} is an archive that is cut short or damaged", hint="copy or save it again") from error
    if claimed > MAX_UNPACKED_BYTES and claimed > 2 * len(data):  # models are stored as they are, or hardly packed
        raise ModelError(
            f"{name} claims {claimed:,} bytes unpacked, and has {len(data):,}",
            hint=f"save it without compression; packed ones may have {MAX_UNPACKED_BYTES:,}",
        )
    if any(member.endswith(("archive_format", "serialized_exported_program.json")) for member in members):
        return "torch"
    if "config.json" in members and any(member.endswith(".weights.h5") for member in members):
        return "keras"
    if any(member.endswith("data.pkl") for member in members):
        raise ModelError(
            f"{name} is a pickle (torch.save) or TorchScript, which is not read",
            hint="torch.export.save(torch.export.export(model, example_inputs), 'net.pt2')",
        )
    raise ModelError(f"{name} is an archive, but of no model format", hint=f"formats: {FORMATS}")
