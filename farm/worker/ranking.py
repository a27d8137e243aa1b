"""The largest elements of a model's outputs, named by labels where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.compiler.model import Array, TensorSpec
from farm.core.errors import ModelError


class LabelsError(ModelError):
    """The labels do not fit the model's outputs."""

    code = "bad_labels"


def read_labels(data: bytes) -> tuple[str, ...]:
    """One label per line; the end of the last line is no further label.

    Raises:
        LabelsError: it is no text, or there are none.
    """
    try:
        labels = tuple(line.strip() for line in data.decode("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        where = data[: error.start].count(b"\n") + 1
        raise LabelsError(f"the labels are no UTF-8 text (line {where})", hint="one class name per line") from error
    if not any(labels):
        raise LabelsError("the labels file is empty", hint="one class name per line")
    return labels


def check_labels(labels: Sequence[str], outputs: Sequence[TensorSpec]) -> None:
    """Whether some output has a class, along its last axis, for each label.

    Raises:
        LabelsError: none has; says how many each has.
    """
    classes = {spec.name: spec.shape[-1] if spec.shape else 1 for spec in outputs}
    if len(labels) not in classes.values():
        had = ", ".join(f"{name!r} has {count}" for name, count in classes.items())
        raise LabelsError(
            f"there are {len(labels)} labels, and no output has so many classes: {had}",
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
