"""What a bundle is, as a value and as the manifest.json beside its files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from farm.bundle.abi import Abi, Platform
from farm.bundle.golden import Golden
from farm.core.errors import HostError

MANIFEST_FORMAT = 1
MANIFEST = "manifest.json"
SHORT_HASH = 12  # digits shown to people; 48 bits: a farm with a thousand bundles has a collision once in 10^9 farms


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle, as it lies on the phone."""

    name: str
    sha256: str
    size: int  # bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes two bundles the same: its hash is the bundle's."""

    abi: Abi
    platform: Platform
    toolchain: str
    files: tuple[BundleFile, ...]  # sorted by name

    @property
    def hash(self) -> str:
        """SHA-256 over the canonical JSON form."""
        plain = {"format": MANIFEST_FORMAT, **asdict(self)}
        return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of manifest.json."""

    format: int
    identity: Identity
    tvm_version: str
    has_opencl: bool
    has_random_fill: bool
    warnings: tuple[str, ...]
    added_at: datetime
    golden_files: tuple[BundleFile, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A runtime bundle in the library: tvm_rpc and its libraries for one ABI, with the golden kernels that prove it."""

    name: str  # the name it was asked for by, else its first; "" when it has none
    hash: str
    abi: str
    files: tuple[BundleFile, ...]
    path: Path  # folder of `files`
    toolchain: str
    golden: tuple[Golden, ...]
    tvm_version: str
    has_opencl: bool
    platform: str = Platform.ANDROID
    has_random_fill: bool = True
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    added_at: datetime | None = None

    @property
    def short_hash(self) -> str:
        """As people see it."""
        return self.hash[:SHORT_HASH]

    @property
    def size_bytes(self) -> int:
        """What a phone receives."""
        return sum(file.size for file in self.files)

    @property
    def golden_dir(self) -> Path:
        """Folder of the golden kernels; `farm.worker.golden.run_golden` takes it."""
        return self.path.parent / "golden"


@dataclass(frozen=True, slots=True)
class _Versioned:
    format: int


_MANIFEST = TypeAdapter(Manifest)
_VERSIONED = TypeAdapter(_Versioned)


def dump_manifest(manifest: Manifest) -> bytes:
    """As written to disk."""
    return _MANIFEST.dump_json(manifest, indent=1) + b"\n"


def load_manifest(path: Path) -> Manifest:
    """Read manifest.json.

    Raises:
        HostError: it is damaged or of a newer farm.
        FileNotFoundError: it is not there.
    """
    raw = path.read_bytes()
    try:
        version = _VERSIONED.validate_json(raw).format
        if version != MANIFEST_FORMAT:
            raise HostError(
                f"{path} has format {version}, this farm reads {MANIFEST_FORMAT}",
                hint="use the farm that wrote it, or add the bundle again with this one",
            )
        return _MANIFEST.validate_json(raw)
    except ValidationError as error:
        raise HostError(
            f"{path} is damaged", hint="`farm bundle add` the same folder again: that repairs it", evidence=str(error)
        ) from error
