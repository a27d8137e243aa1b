"""The plain values of judging a folder: files, findings, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from farm.bundle.elf import ElfError, ElfInfo, ElfType
from farm.core.errors import UserError

if TYPE_CHECKING:
    from farm.bundle.abi import Abi, Platform

PROGRAM = "tvm_rpc"  # the RPC server: the one file a bundle cannot be without

# Strings whose presence in a library's bytes proves a feature, whatever the library is called. Before TVM 0.25 (2026)
# all of TVM's runtime was one libtvm_runtime.so; since then its parts are files of their own.
OPENCL_MARK = b"device_api.opencl"  # the global function under which OpenCL registers itself
RANDOM_FILL_MARK = b"tvm.contrib.random.random_fill_for_measure"  # what tuning fills its inputs with
MARKS = (OPENCL_MARK, RANDOM_FILL_MARK)

# Golden kernels (farm.bundle.golden reads, farm.worker.golden writes and runs them).
GOLDEN_INDEX = "golden.json"
GOLDEN_FORMAT = 1
KIND_CPU, KIND_OPENCL = "cpu", "opencl"

MOST_TOLD = 10  # findings in an error: evidence that is too long loses its beginning


class BundleRefusedError(UserError):
    """The folder cannot be a bundle."""

    code = "bad_bundle"

    def __init__(self, folder: str, findings: Sequence[Finding]) -> None:
        first, more = findings[0], findings[1:]
        rest = f" (and {len(more)} more)" if more else ""
        super().__init__(
            f"{folder} cannot be a bundle: {first.message}{rest}",
            hint=first.hint,
            evidence="\n".join(f"{finding.message}; {finding.hint}" for finding in more[:MOST_TOLD]),
        )
        self.findings = tuple(findings)


class Severity(StrEnum):
    """What a finding means for the bundle."""

    REFUSED = "refused"  # it cannot work
    WARNING = "warning"  # it works, but not for everything or not on every phone


class FileKind(StrEnum):
    """What a file of the folder is."""

    PROGRAM = "program"  # an ELF file with an interpreter, or a static one
    LIBRARY = "library"  # an ELF shared library
    SCRIPT = "script"  # starts with #!
    DATA = "data"  # anything else; pushed as it is


@dataclass(frozen=True, slots=True)
class FolderFile:
    """One file as read from the folder. `problem` holds what made its ELF part unreadable."""

    name: str
    elf: ElfInfo | None = None
    interpreter: str = ""  # of a script: what follows #!
    problem: ElfError | None = None
    marks: frozenset[bytes] = frozenset()  # those of MARKS found in it

    @property
    def kind(self) -> FileKind:
        """What the file is, told by its content."""
        if self.interpreter:
            return FileKind.SCRIPT
        if self.elf is None:
            return FileKind.DATA
        static = self.elf.type == ElfType.EXEC or (self.name == PROGRAM and not self.elf.needed)
        return FileKind.PROGRAM if self.elf.interpreter or static else FileKind.LIBRARY

    @property
    def mode(self) -> int:
        """Its mode on the phone: fixed by kind, so that the umask of whoever built it does not change the bundle."""
        return 0o755 if self.kind in (FileKind.PROGRAM, FileKind.SCRIPT) else 0o644


@dataclass(frozen=True, slots=True)
class Stated:
    """What the folder's bundle.toml states. None and "" mean it does not say."""

    abi: Abi | None = None
    platform: Platform | None = None
    tvm_version: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong or worth knowing: a sentence and what to do."""

    severity: Severity
    file: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Inspection:
    """The verdict on a folder. `abi` and `platform` are None when they could not be told (then it is refused)."""

    files: tuple[FolderFile, ...]
    abi: Abi | None
    platform: Platform | None
    findings: tuple[Finding, ...]
    has_opencl: bool
    has_random_fill: bool

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """Why it cannot be a bundle; empty if it can."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.REFUSED)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What will not work, or not everywhere."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    def accepted(self, folder: str) -> tuple[Abi, Platform]:
        """The bundle's ABI and platform.

        Raises:
            BundleRefusedError: there are refusals; it carries them all.
        """
        if self.refusals or self.abi is None or self.platform is None:
            raise BundleRefusedError(folder, self.refusals)
        return self.abi, self.platform


def refusal(file: str, message: str, hint: str) -> Finding:
    """A finding that makes a bundle impossible."""
    return Finding(Severity.REFUSED, file, message, hint)


def warning(file: str, message: str, hint: str) -> Finding:
    """A finding that limits a bundle."""
    return Finding(Severity.WARNING, file, message, hint)


def listed(names: Sequence[str]) -> str:
    """The names as a person would list them: "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
