"""Labelled inputs: an .npz with many inputs of a model, by its inputs' names, and a label for each, under `labels`.

Along the first axis of every array is one input. A model of a fixed batch gets so many at once, the last batch is
filled up; an input whose first dimension is open gets one. A model without an axis for a batch gets them one by one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from farm.common.durations import many
from farm.common.errors import ModelError
from farm.compiler.inputs import NO_SHAPES, ModelWithInputs, fitted, input_error, read_arrays, shapes_in, write_arrays
from farm.compiler.model import Array, TensorSpec, shown
from farm.measure.quality import QualityMetric, check_labels, check_output

LABELS = "labels"  # the name of the array with the labels
MAX_LABELLED = 100_000  # inputs: a phone runs them in minutes to hours, and their scores are kept
WHAT = "the labelled inputs"
FORM_HINT = f"numpy.savez(path, INPUT=array, {LABELS}=array), with one input and its label along the first axis"


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What `fitted` needs of a model."""

    name: str
    inputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class LabelledInputs:
    """Many inputs of a model with their labels."""

    arrays: Mapping[str, Array]  # by the model's inputs; one input along the first axis
    labels: Array  # one along the first axis
    batch: int  # inputs at once
    alone: bool  # whether the model has no axis for a batch: the first axis is not the model's

    def first(self) -> dict[str, Array]:
        """The first batch, by which a build is checked."""
        return self._batch(0)

    def first_npz(self) -> bytes:
        """The first batch as an .npz."""
        packed = io.BytesIO()
        write_arrays(packed, self.first())
        return packed.getvalue()

    def fitted_to(self, name: str, inputs: Mapping[str, Array]) -> LabelledInputs:
        """The same in the types of a build's inputs.

        Args:
            name: of the model, for messages.
            inputs: of the build, made from `first`.

        Raises:
            ModelError: an input has a number that its type cannot hold.
        """
        count = (len(self.labels),)
        specs = (
            TensorSpec(each, count + (array.shape if self.alone else array.shape[1:]), array.dtype)
            for each, array in inputs.items()
        )
        arrays = fitted(_Inputs(name, tuple(specs)), self.arrays)
        return replace(self, arrays={each: arrays[each] for each in inputs})

    def batches(self) -> Iterator[tuple[slice, tuple[Array, ...]]]:
        """The places of some inputs, and the arrays of a run in the order of `arrays`; the last batch is filled up."""
        for start in range(0, len(self.labels), self.batch):
            yield slice(start, min(start + self.batch, len(self.labels))), tuple(self._batch(start).values())

    def rows(self, output: Array, count: int) -> Array:
        """The outputs of the first `count` inputs of a batch, one along the first axis.

        Raises:
            ModelError: the output has no such axis.
        """
        rows = output[None] if self.alone else output
        if not rows.ndim or len(rows) != self.batch:
            raise input_error(
                f"the output has shape {shown(output.shape)}, and {many(self.batch, 'input')} go in at once",
                hint="the model's first output must have one row for each input",
            )
        return rows[:count]

    def check_output(self, metric: QualityMetric, output: TensorSpec, what: str = WHAT) -> None:
        """Whether the labels are for a model's output, as far as its shape is known; `what` names the file.

        Raises:
            ModelError: they are not.
        """
        shape = output.shape if self.alone else output.shape[1:]
        known = tuple(size for size in shape if isinstance(size, int))
        if len(known) < len(shape) or (not self.alone and not _is_batch(output.shape[:1], self.batch)):
            return
        try:
            check_output(metric, self.labels, known, output.name)
        except ValueError as error:
            raise _label_error(what, error, metric) from error

    def _batch(self, start: int) -> dict[str, Array]:
        if self.alone:
            return {name: array[start] for name, array in self.arrays.items()}
        some = {name: array[start : start + self.batch] for name, array in self.arrays.items()}
        return {name: np.concatenate([a, *[a[-1:]] * (self.batch - len(a))]) for name, a in some.items()}


def _is_batch(first: Sequence[int | str], batch: int) -> bool:
    return bool(first) and (first[0] == batch or isinstance(first[0], str))


def _label_error(what: str, error: ValueError, metric: QualityMetric) -> ModelError:
    return input_error(f"{what}: {error}", hint=f"--metric {metric.name}: {metric.about}")


def labelled_count(npz: bytes | Path, what: str = WHAT) -> int:
    """How many inputs are labelled; no array is read; `what` names the file.

    Raises:
        ModelError: there are no labels, or too many.
    """
    shapes = shapes_in(npz, what)
    if LABELS not in shapes:
        raise input_error(f"{what}: there is no array {LABELS!r} with a label for each input", hint=FORM_HINT)
    if not shapes[LABELS]:
        counts = [shape[0] for shape in shapes.values() if shape]
        instead = f", not {counts[0]:,}" if counts else ""
        raise input_error(f"{what}: {LABELS} is one number{instead}", hint=FORM_HINT)
    if not 1 <= (count := shapes[LABELS][0]) <= MAX_LABELLED:
        raise input_error(f"{what}: there are {many(count, 'label', ',')}", hint=f"1 to {MAX_LABELLED:,}")
    return count


def read_labelled(
    npz: bytes | Path,
    model: ModelWithInputs,
    metric: QualityMetric,
    shapes: Mapping[str, Sequence[int]] = NO_SHAPES,
    what: str = WHAT,
) -> LabelledInputs:
    """The labelled inputs for a model. Their shapes are checked before any array is read.

    Args:
        npz: the file.
        model: whose inputs it has; dimensions may be open.
        metric: that the labels are for.
        shapes: of inputs, where they are given.
        what: the file's name, for messages.

    Raises:
        ModelError: an array is missing or no input, or they do not have one input each along the first axis; the labels
            are not of the metric's form; there are too many.
    """
    count, claimed = labelled_count(npz, what), shapes_in(npz, what)
    inputs = {spec.name: tuple(shapes.get(spec.name, spec.shape)) for spec in model.inputs}
    if LABELS in inputs:
        raise input_error(f"{model.name} has an input {LABELS!r}, the name of the labels", hint="rename that input")
    if missing := inputs.keys() - claimed.keys():
        hint = f"{model.name} has inputs: {', '.join(inputs)}"
        raise input_error(f"{what}: the array {min(missing)!r} is missing", hint=hint)
    if unknown := claimed.keys() - inputs.keys() - {LABELS}:
        hint = f"{model.name} has inputs: {', '.join(inputs)}"
        raise input_error(f"{what}: {min(unknown)!r} is no input of {model.name}", hint=hint)
    for name, shape in claimed.items():
        if not shape or shape[0] != count:
            raise input_error(
                f"{what}: {name!r} has shape {shown(shape)}, for {many(count, 'label', ',')}", hint=FORM_HINT
            )
    batch, alone = _layout(model, inputs, claimed, what)
    arrays = read_arrays(npz, what)
    labels = arrays.pop(LABELS)
    try:
        check_labels(metric, labels)
    except ValueError as error:
        raise _label_error(what, error, metric) from error
    return LabelledInputs({name: arrays[name] for name in inputs}, labels, batch, alone)


def _layout(
    model: ModelWithInputs,
    inputs: Mapping[str, tuple[int | str, ...]],
    claimed: Mapping[str, tuple[int, ...]],
    what: str,
) -> tuple[int, bool]:
    """How many inputs go in at once, and whether the model has no axis for them."""
    found: dict[tuple[int, bool], str] = {}
    for name, shape in inputs.items():
        more = len(claimed[name]) - len(shape)
        one = shape if more else shape[1:]
        if more not in (0, 1) or any(
            isinstance(size, int) and size != given for size, given in zip(one, claimed[name][1:], strict=True)
        ):
            raise input_error(
                f"{what}: {name!r} has shape {shown(claimed[name])}, and {model.name} wants {shown(shape)}",
                hint=FORM_HINT,
            )
        first = shape[0] if shape and not more else 1
        found.setdefault((first if isinstance(first, int) else 1, bool(more)), name)
    if len(found) != 1:
        names = " and ".join(repr(each) for each in found.values())
        raise input_error(
            f"{what}: {names} of {model.name} do not take the same number of inputs at once", hint=FORM_HINT
        )
    return next(iter(found))
