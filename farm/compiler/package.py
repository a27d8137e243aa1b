"""A package (`.farm.tar`): a compiled model with everything needed to run it and to check its numbers on any phone.

A plain tar archive of few members. `package.json` comes first and names every other one with its SHA-256; a member
that is not named there, or is not a plain file, is refused. Nothing of an archive is ever written to a path that it
names. This module imports no TVM: hosts without one read packages too.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError, with_config

from farm.bundle.model import Abi, Platform
from farm.bundle.versions import TrialKind, TvmVersions, known_trials, verdict
from farm.common.errors import Code, UserError
from farm.common.field_errors import field_error
from farm.common.files import SHA256_FORM
from farm.compiler.files import TarError, tar_archive, tar_members
from farm.compiler.inputs import read_arrays, write_arrays
from farm.compiler.model import Array, Reference, TensorSpec, numpy_dtype, typed
from farm.compiler.records import FILES as RECORD_FILES
from farm.compiler.records import WORKLOADS
from farm.compiler.texture.scopes import TextureReport

FORMAT: Final = 1  # of packages; raised when an older farm could not read a newer one
SUFFIX: Final = ".farm.tar"
MANIFEST, LIBRARY, REFERENCE, MODEL = "package.json", "model.so", "reference.npz", "model"
PRECISE: Final = "precise"  # in REFERENCE: outputs in the package's precision; older farms refuse what they do not know
_MEMBERS: Final = frozenset({LIBRARY, REFERENCE, MODEL, *RECORD_FILES})
_NEEDED: Final = frozenset({LIBRARY, REFERENCE})
MAX_MANIFEST_BYTES = 1 << 20

Sha256 = Annotated[str, Field(pattern=SHA256_FORM)]


package_error = partial(UserError, code=Code.BAD_PACKAGE)
foreign_error = partial(UserError, code=Code.PACKAGE_FOREIGN)


def _tensor(value: object) -> TensorSpec:
    """`TensorSpec.to_wire` read back. A TypeError names a type that numpy does not know."""
    match value:
        case {"name": str(name), "shape": [*sizes], "dtype": str(dtype), **others} if not others:
            if all(isinstance(size, str) or (type(size) is int and size >= 0) for size in sizes):
                return TensorSpec(name, tuple(sizes), numpy_dtype(dtype))
    raise ValueError("it is no tensor {name, shape, dtype}")


Tensors = tuple[Annotated[TensorSpec, PlainValidator(_tensor), PlainSerializer(TensorSpec.to_wire)], ...]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class PackageManifest:
    """The content of `package.json`."""

    format: int
    name: Annotated[str, Field(min_length=1)]  # of the model: its file name
    source_format: str  # of the model file: onnx, torch, tflite, relax, keras
    source_sha256: Sha256  # of the model file
    key: Sha256  # ImportedModel.key
    inputs: Tensors  # parameters of the library's `main`, in order
    outputs: Tensors
    target_name: str  # the farm's: cpu, adreno, rpi4 ...; "" for a tag or dict that a user gave
    target: str | dict[str, Any]  # what TVM was given
    device: str  # TVM's device that runs it: cpu, opencl, vulkan
    abi: Abi
    platform: Platform
    precision: str
    tvm: str  # version that compiled it; the runtime beside it must be the same
    tvm_ffi: str
    farm: str
    linker: str
    reference_by: str  # what computed the expected outputs
    reference_independent: bool  # whether that was something else than TVM
    reference_note: str = ""
    textures: TextureReport | None = None  # which operators use textures; None: it was not made with any
    created: datetime
    sha256: dict[str, Sha256] = field(default_factory=dict)  # of each other member


@dataclass(frozen=True, slots=True)
class Package:
    """A package that was read and checked."""

    manifest: PackageManifest
    members: Mapping[str, bytes] = field(repr=False)

    @property
    def name(self) -> str:
        """The model's name for people."""
        return self.manifest.name

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """In the order of the library's parameters."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """In the order of the library's results."""
        return self.manifest.outputs

    @property
    def library(self) -> bytes:
        """The shared library, weights inside."""
        return self.members[LIBRARY]

    @property
    def model(self) -> bytes | None:
        """The model file, when the package was made with it."""
        return self.members.get(MODEL)

    @property
    def tuned(self) -> bool:
        """Whether it was compiled with tuning records; they are inside (farm.compiler.record_files reads them)."""
        return WORKLOADS in self.members

    def expected(self) -> tuple[dict[str, Array], Reference]:
        """Inputs of the package's own, by name, and their expected outputs.

        Raises:
            UserError: they are damaged.
        """
        series = {"input": self.manifest.inputs, "output": self.manifest.outputs, "host": self.manifest.outputs}
        try:
            arrays = read_arrays(self.members[REFERENCE], REFERENCE)
            if f"{PRECISE}_0" in arrays:
                series[PRECISE] = self.manifest.outputs
            named = {f"{prefix}_{i}" for prefix, tensors in series.items() for i in range(len(tensors))}
            if others := set(arrays) - named:
                raise ValueError(f"{MANIFEST} does not name: {', '.join(sorted(others))}")
            inputs, outputs, host_outputs, *precise = [
                tuple(typed(arrays[f"{prefix}_{i}"], tensor.dtype) for i, tensor in enumerate(tensors))
                for prefix, tensors in series.items()
            ]
        except Exception as error:
            what = f"{self.name}: the package's expected outputs cannot be read"
            raise package_error(what, hint="make it again", evidence=str(error)) from error
        made = self.manifest
        reference = Reference(
            outputs, host_outputs, made.reference_independent, made.reference_by, made.reference_note, *precise
        )
        return dict(zip((each.name for each in made.inputs), inputs, strict=True)), reference


def is_package(source: bytes | Path) -> bool:
    """Whether a file, by its first 512 bytes, is a package: a tar archive whose first member is the manifest."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            return is_package(file.read(512))
    return source[257:262] == b"ustar" and source[:100].rstrip(b"\0") == MANIFEST.encode()


def reference_npz(inputs: Sequence[Array], reference: Reference) -> bytes:
    """The member REFERENCE. The inputs' seed would not do: numpy's random streams may change with its version."""
    series = {"input": inputs, "output": reference.outputs, "host": reference.host_outputs, PRECISE: reference.precise}
    arrays = {f"{prefix}_{i}": array for prefix, some in series.items() for i, array in enumerate(some)}
    with io.BytesIO() as file:
        write_arrays(file, arrays)
        return file.getvalue()


def write_package(manifest: PackageManifest, members: Mapping[str, bytes]) -> bytes:
    """The archive: same arguments, same bytes. The hashes are put into the manifest here."""
    hashes = {name: hashlib.sha256(members[name]).hexdigest() for name in sorted(members)}
    fields = _adapter().dump_python(manifest, mode="json") | {"format": FORMAT, "sha256": hashes}
    if manifest.textures is None:
        del fields["textures"]  # older farms refuse a field that they do not know
    fields["check"] = _check(fields)
    return tar_archive([(MANIFEST, json.dumps(fields, indent=1).encode()), *sorted(members.items())])


def read_package(source: bytes | Path, name: str = "the package") -> Package:
    """Read and check a package; `name` is for messages.

    Raises:
        UserError: it is none, has members that it should not have, or lacks some; a hash is wrong; its format is
            another than this farm's.
    """
    if isinstance(source, Path):
        return read_package(_bytes(source), source.name)
    if not is_package(source):
        raise package_error(f"{name} is no package", hint=f"`farm compile` makes one (MODEL{SUFFIX})")
    found = _members(source, name)
    manifest = _manifest(found.pop(MANIFEST), name)
    _check_members(manifest, found, name)
    return Package(manifest, found)


def read_manifest(path: Path) -> PackageManifest:
    """The manifest of a package on disk, without reading the rest.

    Raises:
        UserError: its manifest is damaged, or of another format.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(tarfile.BLOCKSIZE + MAX_MANIFEST_BYTES)
    except OSError as error:
        raise package_error(f"cannot read {path}: {error.strerror}") from error
    for member, content in _each(beginning, path.name):
        if member == MANIFEST:
            return _manifest(content, path.name)
        break
    raise package_error(f"{path.name} is damaged, or cut short", hint="copy or make it again")


def check_tvm(manifest: PackageManifest, here: TvmVersions) -> None:
    """Refuse a package of another TVM or FFI than the one that is to run it: its calls would go wrong unseen.

    One of another release is taken if it was tried and works; of the same TVM, also if never tried with that FFI.

    Raises:
        UserError: it is another.
    """
    made = TvmVersions(manifest.tvm, manifest.tvm_ffi)
    found = verdict(made, here, known_trials(), TrialKind.PACKAGE)
    if found.broken or (found.unknown and made.tvm != here.tvm):
        raise UserError(
            f"{manifest.name} was compiled by {made}, and this toolchain has {here}",
            Code.PACKAGE_MISMATCH,
            hint=f"compile it again here, or use a phone whose bundle is of TVM {manifest.tvm}",
            evidence=found.reason,
        )


def check_fits(manifest: PackageManifest, abi: Abi, platform: Platform, device: str, features: Collection[str]) -> None:
    """Refuse a package whose code a phone cannot run.

    `device` is TVM's (cpu, opencl, vulkan); `features` are LLVM's names of what the phone's CPU is known to have
    beyond its ABI.

    Instructions that only an `mcpu` grants are not checked: LLVM's table of them needs TVM.

    Raises:
        UserError: its CPU or platform is another one's.
        UserError: it is for another of TVM's devices.
    """
    if (manifest.abi, manifest.platform) != (abi, platform):
        raise foreign_error(
            f"{manifest.name} was compiled for {manifest.abi} ({manifest.platform}), and this is {abi} ({platform})",
            hint=f"compile it for this phone: farm compile {manifest.name} --on SELECTOR",
        )
    if manifest.device != device:
        raise UserError(
            f"{manifest.name} was compiled for {manifest.device}, not for {device}",
            Code.PACKAGE_UNFIT,
            hint=f"--target {manifest.device}",
        )
    lacking = sorted(cpu_features(manifest.target) - set(features))
    if lacking:
        raise foreign_error(
            f"{manifest.name} was compiled for CPUs with {', '.join(lacking)}, which this one is not known to have",
            hint=f"compile it for this phone: farm compile {manifest.name} --on SELECTOR",
        )


def check_asked(
    manifest: PackageManifest,
    precision: str,
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, str],
    *,
    records: bool,
    texture: bool = False,
) -> None:
    """Refuse options that differ from those a package was made with. float32 stands for no option.

    Raises:
        UserError: one differs.
    """
    inputs = {tensor.name: tensor for tensor in manifest.inputs}
    made: list[tuple[str, object, object]] = []
    if precision != "float32":
        made.append(("--precision", precision, manifest.precision))
    made += [(f"--shape {name}", tuple(shape), inputs[name].shape if name in inputs else None)
             for name, shape in shapes.items()]  # fmt: skip
    made += [(f"--dtype {name}", dtype, str(inputs[name].dtype) if name in inputs else None)
             for name, dtype in dtypes.items()]  # fmt: skip
    if records:
        made.append(("--records", "others", "its own, or none"))
    if texture:
        made.append(("--texture", "given", "given" if manifest.textures is not None else "not given"))
    for option, asked, has in made:
        if asked != has:
            raise UserError(
                f"{manifest.name} is compiled already: {option} is {has}, not {asked}",
                Code.PACKAGE_UNFIT,
                hint="leave the option out, or give the model file in place of the package",
            )


def cpu_features(target: object) -> frozenset[str]:
    """LLVM features that a target's CPU code is switched to use by name."""
    fields = target if isinstance(target, Mapping) else {}
    host = fields.get("host", fields)
    named = host.get("mattr", ()) if isinstance(host, Mapping) else ()
    return frozenset(feature[1:] for feature in named if feature.startswith("+"))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise package_error(f"cannot read {path}: {error.strerror}") from error


def _members(data: bytes, name: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member, content in _each(data, name):
        if member not in _MEMBERS | {MANIFEST} or member in found:
            raise package_error(f"{name} has the member {member[:80]!r}, which no package has, and is not read")
        if member == MANIFEST and len(content) > MAX_MANIFEST_BYTES:
            raise package_error(f"{name}: its {MANIFEST} has {len(content):,} bytes and is not read")
        found[member] = content
    return found


def _each(data: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    try:
        yield from tar_members(data)
    except TarError as error:
        raise package_error(f"{name} is no whole package: {error}", hint="copy or make it again") from error


def _manifest(content: bytes, name: str) -> PackageManifest:
    try:
        fields = json.loads(content)
        check = _check({key: value for key, value in fields.items() if key != "check"})
    except (ValueError, RecursionError, AttributeError) as error:  # too deep, a number of 4301 digits, no object ...
        raise package_error(f"{name}: its {MANIFEST} is damaged", hint="copy or make it again") from error
    version = fields.get("format")
    if version != FORMAT:
        raise UserError(
            f"{name} is a package of format {version!r:.20}, and this farm reads format {FORMAT}",
            Code.PACKAGE_MISMATCH,
            hint="make it again with this farm, or use the farm that made it",
        )
    if fields.pop("check", None) != check:
        raise package_error(
            f"{name}: its {MANIFEST} is not what it was (SHA-256 differs)", hint="copy or make it again"
        )
    try:
        return _adapter().validate_python(fields)
    except ValidationError as error:
        where, what, _hint = field_error(error.errors())
        raise package_error(f"{name}: its {MANIFEST} is damaged: {where!r} {what}") from error
    except TypeError as error:
        raise package_error(f"{name}: its {MANIFEST} names a type that numpy does not know: {error}") from error


def _check(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _check_members(manifest: PackageManifest, found: Mapping[str, bytes], name: str) -> None:
    for member in sorted(_NEEDED | manifest.sha256.keys()):
        if member not in found:
            raise package_error(f"{name} lacks its member {member}", hint="copy or make it again")
    for member, content in found.items():
        if hashlib.sha256(content).hexdigest() != manifest.sha256.get(member):
            raise package_error(
                f"{name}: its member {member} is not what it was when the package was made (SHA-256 differs)",
                hint="copy or make it again",
            )


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[PackageManifest]:
    return TypeAdapter(PackageManifest)
