"""Whether a program's files run on a phone, by their ELF headers: before anything is pushed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from farm.bundle.closure import identify, missing_libraries
from farm.bundle.model import Abi, FolderFile, Platform
from farm.programs.description import ProgramDescription, program_error

RUNTIME = "{runtime}"
DATA_MODE = 0o644  # permission bits of files that no phone starts


def check_files(
    description: ProgramDescription, files: Sequence[FolderFile], abi: str, platform: Platform, phone: str
) -> None:
    """Whether the files are for a phone of that ABI and platform, with all libraries that they need.

    Raises:
        UserError: they are not; the message names the file.
    """
    named = {file.name: file for file in files}
    for command in filter(None, (description.command, description.report)):
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
