"""Reads the folder to make a bundle of. Thin I/O around `farm.bundle.closure`."""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from farm.bundle.closure import inspect
from farm.bundle.elf import ELF_MAGIC, parse_elf
from farm.bundle.model import (
    MARKS,
    Abi,
    ElfError,
    FolderDescription,
    FolderFile,
    Inspection,
    Platform,
    bundle_error,
    refusal,
)
from farm.bundle.versions import TvmVersions, known_builds
from farm.common.errors import HostError, UserError
from farm.common.install import SERVICE_SEES
from farm.common.selector import did_you_mean
from farm.common.toml import parse_toml

if TYPE_CHECKING:
    from pathlib import Path

DESCRIPTION = "bundle.toml"  # what the folder's author states; read, never pushed
MAX_FILES = 256  # a real bundle has fewer than ten: more means the wrong folder (a whole build tree, a home)
MAX_SHEBANG_BYTES = 256  # BINPRM_BUF_SIZE of Linux
MAX_DESCRIPTION_BYTES = 65_536
SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")  # needs no quoting in any shell, here or on a phone
_DESCRIPTION_KEYS = ("abi", "platform", "tvm_version", "ffi_version")


def read_folder(folder: Path) -> Inspection:
    """Read and judge `folder`. The result has every finding about the files, ready to be shown.

    Raises:
        UserError: there is no such folder, its bundle.toml is wrong, or it holds what no bundle can (sub-folders,
            device files, names that need quoting).
        HostError: it cannot be read.
    """
    try:
        if not folder.is_dir():
            what = f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}"
            raise UserError(
                what,
                hint=f"give a folder with tvm_rpc and its libraries. On the daemon's host {SERVICE_SEES}",
            )
        _refuse_what_no_bundle_holds(folder)
        description = _read_description(folder / DESCRIPTION)
        files = read_files(folder)
    except OSError as error:
        raise HostError(
            f"cannot read {error.filename or folder}: {error.strerror}",
            hint="whoever runs the command must be able to read it: check owner and mode",
        ) from error
    return inspect(files, description)


def read_files(folder: Path, *, marks: bool = True) -> list[FolderFile]:
    """Read every file of a folder except bundle.toml, sorted by name.

    `marks`: look for `MARKS` and the names of TVM's libraries in all bytes, while no other thread runs.
    """
    return [_read_file(path, marks=marks) for path in sorted(folder.iterdir()) if path.name != DESCRIPTION]


def description_text(description: FolderDescription) -> str:
    """The text of a bundle.toml."""
    values = (description.abi, description.platform, description.versions.tvm, description.versions.ffi)
    fields = zip(_DESCRIPTION_KEYS, values, strict=True)
    return "".join(f'{name} = "{value}"\n' for name, value in fields if value)


def _refuse_what_no_bundle_holds(folder: Path) -> None:
    entries = sorted(folder.iterdir())
    if len(entries) > MAX_FILES:
        raise UserError(
            f"{folder} holds {len(entries)} files: that is no bundle",
            hint="copy tvm_rpc and its libraries into a folder of their own (docs/bundles.md)",
        )
    findings = []
    for path in entries:
        if path.is_symlink() and not path.exists():
            problem, hint = f"{path.name} is a link to a file that is not there", "copy the file itself"
        elif path.is_dir():
            problem, hint = (
                f"{path.name} is a folder",
                "put all files side by side: on the phone they lie in one folder",
            )
        elif not path.is_file():
            problem, hint = f"{path.name} is not a regular file", "remove it"
        elif not SAFE_NAME.fullmatch(path.name):
            problem, hint = f"the name {path.name!r} is not safe on a phone", "use letters, digits and . _ + - only"
        else:
            continue
        findings.append(refusal(path.name, problem, hint))
    if findings:
        raise bundle_error(str(folder), findings)


def _read_file(path: Path, *, marks: bool) -> FolderFile:
    if path.stat().st_size == 0:
        return FolderFile(path.name)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] == b"#!":
            line = data[2:MAX_SHEBANG_BYTES].split(b"\n", 1)[0].decode(errors="replace").strip()
            return FolderFile(path.name, interpreter=line)
        if data[:4] != ELF_MAGIC:
            return FolderFile(path.name)
        # The names of sibling libraries inside tvm_rpc tell what it opens by itself.
        siblings = [sibling.name.encode() for sibling in path.parent.glob("libtvm*.so")]
        found = frozenset(mark for mark in (*MARKS, *siblings) if data.find(mark) >= 0) if marks else frozenset[bytes]()
        try:
            elf = parse_elf(data, path.name)
        except ElfError as error:
            return FolderFile(path.name, problem=error)
        return FolderFile(path.name, elf=elf, marks=found, build=known_builds().get(elf.build_id))


def _read_description(path: Path) -> FolderDescription:
    if not path.exists():
        return FolderDescription()
    raw = path.read_bytes()[:MAX_DESCRIPTION_BYTES]
    try:
        table = parse_toml(raw)
    except ValueError as error:
        raise UserError(f"{path} is not TOML: {error}", hint='for example: abi = "arm64-v8a"') from error
    for key, value in table.items():
        if key not in _DESCRIPTION_KEYS:
            raise UserError(f"{path} has an unknown key {key!r}", hint=_suggest(key, _DESCRIPTION_KEYS))
        if not isinstance(value, str):
            raise UserError(f"{path}: {key} must be a string", hint=f'for example: {key} = "..."')
    return FolderDescription(
        abi=Abi(_one_of(path, "abi", table["abi"], tuple(Abi))) if "abi" in table else None,
        platform=Platform(_one_of(path, "platform", table["platform"], tuple(Platform)))
        if "platform" in table
        else None,
        versions=TvmVersions(table.get("tvm_version", ""), table.get("ffi_version", "")),
    )


def _one_of(path: Path, key: str, value: str, known: Collection[str]) -> str:
    if value not in known:
        raise UserError(f"{path}: {key} = {value!r} is unknown", hint=_suggest(value, known))
    return value


def _suggest(word: str, known: Collection[str]) -> str:
    return did_you_mean(word, known, f"known: {', '.join(known)}")
