"""Which format a model file has, by its content or else its name's suffix. Needs no TVM: clients ask, too."""

from __future__ import annotations

import io
import re
import zipfile

from farm.core.errors import ModelError

FORMATS = (
    "ONNX (.onnx), torch.export (.pt2), TensorFlow Lite (.tflite), Keras (.keras, .h5), TVMScript (.py), Relax JSON"
)
ONNX_FIRST = b"\x08"  # every ONNX file begins with ir_version, field 1 of ModelProto
TFLITE_MAGIC = b"TFL3"  # the schema's file_identifier, at byte 4
_BY_SUFFIX = {  # whose content would have told
    "pt2": "a program of torch.export", "tflite": "a TensorFlow Lite model", "keras": "a Keras model",
    "h5": "a Keras model", "json": "a Relax module",
}  # fmt: skip
_IS_SCRIPT = re.compile(rb"^\s*@(I\.ir_module|R\.function)", re.MULTILINE)


def check_format(data: bytes, name: str) -> None:
    """Refuse what is no model of any format; a model that is damaged inside may pass.

    Raises:
        ModelError: it is none.
    """
    if not data:
        raise ModelError(f"{name} is empty", hint="give a model file")
    if format_of(data, name) == "onnx" and not may_be_onnx(data, name):
        raise unknown_format(name)


def format_of(data: bytes, name: str) -> str:
    """`onnx`, `torch`, `keras`, `tflite`, `relax` (JSON) or `script` (TVMScript). What nothing tells may be ONNX.

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
    suffix = name.lower().rpartition(".")[2]
    if suffix == "py" or (b"\0" not in data[:4096] and _IS_SCRIPT.search(data)):
        return "script"
    if suffix in _BY_SUFFIX:
        raise ModelError(f"{name} is not {_BY_SUFFIX[suffix]}", hint="is it another format, or cut short?")
    return "onnx"


def may_be_onnx(data: bytes, name: str) -> bool:
    """Whether a file that is nothing else is called ONNX or begins as such files do."""
    return data[:1] == ONNX_FIRST or name.lower().endswith(".onnx")


def unknown_format(name: str) -> ModelError:
    """The error of a file that is no model."""
    return ModelError(f"{name} is of no known model format", hint=f"formats: {FORMATS}")


def _kind_of_zip(data: bytes, name: str) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.namelist()
    except zipfile.BadZipFile as error:
        raise ModelError(f"{name} is an archive that is cut short or damaged", hint="copy or save it again") from error
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
