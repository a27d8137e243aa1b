"""Decides whether the files of a folder make a bundle: one ABI, one platform, every needed library there.

Pure: takes what `farm.bundle.folder` read, returns findings. Nothing here touches a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from farm.bundle.abi import VENDOR_LIBRARIES, Abi, AbiVerdict, ForeignElfError, Platform, judge, provided_libraries
from farm.bundle.advice import warnings_of, where_to_find
from farm.bundle.elf import ElfError
from farm.bundle.model import (
    OPENCL_MARK,
    PROGRAM,
    RANDOM_FILL_MARK,
    FileKind,
    Finding,
    FolderFile,
    Inspection,
    Stated,
    listed,
    refusal,
)

_T = TypeVar("_T")


def inspect(files: Sequence[FolderFile], stated: Stated | None = None) -> Inspection:
    """Judge the files of one folder together; `stated` is what its author wrote down about it."""
    stated = stated or Stated()
    findings = _without_program(files, stated)
    verdicts = _verdicts(files, findings)
    abi, platform = _common(verdicts, stated, findings)
    findings += _missing(files, abi, platform) if platform else ()
    marks = frozenset[bytes]().union(*(file.marks for file in files))
    if abi and platform:
        findings += warnings_of(files, abi, platform, marks)
    return Inspection(
        files=tuple(files),
        abi=abi,
        platform=platform,
        findings=tuple(findings),
        has_opencl=OPENCL_MARK in marks,
        has_random_fill=RANDOM_FILL_MARK in marks,
    )


def _without_program(files: Sequence[FolderFile], stated: Stated) -> list[Finding]:
    """What is wrong with tvm_rpc itself, the first thing to know."""
    program = next((file for file in files if file.name == PROGRAM), None)
    if program is None:
        return [
            refusal(
                PROGRAM,
                f"there is no {PROGRAM} in it",
                "build TVM with USE_CPP_RPC=ON and copy <tvm>/build/tvm_rpc (docs/bundles.md)",
            )
        ]
    if program.kind is FileKind.SCRIPT and (stated.abi is None or stated.platform is None):
        return [
            refusal(
                PROGRAM,
                f"{PROGRAM} is a script, which does not tell its ABI",
                'state it: a file bundle.toml beside it with abi = "x86_64" and platform = "linux-glibc"',
            )
        ]
    if program.kind is FileKind.LIBRARY:
        return [
            refusal(PROGRAM, f"{PROGRAM} is a shared library, not a program", "copy the executable <tvm>/build/tvm_rpc")
        ]
    return []


def _looks_like_library(name: str) -> bool:
    return name.endswith(".so") or ".so." in name


def _verdicts(files: Sequence[FolderFile], findings: list[Finding]) -> dict[str, AbiVerdict]:
    """Each ELF file's own verdict; what cannot be judged becomes a finding."""
    verdicts: dict[str, AbiVerdict] = {}
    for file in files:
        problem: ElfError | None = file.problem
        if file.elf is not None and problem is None:
            try:
                verdicts[file.name] = judge(file.elf, file.name)
            except ForeignElfError as error:
                problem = error
        elif (
            problem is None and file.kind is FileKind.DATA and (file.name == PROGRAM or _looks_like_library(file.name))
        ):
            what = "program" if file.name == PROGRAM else "library"
            findings.append(
                refusal(
                    file.name,
                    f"{file.name} is not an ELF file",
                    f"copy the {what} itself; this may be a linker script, a text or an LFS pointer",
                )
            )
        if problem is not None:
            findings.append(refusal(file.name, problem.message, problem.hint))
    return verdicts


def _common(
    verdicts: Mapping[str, AbiVerdict], stated: Stated, findings: list[Finding]
) -> tuple[Abi | None, Platform | None]:
    """The one ABI and platform of all files; those that differ become findings."""
    verdict = verdicts.get(PROGRAM)
    abi = stated.abi or (verdict.abi if verdict else None) or _most([v.abi for v in verdicts.values()])
    platform = (
        stated.platform
        or (verdict.platform if verdict else None)
        or _most([v.platform for v in verdicts.values() if v.platform])
    )
    for name, own in verdicts.items():
        basis = "bundle.toml says" if name == PROGRAM or PROGRAM not in verdicts else f"{PROGRAM} is for"
        if own.abi is not abi:
            findings.append(
                refusal(
                    name,
                    f"{name} is built for {own.abi}, but {basis} {abi}",
                    "keep the files of one ABI in a folder; add one bundle per ABI",
                )
            )
        elif own.platform not in (None, platform):
            findings.append(
                refusal(
                    name,
                    f"{name} is built for {own.platform}, but {basis} {platform}",
                    "take all files from one build: the NDK's for phones, the host's for virtual ones",
                )
            )
    if platform is None and not findings:
        findings.append(
            refusal(
                PROGRAM,
                "no file tells whether the bundle is for Android or glibc Linux",
                'state it: a file bundle.toml with platform = "android"',
            )
        )
    return abi, platform


def _most(values: Sequence[_T]) -> _T | None:
    return Counter(values).most_common(1)[0][0] if values else None


def _missing(files: Sequence[FolderFile], abi: Abi | None, platform: Platform) -> list[Finding]:
    """Needed libraries found nowhere. The dynamic linker looks for file names, so a fitting SONAME does not help."""
    present = {file.name for file in files} | provided_libraries(platform)
    if platform is Platform.ANDROID:
        present |= VENDOR_LIBRARIES  # a warning's business
    needed_by: dict[str, list[str]] = {}
    for file in files:
        for name in file.elf.needed if file.elf else ():
            if name not in present:
                needed_by.setdefault(name, []).append(file.name)
    renamed = {file.elf.soname: file.name for file in files if file.elf and file.elf.soname}
    return [
        refusal(
            name,
            f"{name} is missing: it is needed by {listed(sorted(users))}",
            f"rename {renamed[name]} to {name}: the phone looks for that file name"
            if name in renamed
            else where_to_find(name, abi, platform),
        )
        for name, users in sorted(needed_by.items())
    ]
