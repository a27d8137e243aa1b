"""What a run gave: kept as .npz, and told in few words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.compiler.build import Build
from farm.compiler.inputs import Fill, write_arrays
from farm.compiler.model import Array
from farm.worker.ranking import largest

FEW_VALUES = 16  # an output of so many is told whole


def told(built: Build, outputs: Sequence[Array], fill: Fill, top_k: int, labels: Sequence[str]) -> dict[str, Any]:
    """Each output in few words, its largest elements if asked, and where the inputs came from: a result's fields."""
    arrays = dict(zip(built.output_names, map(_storable, outputs), strict=True))
    return {
        "arrays": [_about(name, array) for name, array in arrays.items()],
        "top_k": {name: largest(array, top_k, labels) for name, array in arrays.items()} if top_k else {},
        "given": list(built.given),
        "filled": [name for name in built.inputs if name not in built.given],
        "fill": fill,
    }


def save_arrays(path: Path, names: Sequence[str], arrays: Sequence[Array]) -> None:
    """Write outputs as .npz."""
    write_arrays(path, dict(zip(names, map(_storable, arrays), strict=True)))


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
