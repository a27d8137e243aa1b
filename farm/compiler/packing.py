"""Packages are made here: compile, compute what the outputs should be, put all that into one file."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import tvm

import farm
from farm.compiler.compile import Recipe, compile_library
from farm.compiler.inputs import filled
from farm.compiler.model import ImportedModel, TensorSpec
from farm.compiler.package import (
    FORMAT,
    LIBRARY,
    MODEL,
    REFERENCE,
    Expected,
    Manifest,
    Tensor,
    reference_npz,
    write_package,
)
from farm.compiler.record_files import read_records
from farm.compiler.records import FILES, pruned
from farm.compiler.reference import reference_for
from farm.compiler.targets import abi_of, device_of

SMALL_BYTES = 64 << 20  # a model file up to this size goes into its package unasked


def make_package(
    model: ImportedModel, recipe: Recipe, cache: Path, *, target_name: str = "", source: bytes | None = None
) -> bytes:
    """Compile a model and pack it with what its outputs are for the farm's seeded inputs, and with its records.

    `source` is the model file, to go into the package too: only then can a package be judged on other inputs.

    Raises:
        FarmError: as `build`.
    """
    compiled = compile_library(model, recipe, cache)
    inputs = filled(model, {}, "random")
    reference = reference_for(model, inputs, cache)
    expected = Expected(tuple(inputs.values()), reference.outputs, reference.host_outputs)
    abi, platform = abi_of(recipe.target)
    members = {
        LIBRARY: compiled.library.read_bytes(),
        REFERENCE: reference_npz(expected),
    }
    if source is not None:
        members[MODEL] = source
    if recipe.records is not None and compiled.scheduled:
        texts = pruned(read_records(recipe.records).set).texts()
        members |= {name: texts[name].encode() for name in FILES if name in texts}
    manifest = Manifest(
        format=FORMAT,
        name=model.name,
        source_format=model.format,
        source_sha256=model.sha256,
        key=model.key,
        inputs=tuple(_tensor(spec) for spec in model.inputs),
        outputs=tuple(_tensor(spec) for spec in model.outputs),
        target_name=target_name,
        target=dict(recipe.target) if isinstance(recipe.target, Mapping) else str(recipe.target),
        device=device_of(recipe.target),
        abi=abi,
        platform=platform,
        precision=recipe.precision,
        tvm=tvm.__version__,
        tvm_ffi=importlib.metadata.version("apache-tvm-ffi"),
        farm=farm.__version__,
        linker=compiled.linker,
        reference_by=reference.by,
        reference_independent=reference.independent,
        reference_note=reference.note,
        created=datetime.now(UTC).replace(microsecond=0),
    )
    return write_package(manifest, members)


def _tensor(spec: TensorSpec) -> Tensor:
    return Tensor(spec.name, tuple(int(size) for size in spec.shape), str(spec.dtype))
