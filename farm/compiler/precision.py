"""In which floating-point type a model computes. Its inputs and outputs keep their types: only what is between changes.

- `float32`: as the model was exported.
- `float16`: computes and adds up in half precision.
- `float16_acc32`: weights and activations in half precision, sums of convolutions and matrix products in single.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tvm import relax

from farm.core.errors import UserError

FLOAT32: Final = "float32"
# relax.transform.ToMixedPrecision: the type in which convolutions and matrix products give their sums.
_SUMS: Final[Mapping[str, str]] = {"float16": "float16", "float16_acc32": "float32"}
PRECISIONS: Final = (FLOAT32, *_SUMS)


class PrecisionError(UserError):
    """There is no such precision."""

    code = "bad_precision"


def in_precision(module: Any, precision: str) -> Any:
    """The Relax module computing in that precision; its signature stays.

    Raises:
        PrecisionError: there is no such precision.
    """
    if precision == FLOAT32:
        return module
    if precision not in _SUMS:
        raise PrecisionError(f"there is no precision {precision!r}", hint=f"one of {', '.join(PRECISIONS)}")
    return relax.transform.ToMixedPrecision(out_dtype=_SUMS[precision])(module)
