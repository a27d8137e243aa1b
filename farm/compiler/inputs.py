"""A model's inputs: from an .npz file read with care, or made. What does not fit is said with its name and place."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from farm.compiler.onnx_model import OnnxModel, TensorSpec
from farm.core.errors import ModelError
from farm.core.selector import nearest

INPUT_SEED = 20260801  # fixed: the same model gets the same random inputs on every phone and every day
SAFE_INTEGER = 2  # random integers stay below: they are often indices, and every axis is likely to have two places
MAX_ARRAY_BYTES = 2 << 30  # unpacked; what is larger fits no phone, and a few kB of zip can claim to be terabytes
WRITE_HINT = "write it with numpy.savez(path, NAME=array, ...)"

Array = np.ndarray[Any, Any]
Fill = Literal["random", "zeros", "ones"]


class InputError(ModelError):
    """The inputs do not fit the model."""

    code = "bad_inputs"


def given_inputs(model: OnnxModel, npz: bytes) -> dict[str, Array]:
    """The arrays of an .npz file's bytes that are inputs of the model, each of its shape and type.

    Raises:
        InputError: it is no .npz of plain arrays; an array is unknown, has a wrong shape or type, or holds NaN.
    """
    specs = {spec.name: spec for spec in model.inputs}
    arrays = _read(npz)
    for name in arrays:
        if name not in specs:
            near = nearest(name, specs)
            guess = f"did you mean {near[0]!r}? " if near else ""
            hint = f"{guess}{model.name} has inputs: {', '.join(specs) or 'none'}"
            raise InputError(f"the inputs file has the array {name!r}, which is no input of {model.name}", hint=hint)
    return {name: _fitting(specs[name], array) for name, array in arrays.items()}


def inputs_for(model: OnnxModel, npz: bytes | None) -> dict[str, Array]:
    """Every input by name: all from an .npz file's bytes, or all seeded random.

    Raises:
        InputError: as `given_inputs`; an array is missing, or a dimension is open and nothing fixes it.
    """
    if npz is None:
        return filled(model, {}, "random")
    given = given_inputs(model, npz)
    missing = [spec.name for spec in model.inputs if spec.name not in given]
    if missing:
        raise InputError(
            f"the inputs file lacks the array {missing[0]!r}",
            hint=f"{model.name} has inputs: {', '.join(spec.name for spec in model.inputs)}",
        )
    return given


def filled(model: OnnxModel, given: Mapping[str, Array], fill: Fill) -> dict[str, Array]:
    """Every input by name: `given` ones as they are, the others made.

    Raises:
        InputError: one must be made, and its shape is not fixed.
    """
    return {
        spec.name: given[spec.name] if spec.name in given else _made(model, spec, fill, position)
        for position, spec in enumerate(model.inputs)
    }


def shapes_of(inputs: Mapping[str, Array]) -> dict[str, list[int]]:
    """Shapes by input name."""
    return {name: list(array.shape) for name, array in inputs.items()}


def _made(model: OnnxModel, spec: TensorSpec, fill: Fill, position: int) -> Array:
    for dimension, size in enumerate(spec.shape):
        if not isinstance(size, int):
            raise InputError(
                f"{model.name}: input {spec.name!r}, shape {_shown(spec.shape)}, leaves dimension {dimension} open",
                hint="give --input FILE.npz, whose arrays fix the shapes, or export the model with fixed shapes",
            )
    shape = tuple(int(size) for size in spec.shape)
    if fill != "random":
        return np.full(shape, int(fill == "ones"), spec.dtype)
    generator = np.random.default_rng((INPUT_SEED, position))
    if np.issubdtype(spec.dtype, np.floating):
        return generator.standard_normal(shape).astype(spec.dtype)
    return generator.integers(0, SAFE_INTEGER, shape).astype(spec.dtype)


def _read(npz: bytes) -> dict[str, Array]:
    if npz[:6] == b"\x93NUMPY":
        raise InputError("the inputs file is one array (.npy), and it must say which input it is", hint=WRITE_HINT)
    if npz[:1] == b"\x80":
        raise InputError("the inputs file is a pickle, which could run any code and is not read", hint=WRITE_HINT)
    try:
        archive = zipfile.ZipFile(io.BytesIO(npz))
    except zipfile.BadZipFile as error:
        raise InputError("the inputs file is no .npz file of plain arrays", hint=WRITE_HINT) from error
    with archive:
        for member in archive.infolist():
            if member.file_size > MAX_ARRAY_BYTES:
                raise InputError(
                    f"the array {member.filename!r} in the inputs file has {member.file_size:,} bytes",
                    hint=f"at most {MAX_ARRAY_BYTES:,} bytes each",
                )
        return {member.filename.removesuffix(".npy"): _member(archive, member) for member in archive.infolist()}


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    try:
        with archive.open(member) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
    except MemoryError as error:
        raise InputError(f"the array {member.filename!r} in the inputs file does not fit into memory") from error
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        pickled = "allow_pickle" in str(error)
        why = "holds Python objects, which are not read" if pickled else "is damaged, or no array"
        raise InputError(
            f"the array {member.filename!r} in the inputs file {why}", hint=WRITE_HINT, evidence=str(error)
        ) from error


def _fitting(spec: TensorSpec, array: Array) -> Array:
    fits = len(array.shape) == len(spec.shape) and all(
        wanted == size or not isinstance(wanted, int) for wanted, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"input {spec.name!r} has shape {_shown(array.shape)}, the model wants {_shown(spec.shape)}",
            hint="give an array of that shape in the inputs file",
        )
    if array.size == 0:
        raise InputError(
            f"input {spec.name!r} is empty: its shape is {_shown(array.shape)}",
            hint="every dimension must be 1 or more",
        )
    if not np.can_cast(array.dtype, spec.dtype, casting="same_kind"):
        raise InputError(
            f"input {spec.name!r} is {array.dtype}, the model wants {spec.dtype}",
            hint=f"convert the array: .astype('{spec.dtype}')",
        )
    return _converted(spec, array)


def _converted(spec: TensorSpec, array: Array) -> Array:
    """The array in the model's type, with nothing lost but digits."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.ascontiguousarray(array, dtype=spec.dtype).reshape(array.shape)  # a scalar would become 1-d
    if np.issubdtype(array.dtype, np.floating):
        _refuse_where(~np.isfinite(array), spec, array, "numbers only: NaN and infinity spread to every output")
        _refuse_where(~np.isfinite(converted), spec, array, f"{spec.dtype} cannot hold it: scale the input")
    elif np.issubdtype(spec.dtype, np.integer):
        _refuse_where(converted != array, spec, array, f"{spec.dtype} cannot hold it")
    return converted


def _refuse_where(wrong: Array, spec: TensorSpec, array: Array, hint: str) -> None:
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"input {spec.name!r} has {array[place]} at {list(place)}", hint=hint)


def _shown(shape: tuple[int | str, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
