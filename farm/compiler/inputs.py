"""A model's inputs: from an .npz file read with care, or made. An error names the input and the place.

TVM is imported by `import_with` only: a client checks inputs before it uploads them.
"""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, Protocol, TypeVar

import numpy as np

from farm.common.durations import many
from farm.common.errors import Code, ModelError
from farm.common.selector import nearest
from farm.compiler.model import Array, ImportedModel, SourceModel, TensorSpec, shape_error, shown
from farm.compiler.shape_option import MAX_DIMENSION, shape_option

INPUT_SEED = 20260801  # fixed: the same model gets the same random inputs on every phone and every day
SAFE_INTEGER = 2  # random integers stay below: they are often indices, and every axis is likely to have two places
MAX_ARRAY_BYTES = 2 << 30  # unpacked; what is larger fits no phone, and a few kB of zip can claim to be terabytes
WRITE_HINT = "write it with numpy.savez(path, NAME=array, ...)"

NO_SHAPES: Mapping[str, Sequence[int]] = {}
NO_DTYPES: Mapping[str, str] = {}

Fill = Literal["random", "zeros", "ones"]
Read = TypeVar("Read")


input_error = partial(ModelError, code=Code.BAD_INPUTS)


class ModelWithInputs(Protocol):
    """A file that was read, an imported model or a package."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """In order."""


def import_with(
    source: SourceModel,
    npz: bytes | None,
    shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    dtypes: Mapping[str, str] = NO_DTYPES,
) -> tuple[ImportedModel, dict[str, Array]]:
    """The model with open dimensions fixed by `shapes` and by the arrays of an .npz file, and these arrays as inputs.

    Raises:
        ModelError: as `farm.compiler.load.import_model`, `read_arrays` and `fitted`; or an array and `shapes`
            contradict each other.
    """
    from farm.compiler.load import import_model  # TVM is needed from here on; this module is read without it, too

    arrays = read_arrays(npz) if npz is not None else {}
    model = import_model(source, shapes_with(source, arrays, shapes), dtypes, by_arrays=True)
    return model, fitted(model, arrays)


def shapes_with(
    source: ModelWithInputs, arrays: Mapping[str, Array], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """The shapes asked for and those of arrays that are given as inputs.

    Raises:
        ModelError: an array is no input, or has another shape than the file or `shapes` say.
    """
    _check_arrays(source, arrays)
    for name, array in arrays.items():
        if name in shapes and tuple(shapes[name]) != array.shape:
            raise input_error(
                f"input {name!r} has shape {shown(array.shape)}, and --shape says {shown(shapes[name])}",
                hint="give one of them",
            )
    return {**shapes, **{name: array.shape for name, array in arrays.items()}}


def fitted(model: ModelWithInputs, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Each array in its input's type, which loses nothing but digits.

    Raises:
        ModelError: an array is unknown, has a wrong shape or type, or holds NaN.
    """
    specs = _check_arrays(model, arrays)
    return {name: _converted(specs[name], array) for name, array in arrays.items()}


def all_inputs(model: ModelWithInputs, given: Mapping[str, Array]) -> dict[str, Array]:
    """Every input by name: all given, or all seeded random.

    Raises:
        ModelError: some are given and others are not, or one must be made and its shape is not fixed.
    """
    missing = [spec.name for spec in model.inputs if spec.name not in given]
    if given and missing:
        raise input_error(
            f"the inputs file lacks the array {missing[0]!r}",
            hint=f"{model.name} has inputs: {', '.join(spec.name for spec in model.inputs)}",
        )
    return filled(model, given, "random")


def filled(model: ModelWithInputs, given: Mapping[str, Array], fill: Fill) -> dict[str, Array]:
    """Every input by name: `given` ones as they are, the others made.

    Raises:
        ModelError: one must be made, and its shape is not fixed.
    """
    return {
        spec.name: given[spec.name] if spec.name in given else _made(model, spec, fill, position)
        for position, spec in enumerate(model.inputs)
    }


def _made(model: ModelWithInputs, spec: TensorSpec, fill: Fill, position: int) -> Array:
    for dimension, size in enumerate(spec.shape):
        if not isinstance(size, int):
            raise input_error(
                f"{model.name}: input {spec.name!r}, shape {shown(spec.shape)}, leaves dimension {dimension} open",
                hint="give --input FILE.npz, whose arrays fix the shapes, or export the model with fixed shapes",
            )
    shape = tuple(int(size) for size in spec.shape)
    if fill != "random":
        return np.full(shape, int(fill == "ones"), spec.dtype)
    generator = np.random.default_rng((INPUT_SEED, position))
    if np.issubdtype(spec.dtype, np.floating):
        return generator.standard_normal(shape).astype(spec.dtype)
    return generator.integers(0, SAFE_INTEGER, shape).astype(spec.dtype)


def fixed_inputs(
    source: ModelWithInputs, shapes: Mapping[str, Sequence[int]], *, by_arrays: bool = False
) -> tuple[TensorSpec, ...]:
    """A model's inputs with every dimension fixed. `by_arrays`: --input could fix them too, and a hint mentions it.

    Raises:
        ModelError: a name is no input; a shape has another rank or contradicts the file; a dimension stays open.
    """
    check_names(source, shapes, "shape")
    or_else = ", or by the arrays of --input FILE.npz" if by_arrays else ""
    return tuple(_fixed(source, spec, shapes, or_else) for spec in source.inputs)


def open_shapes(source: ModelWithInputs, shapes: Mapping[str, Sequence[int]] = NO_SHAPES) -> tuple[str, ...]:
    """The options that would fix the inputs that `shapes` leaves open."""
    return tuple(
        _typed(source, spec, spec.shape)
        for spec in source.inputs
        if spec.name not in shapes and not all(isinstance(size, int) for size in spec.shape)
    )


def read_arrays(npz: bytes | Path, what: str = "the inputs file") -> dict[str, Array]:
    """As `each_array`, all at once."""
    return dict(each_array(npz, what))


def each_array(npz: bytes | Path, what: str) -> Iterator[tuple[str, Array]]:
    """The names and arrays of an .npz file, which are never unpickled. `what` names the file in messages.

    Raises:
        ModelError: it is no .npz of plain arrays, or claims to be too large.
    """
    return _each_member(npz, what, read_array)


def shapes_in(npz: bytes | Path, what: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of an .npz file by their names, as `each_array` would read them; no array is read.

    Raises:
        ModelError: as `each_array`.
    """
    return dict(_each_member(npz, what, _claimed_shape))


def _each_member(npz: bytes | Path, what: str, read: Callable[[IO[bytes], int], Read]) -> Iterator[tuple[str, Read]]:
    with io.BytesIO(npz) if isinstance(npz, bytes) else npz.open("rb") as file:
        begin = file.read(6)
        if begin == b"\x93NUMPY":
            raise input_error(f"{what} is one array (.npy), which does not name its input", hint=WRITE_HINT)
        if begin[:1] == b"\x80":
            raise input_error(f"{what} is a pickle, which could run any code and is not read", hint=WRITE_HINT)
        try:
            archive = zipfile.ZipFile(file)
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ValueError,
        ) as error:  # of a later version of zip, of bad names
            raise input_error(f"{what} is no .npz file of plain arrays", hint=WRITE_HINT) from error
        if not archive.infolist():
            raise input_error(f"{what} holds no array", hint=WRITE_HINT)
        if (claimed := sum(member.file_size for member in archive.infolist())) > MAX_ARRAY_BYTES:
            hint = f"at most {MAX_ARRAY_BYTES:,} bytes unpacked"
            raise input_error(f"the arrays in {what} have {claimed:,} bytes", hint=hint)
        for member in archive.infolist():
            yield member.filename.removesuffix(".npy"), _member(archive, member, what, read)


def read_array(file: IO[bytes], size: int) -> Array:
    """The one array of an .npy file of `size` bytes, never unpickled.

    Raises:
        ValueError: it is none, or does not have the size that it claims, which numpy would allocate first.
    """
    _claimed_shape(file, size)
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _claimed_shape(file: IO[bytes], size: int) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read_header(file)
    except (SyntaxError, tokenize.TokenError, RecursionError) as error:
        raise ValueError("its header is no Python literal") from error
    if any(isinstance(each, bool) or not 0 <= each <= MAX_ARRAY_BYTES for each in shape):  # numpy would raise anything
        raise ValueError(f"it claims the shape {shape}")
    if not dtype.hasobject and (claimed := math.prod(shape) * dtype.itemsize) != (has := size - file.tell()):
        raise ValueError(f"it claims {claimed:,} bytes and has {has:,}")
    return tuple(shape)


def write_arrays(target: Path | BinaryIO, arrays: Mapping[str, Array]) -> None:
    """Write an .npz; numpy.savez would take an array named "file" for its own argument."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


# What zipfile and `read_array` raise.
_DAMAGED = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def _member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str, read: Callable[[IO[bytes], int], Read]
) -> Read:
    try:
        with archive.open(member) as file:
            return read(file, member.file_size)
    except MemoryError as error:
        raise input_error(f"the array {member.filename!r} in {what} does not fit into memory") from error
    except _DAMAGED as error:
        pickled = "allow_pickle" in str(error)
        why = "holds Python objects, which are not read" if pickled else "is damaged, or no array"
        raise input_error(
            f"the array {member.filename!r} in {what} {why}", hint=WRITE_HINT, evidence=str(error)
        ) from error


def _check_arrays(model: ModelWithInputs, arrays: Mapping[str, Array]) -> dict[str, TensorSpec]:
    specs = {spec.name: spec for spec in model.inputs}
    for name, array in arrays.items():
        if name not in specs:
            near = nearest(name, specs)
            guess = f"did you mean {near[0]!r}? " if near else ""
            hint = f"{guess}{model.name} has inputs: {', '.join(specs) or 'none'}"
            raise input_error(f"the inputs file has the array {name!r}, which is no input of {model.name}", hint=hint)
        _check(specs[name], array)
    return specs


def _check(spec: TensorSpec, array: Array) -> None:
    fits = len(array.shape) == len(spec.shape) and all(
        wanted == size or not isinstance(wanted, int) for wanted, size in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise input_error(
            f"input {spec.name!r} has shape {shown(array.shape)}, the model wants {shown(spec.shape)}",
            hint="give an array of that shape in the inputs file",
        )
    if array.size == 0:
        raise input_error(
            f"input {spec.name!r} is empty: its shape is {shown(array.shape)}",
            hint="every dimension must be 1 or more",
        )


def _converted(spec: TensorSpec, array: Array) -> Array:
    if not np.can_cast(array.dtype, spec.dtype, casting="same_kind"):
        raise input_error(
            f"input {spec.name!r} is {array.dtype}, the model wants {spec.dtype}",
            hint=f"convert the array: .astype('{spec.dtype}')",
        )
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
        raise input_error(f"input {spec.name!r} has {array[place]} at {list(place)}", hint=hint)


def check_names(source: ModelWithInputs, given: Mapping[str, Any], what: str) -> None:
    """Refuse a name that is no input.

    Raises:
        ModelError: there is one; the nearest input is named.
    """
    names = [spec.name for spec in source.inputs]
    for name in given:
        if name not in names:
            near = nearest(name, names)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise shape_error(
                f"a {what} is given for {name!r}, which is no input of {source.name}",
                hint=f"{guess}{source.name} has inputs: {', '.join(names) or 'none'}",
            )


def _fixed(source: ModelWithInputs, spec: TensorSpec, shapes: Mapping[str, Sequence[int]], or_else: str) -> TensorSpec:
    shape = tuple(int(size) for size in shapes[spec.name]) if spec.name in shapes else spec.shape
    where = f"{source.name}: input {spec.name!r}, shape {shown(spec.shape)}"
    if len(shape) != len(spec.shape):
        raise shape_error(
            f"{where}, has {len(spec.shape)} dimensions, and the shape given for it, {shown(shape)}, has {len(shape)}",
            hint=f"write {_typed(source, spec, shape)}",
        )
    for dimension, (wanted, size) in enumerate(zip(spec.shape, shape, strict=True)):
        if not isinstance(size, int):
            named = f" ({size!r})" if size != "?" else ""
            raise shape_error(
                f"{where}, leaves dimension {dimension}{named} open",
                hint=f"fix it, for example {_typed(source, spec, shape)}{or_else}",
            )
        if isinstance(wanted, int) and wanted != size:
            raise shape_error(
                f"{where}: dimension {dimension} is {wanted} in the file, and {size} is asked for",
                hint="export the model with that shape, or with that dimension left open",
            )
        if size < 1:
            raise shape_error(f"{where}: dimension {dimension} is {size}", hint="every dimension must be 1 or more")
    return TensorSpec(spec.name, shape, spec.dtype)


IMAGE_SIDE, CHANNELS, STEPS = 224, 3, 64  # suggested where a file leaves them open


def _typed(source: ModelWithInputs, spec: TensorSpec, given: Sequence[int | str]) -> str:
    """The option that fixes every dimension: as given where that fits, a usual size where nothing is known."""
    sizes = given if len(given) == len(spec.shape) else spec.shape
    bounds = source.bounds if isinstance(source, SourceModel) else {}
    batches = {each.shape[0] for each in source.inputs if each.shape} - {"?"}

    def suggested(axis: int, size: int | str) -> int:
        least, most = bounds.get(str(size), (1, MAX_DIMENSION))
        usual = 1 if size in batches else _usual(spec, axis)
        return size if isinstance(size, int) else min(max(usual, least), most)

    return shape_option(spec.name, [suggested(axis, size) for axis, size in enumerate(sizes)])


def _usual(spec: TensorSpec, axis: int) -> int:
    """A size that a dimension is likely to take: one item, an image with its channels, steps of a sequence."""
    if axis == 0:
        return 1
    if len(spec.shape) != 4:
        return STEPS
    last = spec.shape[3]
    channels = 3 if isinstance(last, int) and last <= 4 else 1
    return CHANNELS if axis == channels else IMAGE_SIDE


def unlike_edges(what: str, a: Sequence[str], b: Sequence[str]) -> list[str]:
    """Differences between the inputs, or outputs, of A and B, a sentence each; in words, by position."""
    if len(a) != len(b):
        return [f"A has {many(len(a), what)}, B {many(len(b), what)}"]
    pairs = enumerate(zip(a, b, strict=True))
    return [f"{what} {number} is {one} in A, {other} in B" for number, (one, other) in pairs if one != other]
