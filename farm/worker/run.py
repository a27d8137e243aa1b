"""The run worker: compile, upload, run once, check the numbers, keep the outputs. `main` is a zygote child's task."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farm.compiler.inputs import filled, import_with
from farm.compiler.load import read
from farm.compiler.model import Array
from farm.compiler.reference import judge
from farm.jobs.tasks import RunTask
from farm.worker.daemon import Daemon
from farm.worker.model_run import first_run, prepare, session_to_phone
from farm.worker.ranking import check_labels, largest, read_labels

FEW_VALUES = 16  # an output of so many is told whole
OUTPUTS = Path("outputs.npz")  # in the attempt's own folder


def main(payload: Mapping[str, Any], daemon: Daemon) -> dict[str, Any]:
    """Run one model once on one phone.

    Raises:
        ModelError: the model, its inputs or its labels cannot be used, or TVM compiles the model wrongly.
        PhoneError: the phone failed, or computed wrong numbers.
    """
    task = RunTask.from_wire(payload)
    daemon.progress("reading the model")
    source = read(daemon.artifact(task.model), task.name)
    npz = daemon.artifact(task.inputs) if task.inputs else None
    model, given = import_with(source, npz, task.shapes, task.dtypes)
    names = [spec.name for spec in model.outputs]
    labels = read_labels(daemon.artifact(task.labels)) if task.labels else ()
    prepared = prepare(task, model, filled(model, given, task.fill), daemon)
    if labels:  # before the phone is touched: the reference has the outputs' shapes
        check_labels(labels, dict(zip(names, prepared.reference.outputs, strict=True)))
    with session_to_phone(daemon) as session:
        ran = first_run(task, prepared, session, daemon)
        numerics = judge(ran.outputs, prepared.reference, names)
    daemon.progress("keeping the outputs")
    outputs = dict(zip(names, map(_storable, ran.outputs), strict=True))
    save_arrays(OUTPUTS, outputs)
    return {
        **numerics,
        **prepared.about(task.target),
        "outputs": daemon.put_artifact(OUTPUTS),
        "arrays": [_about(name, array) for name, array in outputs.items()],
        "top_k": {name: largest(array, task.top_k, labels) for name, array in outputs.items()} if task.top_k else {},
        "given": sorted(given),
        "filled": [spec.name for spec in model.inputs if spec.name not in given],
        "fill": task.fill,
        "timings": ran.timings,
    }


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz; numpy.savez would take an output named "file" for its own argument."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _about(name: str, array: Array) -> dict[str, Any]:
    """What an output looks like; small ones whole. JSON has no NaN: what is not finite is left out."""
    numbers = array.astype(np.float64).ravel()
    finite = bool(numbers.size) and bool(np.isfinite(numbers).all())
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "min": float(numbers.min()) if finite else None,
        "max": float(numbers.max()) if finite else None,
        "mean": float(numbers.mean()) if finite else None,
        "values": numbers.tolist() if finite and numbers.size <= FEW_VALUES else None,
    }


def _storable(array: Array) -> Array:
    """Types that numpy itself does not know (bfloat16) would be read back as raw bytes: float32 holds them."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
