"""Whether two builds do the same work: a verdict about their speed says little when they do not. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farm.compiler.model import Array

FAR = 0.5  # of an output's own spread: float16 and 8 bits stay below a tenth, unrelated numbers are beyond 1


def differences(
    inputs_a: Sequence[Array], outputs_a: Sequence[Array], inputs_b: Sequence[Array], outputs_b: Sequence[Array]
) -> list[str]:
    """What tells that A and B are not two builds of one model, a sentence each; empty: nothing does.

    Tensors are compared by position: formats name them differently. Numbers are compared where both got the same.
    """
    edges = [*_edge("input", inputs_a, inputs_b), *_edge("output", outputs_a, outputs_b)]
    if edges or not all(np.array_equal(a, b) for a, b in zip(inputs_a, inputs_b, strict=True)):
        return edges
    return [
        f"for the same inputs, output {number} of B is far from that of A"
        for number, (a, b) in enumerate(zip(outputs_a, outputs_b, strict=True))
        if _far(a, b)
    ]


def _edge(what: str, a: Sequence[Array], b: Sequence[Array]) -> list[str]:
    if len(a) != len(b):
        return [f"A has {_many(len(a), what)}, B {_many(len(b), what)}"]
    return [
        f"{what} {number} is {_type(one)} in A, {_type(other)} in B"
        for number, (one, other) in enumerate(zip(a, b, strict=True))
        if (one.shape, one.dtype) != (other.shape, other.dtype)
    ]


def _far(a: Array, b: Array) -> bool:
    """Whether two outputs differ by more than a good part of what they vary; a constant one, of its size."""
    if not a.size:
        return False
    one, other = a.astype(np.float64), b.astype(np.float64)
    known = np.isfinite(one) & np.isfinite(other)
    if not known.all():
        return not np.array_equal(np.isfinite(one), np.isfinite(other))
    scale = max(one.std(), other.std()) or max(abs(one).max(), abs(other).max())
    return bool(np.sqrt(np.mean((one - other) ** 2)) > FAR * scale)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _type(array: Array) -> str:
    return f"{'x'.join(map(str, array.shape)) or 'scalar'} {array.dtype}"
