"""The files of the service: what stands in them for this interpreter, where they belong, what there is to do.

Pure, but for reading what ships with farm (`shipped`) and what is installed (`look`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

UNITS = ("farm.service", "farm-adb.service", "farm-gate.service", "farm-gate.socket")
UNIT_FOLDER = "etc/systemd/system"
SYSUSERS = "etc/sysusers.d/farm.conf"
CONFIG = "etc/farm/farm.toml"
UDEV_EXAMPLE = "etc/farm/51-farm-phones.rules.example"
CLOSED_BY_PROTECT_HOME = ("/home", "/root", "/run/user")
PRIVATE = ("/tmp", "/var/tmp")  # noqa: S108 (what PrivateTmp= hides)


class Doing(StrEnum):
    """What becomes of one file."""

    WRITE = "write"
    REPLACE = "replace"
    SAME = "unchanged"
    KEEP = "keep"  # it is somebody's own
    REMOVE = "remove"


CHANGES = (Doing.WRITE, Doing.REPLACE, Doing.REMOVE)


@dataclass(frozen=True, slots=True)
class File:
    """A file as it should be. `own`: people edit it, so that one that is there is never replaced."""

    path: str  # below the root folder
    text: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One file and what is done about it."""

    doing: Doing
    path: str
    text: str = ""
    why: str = ""


def shipped() -> Mapping[str, str]:
    """Name -> text of what ships with farm: inside the package when it is installed, beside it in a source tree."""
    package = Path(__file__).parents[1]
    folder = next(place for place in (package / "systemd", package.parent / "systemd") if place.is_dir())
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()}


def used_folders() -> tuple[str, ...]:
    """Where this interpreter, its libraries and farm itself are."""
    import farm

    folders = (sys.prefix, sys.base_prefix, str(Path(farm.__file__).parents[1]), str(Path(sys.executable).parent))
    return tuple(dict.fromkeys(str(Path(folder).absolute()) for folder in folders))


def files(texts: Mapping[str, str], python: str, folders: Sequence[str]) -> tuple[File, ...]:
    """Every file of the service.

    Args:
        texts: as shipped.
        python: the interpreter that runs it, an absolute path.
        folders: what it needs to read beyond the system's own folders.
    """
    at_home = [folder for folder in folders if _below(folder, CLOSED_BY_PROTECT_HOME)]
    filled = {
        "@PYTHON@": _as_program(python),
        "@HOME_ACCESS@": "tmpfs" if at_home else "yes",
        "@HOME_PATHS@": "".join(f"BindReadOnlyPaths={_as_bound(folder)}\n" for folder in at_home),
    }

    def fill(text: str) -> str:
        for name, value in filled.items():
            text = text.replace(name, value)
        return text

    return (
        *(File(f"{UNIT_FOLDER}/{unit}", fill(texts[unit])) for unit in UNITS),
        File(SYSUSERS, texts["sysusers.conf"]),
        File(UDEV_EXAMPLE, texts["51-farm-phones.rules"]),
        File(CONFIG, texts["farm.toml"], own=True),
    )


def hidden(folders: Sequence[str]) -> tuple[str, ...]:
    """Folders that the units cannot see at all, and nobody should run a service from."""
    return tuple(folder for folder in folders if _below(folder, PRIVATE))


def unwritable(paths: Sequence[str]) -> tuple[str, ...]:
    """Paths that mean something else in a unit, however they are written: systemd reads some values twice."""
    return tuple(path for path in paths if any(each in "\"'\\$" or not each.isprintable() for each in path))


def install_steps(wanted: Sequence[File], there: Mapping[str, str]) -> Iterator[Step]:
    """What to do so that everything is as it should be; `there`: path -> text of what exists."""
    for file in wanted:
        before = there.get(file.path)
        if before is None:
            yield Step(Doing.WRITE, file.path, file.text)
        elif before == file.text:
            yield Step(Doing.SAME, file.path)
        elif file.own:
            yield Step(Doing.KEEP, file.path, why="it is yours")
        else:
            yield Step(Doing.REPLACE, file.path, file.text)


def uninstall_steps(wanted: Sequence[File], there: Mapping[str, str]) -> Iterator[Step]:
    """What to do so that nothing is left but what people wrote."""
    for file in wanted:
        before = there.get(file.path)
        if before is None:
            continue
        if file.own and before != file.text:
            yield Step(Doing.KEEP, file.path, why="it was changed: remove it yourself")
        else:
            yield Step(Doing.REMOVE, file.path)


def look(root: Path, wanted: Sequence[File]) -> Mapping[str, str]:
    """Path -> text of those files that exist below `root`. Raises OSError when one cannot be read."""
    return {
        file.path: (root / file.path).read_text(encoding="utf-8", errors="replace")
        for file in wanted
        if (root / file.path).is_file()
    }


def _below(folder: str, places: Sequence[str]) -> bool:
    return any(PurePosixPath(folder).is_relative_to(place) for place in places)


def _as_program(path: str) -> str:
    r"""As the first word of ExecStart=: `%` begins a specifier, blanks end the word, C escapes are understood."""
    return path.replace("%", "%%").replace(" ", "\\x20")


def _as_bound(path: str) -> str:
    r"""As a word of BindReadOnlyPaths=: quoted for its blanks, `%` begins a specifier, `:` the destination."""
    return '"' + path.replace("%", "%%").replace(":", "\\:") + '"'
