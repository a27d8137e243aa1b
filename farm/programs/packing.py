"""A program as one artifact, and whether its files run on a phone.

The artifact is a plain .tar of the program's description, its files and the numbers expected of it:

program.toml                 the description
files/NAME, ABI/NAME         for every phone, or for phones of one ABI
reference.npy                what [expected] names
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from farm.bundle.closure import identify, missing_libraries
from farm.bundle.folder import MAX_FILES, SAFE_NAME
from farm.bundle.model import Abi, FolderFile, Platform
from farm.bundle.storage import DAMAGED_TAR, PlainMember
from farm.programs.description import (
    MAX_DESCRIPTION_BYTES,
    ProgramDescription,
    program_error,
    read_description,
)

DESCRIPTION, FILES, REFERENCE = "program.toml", "files", "reference.npy"
MAX_FILE_BYTES = 2 << 30  # of one file
_FOLDERS = (FILES, *Abi)
RUNTIME = "{runtime}"
DATA_MODE = 0o644  # permission bits of files that no phone starts


@dataclass(frozen=True, slots=True)
class UnpackedProgram:
    """A program whose files lie in a folder of this host."""

    description: ProgramDescription
    folder: Path  # its files for one ABI
    reference: Path | None  # .npy


def is_packed(path: Path | str) -> bool:
    """Whether a file is a packed program, by its first member."""
    try:
        with tarfile.open(path, mode="r:", tarinfo=PlainMember) as archive:
            return any(member.name == DESCRIPTION for member in archive)
    except (OSError, *DAMAGED_TAR):
        return False


def packed_file(path: Path) -> bytes:
    """Pack the program that a description beside its files describes. Blocking."""
    text = _read(path)
    description = read_description(text, path.name)
    if "{runtime}" in description.command[0] and not description.files:
        raise program_error(f"{path.name}: files is missing", f"the folder with {description.command[0]}, beside it")
    folder = path.parent / description.files if description.files else None
    return packed(text, description, folder, path.parent)


def packed(text: bytes, description: ProgramDescription, folder: Path | None, beside: Path | None = None) -> bytes:
    """Pack a program: the same one, the same bytes. Blocking.

    Args:
        text: of the description.
        description: the same, read.
        folder: of its files, or of folders of them that are named like ABIs; None: it has none.
        beside: where `expected.reference` is.
    """
    content: dict[str, bytes] = {DESCRIPTION: text}
    if folder is not None:
        content |= _files(folder)
    if description.expected is not None:
        if beside is None:
            raise program_error("a built-in description has no expected numbers", "farm program run SPEC.toml")
        content[REFERENCE] = _read(beside / description.expected.reference)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(content):
            about = tarfile.TarInfo(name)
            about.size = len(content[name])
            archive.addfile(about, io.BytesIO(content[name]))
    return packed.getvalue()


def unpacked(archive: Path, place: Path, abi: str) -> UnpackedProgram:
    """Unpack the files for phones of an ABI into an empty folder. Blocking."""
    folder, text = place / FILES, b""
    reference: Path | None = None
    folder.mkdir()
    try:
        with tarfile.open(archive, mode="r:", tarinfo=PlainMember) as opened:
            named = {member.name: member for member in _members(opened)}
            for name in _chosen(named, abi):
                target = folder / name.partition("/")[2]
                if name == DESCRIPTION:
                    text = _content(opened, named[name]).read(MAX_DESCRIPTION_BYTES + 1)
                    continue
                if name == REFERENCE:
                    target = reference = place / REFERENCE
                with target.open("xb") as file:
                    shutil.copyfileobj(_content(opened, named[name]), file)
    except (*DAMAGED_TAR, FileExistsError) as error:
        raise program_error(
            f"this is no packed program: {error}", "farm program run makes one of its description"
        ) from error
    return UnpackedProgram(read_description(text, DESCRIPTION), folder, reference)


def _chosen(named: Mapping[str, object], abi: str) -> list[str]:
    """The description, the reference, and the files for that ABI, or for all where there are none for any."""
    others = sorted({name.partition("/")[0] for name in named if "/" in name} - {FILES})
    if others and abi not in others:
        raise program_error(
            f"the program has no files for {abi}, only for {', '.join(others)}",
            "a folder named like the ABI beside the others, or other phones: --on abi=...",
        )
    return [name for name in named if "/" not in name or name.partition("/")[0] in (FILES, abi)]


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(archive):
        folder, _, name = member.name.rpartition("/")
        alone = member.name in (DESCRIPTION, REFERENCE)
        known = alone or (folder in _FOLDERS and SAFE_NAME.fullmatch(name))
        if not known or count > 2 * MAX_FILES:
            raise tarfile.TarError(f"{member.name[:80]!r} does not belong into a program")
        yield member


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    assert content is not None  # of a regular file
    return content


def _files(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        raise program_error(f"there is no folder {folder}", "the folder with the program and its libraries")
    by_abi = [each for each in sorted(folder.iterdir()) if each.is_dir() and each.name in tuple(Abi)]
    content = {f"{each.name}/{name}": data for each in by_abi for name, data in _flat(each).items()}
    if not by_abi:
        content = {f"{FILES}/{name}": data for name, data in _flat(folder).items()}
    if not content:
        raise program_error(f"{folder} is empty", "the program and its libraries belong there")
    return content


def _flat(folder: Path) -> dict[str, bytes]:
    content = {}
    for path in sorted(folder.iterdir()):
        if not path.is_file() or not SAFE_NAME.fullmatch(path.name):
            raise program_error(
                f"{path} cannot be pushed: it is no plain file, or its name is not safe on a phone",
                "all files side by side, or in folders named like ABIs; letters, digits and . _ + - in names",
            )
        content[path.name] = _read(path)
    if len(content) > MAX_FILES:
        raise program_error(f"{folder} holds {len(content)} files: that is no program", "its own files only")
    return content


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise program_error(f"{path} is larger than {MAX_FILE_BYTES >> 30} GiB", "a smaller file")
        return path.read_bytes()
    except OSError as error:
        raise program_error(f"cannot read {path}: {error.strerror}", "paths are relative to the description") from error


def check_files(
    description: ProgramDescription, files: Sequence[FolderFile], abi: str, platform: Platform, phone: str
) -> None:
    """Whether the files are for a phone of that ABI and platform, with all libraries that they need."""
    named = {file.name: file for file in files}
    for command in filter(None, (description.command, description.report, description.placement)):
        program = PurePosixPath(command[0])
        if str(program.parent) != RUNTIME:
            continue
        if (file := named.get(program.name)) is None:
            raise program_error(
                f"{description.name} has no file {program.name}, which its command starts",
                f"put {program.name} for {abi} into its folder",
            )
        if file.problem is None and mode_of(file) == DATA_MODE:
            raise program_error(
                f"{program.name}, which the command of {description.name} starts, is no program",
                f"an ELF file for {abi}; a script begins with #!, such as #!/system/bin/sh",
            )
    for file in files:
        if file.problem is not None:
            raise program_error(file.problem.message, file.problem.hint)
        if file.elf is None:
            continue
        own_abi, own_platform = identify(file.elf, file.name)
        if own_abi != abi or own_platform not in (None, platform):
            is_for = f"{own_abi}, {own_platform}" if own_platform else own_abi
            raise program_error(
                f"{file.name} is built for {is_for}; {phone} is {abi}, {platform}",
                f"build it for that phone, or use a selector such as --on abi={own_abi}",
            )
    missing = missing_libraries(files, Abi(abi), platform)
    if missing:
        raise program_error(f"{description.name}: {missing[0].message}", missing[0].hint)


def mode_of(file: FolderFile) -> int:
    """Its permission bits on the phone."""
    return 0o755 if file.elf is not None or file.interpreter else DATA_MODE
