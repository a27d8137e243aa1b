"""Options of every command that takes a model: how it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import complete


class Precision(StrEnum):
    """In which floating-point type a model computes."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    FLOAT16_ACC32 = "float16_acc32"


Target = Annotated[
    str, typer.Option(help="cpu, adreno, opencl ...: a name in `farm device show`.", autocompletion=complete.targets)
]
PrecisionOption = Annotated[Precision, typer.Option("--precision", help="In which type the model computes.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="An input's shape, NAME:[1,3,224,224]. Repeatable.", metavar="SHAPE")
]
Dtypes = Annotated[
    list[str] | None, typer.Option("--dtype", help="An input's type, NAME:float16. Repeatable.", metavar="DTYPE")
]
Records = Annotated[Path | None, typer.Option(help="Tuning records to compile with: a .tar or a folder.")]


def model_options(
    target: str, precision: Precision, shapes: Sequence[str] | None, dtypes: Sequence[str] | None, records: Path | None
) -> dict[str, Any]:
    """The spec's fields that every kind has that takes a model to a phone.

    Raises:
        ShapeOptionError: a shape or a type cannot be read.
    """
    from farm.core.shape_option import parse_dtypes, parse_shapes

    return {
        "target": target,
        "precision": precision.value,
        "shapes": parse_shapes(shapes or ()),
        "dtypes": parse_dtypes(dtypes or ()),
        "records": records,
    }
