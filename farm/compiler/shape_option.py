"""Options for an input's shape or type: `--shape input:[1,3,224,224]`, `--dtype input:float16`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

from farm.common.errors import Code, UserError
from farm.common.selector import did_you_mean

MAX_DIMENSION = 1 << 24
MAX_RANK = 16
DTYPES = (
    "float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
SHAPE_FORM = "--shape NAME:[1,3,224,224]"
DTYPE_FORM = "--dtype NAME:float16"

_T = TypeVar("_T")
_SIZE = re.compile(r"[0-9]{1,9}")  # ASCII only: int() takes the digits of every script


shape_option_error = partial(UserError, code=Code.BAD_SHAPE)


def parse_shapes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by input name. An input's name may itself have colons: the last one counts. `NAME:[]` is a scalar.

    Raises:
        UserError: a text has another form, a size is not 1 to 2**24, or a name comes twice.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, sizes = _split(text, "--shape", SHAPE_FORM)
        if not (sizes.startswith("[") and sizes.endswith("]")):
            raise shape_option_error(f"--shape {text!r}: {sizes!r} is no list in brackets", hint=f"write {SHAPE_FORM}")
        inside = sizes[1:-1].strip()
        shape = tuple(_size(part.strip(), text) for part in inside.split(",")) if inside else ()
        if len(shape) > MAX_RANK:
            raise shape_option_error(f"--shape {text!r} has {len(shape)} dimensions; at most {MAX_RANK} are allowed")
        _put(shapes, name, shape, "--shape")
    return shapes


def parse_dtypes(texts: Iterable[str]) -> dict[str, str]:
    """Types by input name.

    Raises:
        UserError: a text has another form, there is no such type, or a name comes twice.
    """
    dtypes: dict[str, str] = {}
    for text in texts:
        name, dtype = _split(text, "--dtype", DTYPE_FORM)
        check_dtype(dtype)
        _put(dtypes, name, dtype, "--dtype")
    return dtypes


def check_dtype(dtype: str) -> None:
    """Refuse unknown types of tensors.

    Raises:
        UserError: there is no such type.
    """
    if dtype not in DTYPES:
        hint = did_you_mean(dtype, DTYPES, f"types: {', '.join(DTYPES)}")
        raise shape_option_error(f"{dtype!r} is no type of a tensor", hint=hint)


def shape_option(name: str, shape: Sequence[int]) -> str:
    """The option for this shape, quoted for a shell: brackets are patterns there."""
    return f"--shape '{name}:[{','.join(map(str, shape))}]'"


def _split(text: str, option: str, form: str) -> tuple[str, str]:
    name, colon, value = text.rpartition(":")
    if not colon or not name.strip() or not value.strip():
        raise shape_option_error(f"{option} {text!r} is not of the form NAME:VALUE", hint=f"write {form}")
    return name.strip(), value.strip()


def _size(part: str, text: str) -> int:
    if not _SIZE.fullmatch(part) or not 1 <= int(part) <= MAX_DIMENSION:
        raise shape_option_error(
            f"--shape {text!r}: {part!r} is no dimension",
            hint=f"dimensions are whole numbers from 1 to {MAX_DIMENSION}",
        )
    return int(part)


def _put(found: dict[str, _T], name: str, value: _T, option: str) -> None:
    if name in found:
        raise shape_option_error(f"{option} names the input {name!r} twice", hint="give it once")
    found[name] = value
