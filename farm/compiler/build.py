"""From a model file or a package to a library, its inputs and its expected outputs.

`build` does that; `make_package` puts all of it into one file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tvm

import farm
from farm.bundle.versions import installed_versions
from farm.common.errors import ModelError, PhoneError
from farm.compiler.compile import LIBRARY, Compiled, Recipe, compile_library
from farm.compiler.files import replaced
from farm.compiler.inputs import Fill, ModelWithInputs, all_inputs, filled, fitted, import_with, read_arrays
from farm.compiler.link import find_linker
from farm.compiler.load import import_model, read
from farm.compiler.model import Array, ImportedModel, Reference, TensorSpec
from farm.compiler.package import (
    FORMAT,
    MODEL,
    REFERENCE,
    Package,
    PackageManifest,
    check_asked,
    check_fits,
    check_tvm,
    cpu_features,
    is_package,
    package_error,
    read_package,
    reference_npz,
    write_package,
)
from farm.compiler.package import LIBRARY as LIBRARY_MEMBER
from farm.compiler.record_files import read_records
from farm.compiler.records import FILES, pruned
from farm.compiler.reference import Precise, host_outputs, judge, reference_for, within_memory
from farm.compiler.relax_passes import FLOAT32
from farm.compiler.targets import OWN_TEXTURES, TargetRefusedError, abi_of, device_of, is_texture
from farm.compiler.texture.scopes import TextureReport


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """How to build a model file or a package."""

    recipe: Recipe
    shapes: Mapping[str, Sequence[int]]
    dtypes: Mapping[str, str]
    npz: bytes | None = None  # arrays of inputs
    fill: Fill = "random"  # of inputs that `npz` does not give
    require_all_inputs: bool = False  # refuse an `npz` that gives only some


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A library, ready to be run and judged."""

    name: str  # of the model file or the package
    sha256: str  # of the same: what a package says it was made from is its maker's word
    recipe: Recipe
    compiled: Compiled
    inputs: Mapping[str, Array]  # in the order of the library's parameters
    given: tuple[str, ...]  # inputs that the request gives
    outputs: tuple[TensorSpec, ...]
    reference: Reference | None  # None: of a package without its model, on inputs that are not its own
    precise: Precise = tuple  # asked when outputs in another precision than float32 are too far off
    package: Package | None = None  # that it was read from
    checked: str = ""  # the GPU on which each texture operator computed what this host does; "": on none

    def checked_on(self, gpu: str) -> Build:
        """The same, its texture operators having been found right on that GPU."""
        return replace(self, checked=gpu)

    @property
    def output_names(self) -> list[str]:
        """In the order of the library's results."""
        return [spec.name for spec in self.outputs]

    @property
    def device(self) -> str:
        """TVM's device that runs it: cpu, opencl, vulkan."""
        return device_of(self.recipe.target)

    @property
    def least_bytes(self) -> int:
        """Memory that it needs at the least where it runs: the library, its weights unpacked, inputs and outputs.

        What lies between layers is not counted: TVM plans it only as the library is loaded.
        """
        tensors = sum(array.nbytes for array in self.inputs.values())
        results = self.reference.outputs if self.reference is not None else ()
        return 2 * self.compiled.library.stat().st_size + tensors + sum(array.nbytes for array in results)

    @property
    def tuned(self) -> bool:
        """Whether a tuning record schedules any of its operators."""
        return self.package.tuned if self.package is not None else self.compiled.scheduled > 0

    @property
    def textured(self) -> bool:
        """Whether any of its operators uses textures."""
        return self.compiled.textures is not None and bool(self.compiled.textures.textures)

    def judged(self, outputs: Sequence[Array]) -> dict[str, Any]:
        """How far outputs are from the reference, as a result's fields (None where there is no reference).

        Raises:
            PhoneError: too far, and only this phone computes so.
            ModelError: too far, and TVM on this host computes the same, or does in the build's precision.
            TargetRefusedError: too far, and the target is one that this TVM is not trusted with.
        """
        if self.reference is None:
            note = "the package has no model inside to compute the outputs for these inputs from"
            return {"max_abs_error": None, "max_rel_error": None, "numerics": {"reference": "none", "note": note}}
        try:
            return judge(outputs, self.reference, self.output_names, self.recipe.precision, self.precise)
        except (PhoneError, ModelError) as error:
            if is_texture(self.recipe.target):
                raise TargetRefusedError(
                    f"TVM {tvm.__version__} generates wrong code for textures: {error.message}", hint=OWN_TEXTURES
                ) from error
            raise

    def _textures(self) -> dict[str, Any] | None:
        """Which operators use textures, and on which GPU each was checked; None: they were not asked for."""
        textures = self.compiled.textures
        return {**textures.to_wire(), "checked": self.checked} if textures is not None else None

    def about(self) -> dict[str, Any]:
        """The build's facts, as a result's fields."""
        compiled, shapes = self.compiled, {name: list(array.shape) for name, array in self.inputs.items()}
        return {
            "compile": {
                "seconds": compiled.seconds, "cached": compiled.cached, "linker": compiled.linker,
                "library_sha256": compiled.sha256, "key": compiled.key, "target": self.recipe.target,
                "precision": self.recipe.precision, "tuned": self.tuned, "packaged": self.package is not None,
                "operators": compiled.operators, "with_record": compiled.scheduled,
                "kernels": dict(compiled.kernels),
                "textures": self._textures(),
            },
            "model": {"name": self.name, "sha256": self.sha256, "inputs": shapes},
        }  # fmt: skip


def build(
    data: bytes, name: str, wanted: BuildRequest, cache: Path, report: Callable[[str], None] = lambda _: None
) -> Build:
    """Compile a model file, or unpack a package, and find its expected outputs.

    Args:
        data: what the file holds.
        name: its displayed name, whose suffix may decide the format.
        wanted: how, and on what.
        cache: a folder that keeps libraries and references.
        report: called with each step.

    Raises:
        ModelError: the model or its inputs cannot be used, or TVM fails.
        UserError: the package is damaged, or does not fit what is wanted.
        TargetError: TVM does not take the target; TargetRefusedError: it would do it wrongly.
        HostError: the host cannot link for the target.
    """
    if is_package(data):
        return _unpacked(data, name, wanted, cache, report)
    source = read(data, name)
    for note in source.notes:
        report(note)
    model, given = import_with(source, wanted.npz, wanted.shapes, wanted.dtypes)
    inputs = _inputs(model, given, wanted)
    report("compiling")
    compiled = compile_library(model, wanted.recipe, cache)
    report("computing the reference")
    return Build(
        name=model.name, sha256=model.sha256, recipe=wanted.recipe, compiled=compiled, inputs=inputs,
        given=tuple(sorted(given)), outputs=model.outputs, reference=reference_for(model, inputs, cache),
        precise=_precise(model, inputs, wanted.recipe.precision),
    )  # fmt: skip


def _inputs(model: ModelWithInputs, given: Mapping[str, Array], wanted: BuildRequest) -> dict[str, Array]:
    with within_memory(model.name, model.inputs):
        return all_inputs(model, given) if wanted.require_all_inputs else filled(model, given, wanted.fill)


def _precise(model: ImportedModel, inputs: Mapping[str, Array], precision: str) -> Precise:
    """Only another precision than float32 needs it: it keeps the whole model."""
    return partial(host_outputs, model, inputs, precision) if precision != FLOAT32 else tuple


def _unpacked(data: bytes, name: str, wanted: BuildRequest, cache: Path, report: Callable[[str], None]) -> Build:
    package = read_package(data, name)
    manifest = package.manifest
    check_tvm(manifest, installed_versions(tvm.__version__))
    target = wanted.recipe.target
    check_fits(manifest, *abi_of(target), device_of(target), cpu_features(target))
    recipe = wanted.recipe
    check_asked(
        manifest, recipe.precision, wanted.shapes, wanted.dtypes, records=recipe.records is not None,
        texture=recipe.texture,
    )  # fmt: skip
    report("unpacking")
    folder = cache / manifest.sha256[LIBRARY_MEMBER]
    folder.mkdir(parents=True, exist_ok=True)
    with replaced(folder / LIBRARY) as written:
        written.write_bytes(package.library)
    given = fitted(package, read_arrays(wanted.npz)) if wanted.npz is not None else {}
    precise: Precise = tuple
    if given or wanted.fill != "random":
        inputs = _inputs(package, given, wanted)
        reference = None
        if package.model is not None:
            report("computing the reference")
            model = _model_inside(package, package.model)
            reference = reference_for(model, inputs, cache)
            precise = _precise(model, inputs, manifest.precision)
    else:
        inputs, expected = package.expected()
        reference, precise = expected, partial(tuple, expected.precise)
    key = manifest.sha256[LIBRARY_MEMBER]
    return Build(
        name=name, sha256=hashlib.sha256(data).hexdigest(), recipe=Recipe(manifest.target, manifest.precision),
        compiled=Compiled(
            folder / LIBRARY, key, key, seconds=0.0, cached=True, linker=manifest.linker, textures=manifest.textures
        ), inputs=inputs,
        given=tuple(sorted(given)), outputs=package.outputs, reference=reference, precise=precise, package=package,
    )  # fmt: skip


def _model_inside(package: Package, data: bytes) -> ImportedModel:
    shapes = {each.name: [size for size in each.shape if isinstance(size, int)] for each in package.inputs}
    dtypes = {each.name: str(each.dtype) for each in package.inputs}
    model = import_model(read(data, package.name), shapes, dtypes)
    if (names := [spec.name for spec in model.inputs]) != list(shapes):
        raise package_error(
            f"{package.name}: its manifest names the inputs {list(shapes)}, and the model inside has {names}",
            hint="make it again",
        )
    return model


SMALL_BYTES = 64 << 20  # a model file up to this size goes into its package unasked


def make_package(
    model: ImportedModel, recipe: Recipe, cache: Path, *, target_name: str = "", source: bytes | None = None
) -> tuple[bytes, PackageManifest]:
    """Compile a model and pack it with its outputs for the farm's seeded inputs, and with its records.

    Returns the archive, and its manifest without the members' hashes.

    `source` is the model file, to go into the package too: only then can a package be judged on other inputs.

    Raises:
        FarmError: as `build`.
    """
    compiled = compile_library(model, recipe, cache)
    inputs = filled(model, {}, "random")
    reference = reference_for(model, inputs, cache)
    if recipe.precision != FLOAT32:
        reference = replace(reference, precise=host_outputs(model, inputs, recipe.precision))
    members = {MODEL: source} if source is not None else {}
    if recipe.records is not None and compiled.scheduled:
        texts = pruned(read_records(recipe.records).set).texts()
        members |= {name: texts[name].encode() for name in FILES if name in texts}
    arrays = tuple(inputs.values())
    return pack(
        model, recipe, compiled.library, arrays, reference, members, target_name=target_name, textures=compiled.textures
    )


def pack(
    model: ImportedModel,
    recipe: Recipe,
    library: Path,
    inputs: Sequence[Array],
    reference: Reference,
    members: Mapping[str, bytes] = MappingProxyType({}),
    *,
    target_name: str = "",
    textures: TextureReport | None = None,
) -> tuple[bytes, PackageManifest]:
    """The archive of a library, and its manifest without the members' hashes.

    Args:
        model: that the library is of, or what remains of it: its name, inputs and outputs are the package's.
        recipe: of the library.
        library: the file.
        inputs: of the package's own.
        reference: their outputs.
        members: others than library and reference.
        target_name: the farm's.
        textures: which operators use them.

    Raises:
        TargetError: the farm cannot link for that target.
    """
    abi, platform = abi_of(recipe.target)
    members = {**members, LIBRARY_MEMBER: library.read_bytes(), REFERENCE: reference_npz(inputs, reference)}
    versions = installed_versions(tvm.__version__)
    manifest = PackageManifest(
        format=FORMAT,
        name=model.name,
        source_format=model.format,
        source_sha256=model.sha256,
        key=model.key,
        inputs=model.inputs,
        outputs=model.outputs,
        target_name=target_name,
        target=dict(recipe.target) if isinstance(recipe.target, Mapping) else str(recipe.target),
        device=device_of(recipe.target),
        abi=abi,
        platform=platform,
        precision=recipe.precision,
        tvm=versions.tvm,
        tvm_ffi=versions.ffi,
        farm=farm.__version__,
        linker=find_linker(abi, platform).name,
        reference_by=reference.by,
        reference_independent=reference.independent,
        reference_note=reference.note,
        textures=textures,
        created=datetime.now(UTC).replace(microsecond=0),
    )
    return write_package(manifest, members), manifest
