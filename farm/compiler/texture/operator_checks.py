"""Which texture operators a device computes wrongly: the outcome of their checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farm.common.errors import FarmError
from farm.compiler.model import Array
from farm.compiler.reference import compare
from farm.compiler.texture.check import OperatorCheck
from farm.compiler.tvm_errors import first_line

Run = Callable[[str, Sequence[Array]], Array]
"""Calls a function of the checks' library on the device; its errors are TVM's, or a FarmError if the device is lost."""


def wrong_operators(checks: Sequence[OperatorCheck], run: Run, precision: str, device: str) -> dict[str, str]:
    """Functions that must not use textures on this device, each with the reason.

    Raises:
        FarmError: the device is lost.
    """
    wrong: dict[str, str] = {}
    for each in checks:
        if each.function in wrong:
            continue
        try:
            got = run(each.entry, each.inputs)
        except FarmError:
            raise
        except Exception as error:  # noqa: BLE001 - TVM has its own kinds: an image that is too large, no resources
            wrong[each.function] = f"it fails on {device}: {first_line(error)}"
            continue
        found = compare([got], [each.expected], [each.function], precision)
        if not found.ok:
            by = found.problem or f"off by {found.max_abs_error:.3g} ({found.excess:.3g} times the limit)"
            wrong[each.function] = f"wrong numbers on {device}: {by}"
    return wrong
