"""ONNX files that keep tensors in other files, as `torch.onnx.export` writes them: one model with its data inside.

For the process of the user who names the file; daemon and workers get models whole, and open no path that one names.
Only regular files in the model's own folder are read, never what a link or `..` leads to outside it: a model of
unknown origin may name any file of the user. What a tensor claims is checked against its shape and the file's size
before memory is taken for it.
"""

from __future__ import annotations

import io
import math
import os
import stat
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from farm.common.errors import ModelError, UserError
from farm.common.install import extra_of, pip_install
from farm.compiler.model import ONNX_FIRST

MAX_ONNX_BYTES = (1 << 31) - 1  # of one protobuf message; fewer than an artifact may have
ONE_FILE = "save one file: torch.onnx.export(..., external_data=False)"
CHUNK_BYTES = 16 << 20
_LOCATION = b"\n\x08location"  # as protobuf writes the key of an entry of `external_data`
_ENTRY = 0x6A  # the tag of `external_data` in TensorProto; the entry's length, of one or two bytes, is between
_BITS = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4}  # of one element; those of others fill bytes


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor's place in another file."""

    tensor: Any  # onnx.TensorProto
    file: str
    offset: int
    length: int  # bytes


@dataclass(frozen=True, slots=True)
class OnnxInParts:
    """An ONNX file that keeps tensors in other files, all of which are there and long enough."""

    path: Path
    proto: Any  # onnx.ModelProto, without that data
    pieces: tuple[_Piece, ...]
    total_bytes: int  # at most, in one piece

    @property
    def files(self) -> dict[str, int]:
        """The bytes of the model in each of the other files."""
        used: dict[str, int] = {}
        for each in self.pieces:
            used[each.file] = used.get(each.file, 0) + each.length
        return used

    def sentence(self) -> str:
        """What goes with the model."""
        files = self.files
        which = repr(next(iter(files))[:80]) if len(files) == 1 else f"{len(files)} files beside it"
        return f"{self.path.name} has tensors in {which}, which go with it: {sum(files.values()) / 1e6:,.2f} MB"

    def whole(self) -> bytes:
        """The model with its data inside: equal bytes for equal contents.

        Raises:
            ModelError: a file has changed meanwhile, or cannot be read.
        """
        made = type(self.proto)()
        made.CopyFrom(self.proto)
        for tensor, piece in zip(_external(made), self.pieces, strict=True):
            tensor.raw_data = _read(self.path, piece)
            tensor.ClearField("data_location")
            del tensor.external_data[:]
        data: bytes = made.SerializeToString(deterministic=True)
        return data


def whole(path: Path) -> Path | bytes:
    """The file itself; of an ONNX file that keeps tensors in other files, the model with them inside.

    Raises:
        ModelError: as `in_parts`.
    """
    found = in_parts(path)
    return path if found is None else found.whole()


def model_bytes(path: Path) -> bytes:
    """The content of a model file, whole.

    Raises:
        UserError: there is no such file, or it cannot be read.
        ModelError: as `in_parts`.
    """
    try:
        found = whole(path)
        return found if isinstance(found, bytes) else found.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def in_parts(path: Path) -> OnnxInParts | None:
    """An ONNX file that keeps tensors in other files; None: it does not, or is another file. Reads none of the data.

    Raises:
        ModelError: a file is missing, outside the model's folder or too short; all of it is too large for one model;
            the package `onnx` is not installed.
        OSError: the model file itself cannot be read.
    """
    if not _names_files(path):
        return None
    if find_spec("onnx") is None:
        raise ModelError(
            f"{path.name} keeps tensors in other files",
            hint=f"{pip_install(extra_of('onnx'))} (to take them along), or {ONE_FILE}",
        )
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs in its wheel

    try:
        proto = onnx.load_model_from_string(path.read_bytes())
    except DecodeError:
        return None  # whoever reads it says so
    pieces = tuple(_piece(tensor, path) for tensor in _external(proto))
    total_bytes = path.stat().st_size + sum(each.length for each in pieces)
    if total_bytes > MAX_ONNX_BYTES:
        raise ModelError(
            f"{path.name} has {total_bytes:,} bytes with its data, and an ONNX model {MAX_ONNX_BYTES:,} at most",
            hint="export it with smaller weights (float16, int8), or as .pt2",
        )
    for each in pieces:
        _open(path, each).close()
    return OnnxInParts(path, proto, pieces, total_bytes) if pieces else None


def _names_files(path: Path) -> bool:
    """Whether a file begins as ONNX or is called so, and has the mark of a tensor in another file."""
    with path.open("rb") as file:
        if file.read(1) != ONNX_FIRST and path.suffix != ".onnx":
            return False
        end = b""
        while chunk := file.read(CHUNK_BYTES):
            data = end + chunk
            at = data.find(_LOCATION)
            while at >= 0:
                if _ENTRY in data[max(0, at - 3) : max(0, at - 1)]:
                    return True
                at = data.find(_LOCATION, at + 1)
            end = data[-len(_LOCATION) - 2 :]
    return False


def _external(proto: Any) -> list[Any]:
    from farm.compiler.onnx_file import arrays_in

    return [tensor for tensor in arrays_in(proto) if tensor.data_location == type(tensor).EXTERNAL]


def _piece(tensor: Any, path: Path) -> _Piece:
    """Where a tensor is; the file is not looked at.

    Raises:
        ModelError: it does not say, or other than its shape.
    """
    about = {entry.key: entry.value for entry in tensor.external_data}
    needed = _bytes_of(tensor, path)
    offset, length = (
        _whole_number(about.get(key, default)) for key, default in (("offset", "0"), ("length", str(needed)))
    )
    if offset is None or length != needed:
        said = f"{about.get('length', needed)} bytes at {about.get('offset', 0)}"
        raise ModelError(
            f"{path.name}: tensor {tensor.name!r} has {needed:,} bytes by its shape, and {said:.60} in its file",
            hint=f"export it again, or {ONE_FILE}",
        )
    return _Piece(tensor, about.get("location", ""), offset, length)


def _bytes_of(tensor: Any, path: Path) -> int:
    import onnx

    try:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if dtype.hasobject or min(tensor.dims, default=0) < 0:
            raise ValueError
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(
            f"{path.name}: tensor {tensor.name!r} has a type or shape that no other file can have",
            hint=f"export it again, or {ONE_FILE}",
        ) from error
    bits: int = math.prod(tensor.dims) * _BITS.get(kind, 8 * dtype.itemsize)
    return -(-bits // 8)


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _read(path: Path, piece: _Piece) -> bytes:
    with _open(path, piece) as file:
        try:
            file.seek(piece.offset)
            data = file.read(piece.length)
        except OSError as error:
            raise ModelError(f"cannot read {path.parent / piece.file}: {error.strerror}") from error
    if len(data) != piece.length:
        raise ModelError(f"{path.parent / piece.file} changed while it was read", hint="try again")
    return data


def _open(path: Path, piece: _Piece) -> io.BufferedReader:
    """A regular file in the model's folder that has the piece.

    Raises:
        ModelError: it is not there, is none, is elsewhere, or is too short.
    """
    try:
        file = _open_inside(path.parent, piece.file)
    except FileNotFoundError as error:
        raise ModelError(
            f"{path.name} has tensors in {piece.file[:80]!r}, which is not beside it",
            hint=f"keep both files in one folder, or {ONE_FILE}",
        ) from error
    except (OSError, ValueError) as error:  # the latter: a name with a zero byte
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(
            f"{path.name} has tensors in {piece.file[:80]!r}, which is not read: {why}",
            hint="data is read from regular files in the model's own folder (cp -rL copies what links lead to)",
        ) from error
    size, end = os.fstat(file.fileno()).st_size, piece.offset + piece.length
    if end > size:
        file.close()
        raise ModelError(
            f"{piece.file[:80]!r} has {size:,} bytes, and tensor {piece.tensor.name!r} ends at {end:,}",
            hint="the file is cut short, or of another export: copy both again",
        )
    return file


def _open_inside(folder: Path, name: str) -> io.BufferedReader:
    """Links within the folder are followed, by their names now; then each step of the path is taken without links."""
    asked, root = PurePosixPath(name), Path(os.path.realpath(folder, strict=True))
    if not asked.parts or asked.is_absolute() or ".." in asked.parts:
        raise ValueError("it is no path below the model's folder")
    real = Path(os.path.realpath(root / name, strict=True))
    if root not in real.parents:
        raise ValueError("a link leads out of the model's folder")
    *folders, last = real.relative_to(root).parts
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for each in folders:
            inner = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        _check_regular(os.stat(last, dir_fd=at, follow_symlinks=False))  # opening a device may set something off
        descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    file = os.fdopen(descriptor, "rb")
    try:
        _check_regular(os.fstat(descriptor))
    except ValueError:
        file.close()
        raise
    return file


def _check_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
