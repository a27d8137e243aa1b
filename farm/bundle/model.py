"""The records of this package: ABIs, ELF files, the files and findings of a folder, manifests, bundles.

A toolchain's interpreter, which may lack pydantic and pyelftools, imports this module (farm.worker.golden).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from farm.bundle.versions import UNKNOWN_VERSIONS, KnownBuild, TvmVersions
from farm.common.errors import Code, UserError
from farm.common.files import short_hash

if TYPE_CHECKING:
    from farm.model.identity import DeviceIdentity

BUNDLE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SERVER_PROGRAM = "tvm_rpc"  # the RPC server: the one file a bundle cannot be without
# Beginning of the name of glibc's loader. In a bundle it starts tvm_rpc (rpc_supervise.sh), on the C library beside it.
LOADER_PREFIX = "ld-linux"

# Strings whose presence in a library's bytes proves a feature, whatever the library is called. Before TVM 0.25 (2026)
# all of TVM's runtime was one libtvm_runtime.so; since then its parts are files of their own.
OPENCL_MARK = b"clGetPlatformIDs"  # the first function that it calls of a driver
RANDOM_FILL_MARK = b"tvm.contrib.random.random_fill_for_measure"  # what tuning fills its inputs with
MARKS = (OPENCL_MARK, RANDOM_FILL_MARK)

# Golden kernels (farm.bundle.golden reads, farm.worker.golden writes and runs them).
GOLDEN_INDEX = "golden.json"
GOLDEN_FORMAT = 1
KIND_CPU, KIND_OPENCL = "cpu", "opencl"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether a phone computes the golden kernels right, and how quickly."""

    ok: bool
    detail: str  # one line: the largest error, or the wrong kernels and their errors
    fastest_s: Mapping[str, float] = field(default_factory=dict)  # kind -> sum of its kernels' fastest runs


MAX_FINDINGS_IN_ERROR = 10  # findings in an error: evidence that is too long loses its beginning

MANIFEST_FORMAT = 1
MANIFEST = "manifest.json"

LARGE_PAGE_BYTES = 16_384
# Android 15 brought kernels with 16 KiB pages (source.android.com/docs/core/architecture/16kb-page-size); a program or
# library whose segments are aligned to less is refused there, or runs in a compatibility mode.


class Abi(StrEnum):
    """Android's names for its ABIs (developer.android.com/ndk/guides/abis); used for glibc Linux too."""

    ARM64 = "arm64-v8a"
    ARMV7 = "armeabi-v7a"
    X86_64 = "x86_64"
    X86 = "x86"
    RISCV64 = "riscv64"

    @property
    def bits(self) -> int:
        """Pointer width in bits."""
        return 32 if self in (Abi.ARMV7, Abi.X86) else 64


class Platform(StrEnum):
    """The system whose dynamic linker and C library a file expects."""

    ANDROID = "android"  # bionic, /system/bin/linker64
    LINUX = "linux-glibc"  # ld-linux; what a virtual phone runs


def platform_of(identity: DeviceIdentity) -> Platform:
    """The kind of system that the phone's programs are for."""
    return Platform.LINUX if identity.virtual else Platform.ANDROID


class ElfError(UserError):
    """The file is not a readable ELF file, or for a machine or platform that no phone of the farm has."""

    code = "bad_elf"


@dataclass(frozen=True, slots=True)
class ElfInfo:
    """The part of one ELF file that a dynamic linker reads."""

    bits: int  # 32 or 64
    little_endian: bool
    machine: str  # `e_machine` as elf.h names it, without EM_: "AARCH64"; "machine 8" when it has no name
    type: str  # `e_type` as elf.h names it, without ET_: "DYN"; its digits when it has no name
    interpreter: str = ""  # of a dynamically linked program: "/system/bin/linker64"
    needed: tuple[str, ...] = ()  # DT_NEEDED, in order
    soname: str = ""
    # The smallest p_align of the LOAD segments: what a kernel's page size must not exceed (0: nothing to load).
    # bionic judges by the smallest one too (linker_phdr.cpp, phdr_table_get_minimum_alignment).
    page_alignment_bytes: int = 0
    android_api: int | None = None  # from the .note.android.ident note that the NDK puts into everything it links
    build_id: str = ""  # hexadecimal, from the .note.gnu.build-id note, which stripping leaves


def bundle_error(folder: str, findings: Sequence[BundleFinding]) -> UserError:
    """The folder cannot be a bundle: the first finding is the message, the next ones are evidence."""
    first, more = findings[0], findings[1:]
    rest = f" (and {len(more)} more)" if more else ""
    evidence = "\n".join(f"{finding.message}; {finding.hint}" for finding in more[:MAX_FINDINGS_IN_ERROR])
    message = f"{folder} cannot be a bundle: {first.message}{rest}"
    return UserError(message, Code.BAD_BUNDLE, hint=first.hint, evidence=evidence)


class FileKind(StrEnum):
    """The kind of a file of the folder."""

    PROGRAM = "program"  # an ELF file with an interpreter, or a static one
    LIBRARY = "library"  # an ELF shared library
    SCRIPT = "script"  # starts with #!
    DATA = "data"  # anything else; pushed as it is


@dataclass(frozen=True, slots=True)
class FolderFile:
    """One file as read from the folder. `problem` says why its ELF part is unreadable."""

    name: str
    elf: ElfInfo | None = None
    interpreter: str = ""  # of a script: what follows #!
    problem: ElfError | None = None
    marks: frozenset[bytes] = frozenset()  # those of MARKS found in it
    build: KnownBuild | None = None  # the wheel that its build id is of

    @property
    def kind(self) -> FileKind:
        """The kind of the file, by its content."""
        if self.interpreter:
            return FileKind.SCRIPT
        if self.elf is None:
            return FileKind.DATA
        static = self.elf.type == "EXEC" or (self.name == SERVER_PROGRAM and not self.elf.needed)
        return FileKind.PROGRAM if self.elf.interpreter or static or self.is_loader else FileKind.LIBRARY

    @property
    def is_loader(self) -> bool:
        """Whether it is glibc's dynamic loader."""
        return self.elf is not None and self.name.startswith(LOADER_PREFIX)

    @property
    def mode(self) -> int:
        """Its mode on the phone: fixed by kind, so that the builder's umask does not change the bundle."""
        return 0o755 if self.kind in (FileKind.PROGRAM, FileKind.SCRIPT) else 0o644


@dataclass(frozen=True, slots=True)
class FolderDescription:
    """The content of bundle.toml. None and "" stand for a key that it does not have."""

    abi: Abi | None = None
    platform: Platform | None = None
    versions: TvmVersions = UNKNOWN_VERSIONS


@dataclass(frozen=True, slots=True)
class BundleFinding:
    """One defect or remark: a sentence and a hint."""

    refused: bool  # the bundle cannot work; False: it works, but not for everything or not on every phone
    file: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """The verdict on a folder. `abi` and `platform` are None when they are unknown (then it is refused)."""

    files: tuple[FolderFile, ...]
    abi: Abi | None
    platform: Platform | None
    findings: tuple[BundleFinding, ...]
    description: FolderDescription
    versions: TvmVersions  # as the libraries say by their build ids, else bundle.toml; "": neither does
    has_opencl: bool
    has_random_fill: bool

    @property
    def refusals(self) -> tuple[BundleFinding, ...]:
        """Why it cannot be a bundle; empty if it can."""
        return tuple(finding for finding in self.findings if finding.refused)

    @property
    def warnings(self) -> tuple[BundleFinding, ...]:
        """Findings that are no refusals: a function fails, or fails on some phones."""
        return tuple(finding for finding in self.findings if not finding.refused)

    def accepted(self, folder: str) -> tuple[Abi, Platform]:
        """The bundle's ABI and platform.

        Raises:
            UserError: there are refusals.
        """
        if self.refusals or self.abi is None or self.platform is None:
            raise bundle_error(folder, self.refusals)
        return self.abi, self.platform


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle, as it lies on the phone."""

    name: str
    sha256: str
    size: int  # bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The content that makes two bundles the same: its hash is the bundle's."""

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
class BundleManifest:
    """The content of manifest.json."""

    format: int
    identity: Identity
    tvm_version: str
    has_opencl: bool
    has_random_fill: bool
    warnings: tuple[str, ...]
    added_at: datetime
    golden_files: tuple[BundleFile, ...]
    ffi_version: str = ""  # "": of a bundle that a farm added which did not know FFIs


@dataclass(frozen=True, slots=True)
class Bundle:
    """A runtime bundle in the library: tvm_rpc and its libraries for one ABI, with the golden kernels that prove it."""

    name: str  # the name it was asked for by, else its first; "" when it has none
    hash: str
    abi: str
    files: tuple[BundleFile, ...]
    path: Path  # folder of `files`
    toolchain: str
    golden_kinds: tuple[str, ...]
    tvm_version: str
    has_opencl: bool
    platform: str = Platform.ANDROID
    has_random_fill: bool = True
    names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    added_at: datetime | None = None
    ffi_version: str = ""
    damage: str = ""  # why its manifest is unreadable: then only `name`, `names`, `hash` and `path` are known

    @property
    def short_hash(self) -> str:
        """As people see it."""
        return short_hash(self.hash)

    @property
    def versions(self) -> TvmVersions:
        """Its TVM and FFI."""
        return TvmVersions(self.tvm_version, self.ffi_version)

    @property
    def size_bytes(self) -> int:
        """The bytes that a phone receives."""
        return sum(file.size for file in self.files)

    @property
    def golden_dir(self) -> Path:
        """Folder of the golden kernels; `farm.worker.golden.run_golden` takes it."""
        return self.path.parent / "golden"


def check_bundle_name(name: str) -> None:
    """Refuse what no bundle can be called.

    Raises:
        UserError: the name is so.
    """
    if not BUNDLE_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a bundle's name",
            hint="use lower-case letters, digits and . _ - (at most 64, first a letter or digit)",
        )


def refusal(file: str, message: str, hint: str) -> BundleFinding:
    """A finding that makes a bundle impossible."""
    return BundleFinding(refused=True, file=file, message=message, hint=hint)


def warning(file: str, message: str, hint: str) -> BundleFinding:
    """A finding that limits a bundle."""
    return BundleFinding(refused=False, file=file, message=message, hint=hint)


def listed(names: Sequence[str]) -> str:
    """The names as a person would list them: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
