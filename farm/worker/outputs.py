"""A model's outputs: kept as .npz, summarised, their largest elements with labels, and those of two builds compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from farm.common.durations import many
from farm.common.errors import Code, ModelError
from farm.compiler.build import Build
from farm.compiler.inputs import Fill, unlike_edges, write_arrays
from farm.compiler.model import Array, TensorSpec, shown

FEW_VALUES = 16  # an output of so many is shown whole


def output_fields(
    built: Build, outputs: Sequence[Array], fill: Fill, top_k: int, labels: Sequence[str]
) -> dict[str, Any]:
    """Each output in few words, its largest elements if asked, and where the inputs came from: a result's fields."""
    arrays = dict(zip(built.output_names, map(_storable, outputs), strict=True))
    return {
        "arrays": [summary_of(name, array) for name, array in arrays.items()],
        "top_k": {name: largest(array, top_k, labels) for name, array in arrays.items()} if top_k else {},
        "given": list(built.given),
        "filled": [name for name in built.inputs if name not in built.given],
        "fill": fill,
    }


def save_arrays(path: Path, names: Sequence[str], arrays: Sequence[Array]) -> None:
    """Write outputs as .npz."""
    write_arrays(path, dict(zip(names, map(_storable, arrays), strict=True)))


def summary_of(name: str, array: Array) -> dict[str, Any]:
    """A summary of an output; small ones whole. JSON has no NaN: it is "nan", as infinities are "inf" and "-inf"."""
    numbers = array.astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    few = 0 < numbers.size <= FEW_VALUES
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "nan": int(np.isnan(numbers).sum()),
        "inf": int(np.isinf(numbers).sum()),
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean()) if finite.size else None,
        "values": [each if isfinite(each) else str(each) for each in numbers.tolist()] if few else None,
    }


def _storable(array: Array) -> Array:
    """Types that numpy itself does not know (bfloat16) would be read back as raw bytes: float32 holds them."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


labels_error = partial(ModelError, code=Code.BAD_LABELS)


def read_labels(data: bytes) -> tuple[str, ...]:
    """One label per line; the end of the last line is no further label."""
    try:
        labels = tuple(line.strip() for line in data.decode("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        where = data[: error.start].count(b"\n") + 1
        raise labels_error(f"the labels are no UTF-8 text (line {where})", hint="one class name per line") from error
    if not any(labels):
        raise labels_error("the labels file is empty", hint="one class name per line")
    return labels


def check_labels(labels: Sequence[str], outputs: Sequence[TensorSpec]) -> None:
    """Whether some output has a class, along its last axis, for each label."""
    classes = {spec.name: spec.shape[-1] if spec.shape else 1 for spec in outputs}
    if len(labels) not in classes.values():
        had = ", ".join(f"{name!r} has {count}" for name, count in classes.items())
        verb = "is" if len(labels) == 1 else "are"
        raise labels_error(
            f"there {verb} {many(len(labels), 'label')}, and no output has so many classes: {had}",
            hint="one line per class, in the order of the output's last axis; no heading, no blank lines",
        )


def largest(output: Array, count: int, labels: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The `count` largest finite elements, the largest first, equal ones in their order.

    `index` counts in the flattened output; `at` is the place in each dimension when there is more than one row. `label`
    is that of the place in the last axis, when the labels are for an output of that size.
    """
    flat = output.reshape(-1)
    candidates = np.flatnonzero(np.isfinite(flat))
    values = flat[candidates]
    if 0 < count < len(values):  # a partial sort first: outputs may have millions of elements
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        candidates = candidates[values >= threshold]
        values = flat[candidates]
    order = candidates[np.lexsort((candidates, -values.astype(np.float64)))][:count]
    return [_row(output, int(index), labels) for index in order]


def _row(output: Array, index: int, labels: Sequence[str]) -> dict[str, Any]:
    classes = _classes(output)
    row: dict[str, Any] = {"index": index, "value": float(output.reshape(-1)[index])}
    if classes < output.size:
        row["at"] = [int(place) for place in np.unravel_index(index, output.shape)]
    if len(labels) == classes:
        row["label"] = labels[index % classes]
    return row


def _classes(output: Array) -> int:
    return output.shape[-1] if output.ndim else 1


FAR = 0.5  # of an output's own spread: float16 and 8 bits stay below a tenth, unrelated numbers are beyond 1


def differences(
    inputs_a: Sequence[Array], outputs_a: Sequence[Array], inputs_b: Sequence[Array], outputs_b: Sequence[Array]
) -> list[str]:
    """Signs that A and B are not two builds of one model, a sentence each; empty: there are none.

    Tensors are compared by position: formats name them differently. Numbers are compared where both got the same.
    """
    sides = ("input", inputs_a, inputs_b), ("output", outputs_a, outputs_b)
    edges = [line for what, a, b in sides for line in unlike_edges(what, [*map(_type, a)], [*map(_type, b)])]
    if edges or not all(np.array_equal(a, b) for a, b in zip(inputs_a, inputs_b, strict=True)):
        return edges
    return [
        f"for the same inputs, output {number} of B is far from that of A"
        for number, (a, b) in enumerate(zip(outputs_a, outputs_b, strict=True))
        if _far(a, b)
    ]


def _far(a: Array, b: Array) -> bool:
    """Whether two outputs differ by more than a good part of their own variation; for a constant one, of its size."""
    if not a.size:
        return False
    one, other = a.astype(np.float64), b.astype(np.float64)
    known = np.isfinite(one) & np.isfinite(other)
    if not known.all():
        return not np.array_equal(np.isfinite(one), np.isfinite(other))
    scale = max(one.std(), other.std()) or max(abs(one).max(), abs(other).max())
    return bool(np.sqrt(np.mean((one - other) ** 2)) > FAR * scale)


def _type(array: Array) -> str:
    return f"{shown(array.shape)} {array.dtype}"
