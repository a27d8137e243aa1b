"""A bundle as one file, for another host: a plain .tar of its manifest, files and golden kernels."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from farm.bundle.model import MANIFEST
from farm.common.errors import Code, UserError

PARTS = ("files", "golden")  # folders of a bundle; the manifest stands beside them


def pack(place: Path, file: IO[bytes]) -> None:
    """Write the bundle whose folder is `place`: the same bundle, the same bytes. Blocking.

    Raises:
        OSError: it cannot be read, or the file not be written.
    """
    parts = {f"{part}/{path.name}": path for part in PARTS for path in sorted((place / part).iterdir())}
    _write(file, {MANIFEST: place / MANIFEST} | parts)


def pack_folder(folder: Path, file: IO[bytes]) -> None:
    """Write a folder to make a bundle of: `unpack` puts its files into `files`. Blocking.

    Raises:
        OSError: it cannot be read, or the file not be written.
    """
    _write(file, {f"files/{path.name}": path for path in sorted(folder.iterdir())})


def _write(file: IO[bytes], members: Mapping[str, Path]) -> None:
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for name, path in members.items():
            about = tarfile.TarInfo(name)
            about.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(about, content)


def unpack(file: Path, place: Path) -> None:
    """Unpack an archive of `pack` into an empty folder; the manifest says whether it is right. Blocking.

    Raises:
        UserError: it is no packed bundle.
        OSError: it cannot be read, or there is no room.
    """
    for part in PARTS:
        (place / part).mkdir()
    try:
        with tarfile.open(file, mode="r:") as archive:
            for member, content in _members(archive):
                with (place / member).open("xb") as target:
                    shutil.copyfileobj(content, target)
    except (tarfile.TarError, FileExistsError, EOFError, ValueError) as error:
        raise UserError(f"this is no packed bundle: {error}", Code.BAD_BUNDLE) from error


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for member in archive:
        folder, _, name = member.name.rpartition("/")
        known = member.name == MANIFEST or (folder in PARTS and name not in ("", ".", ".."))
        if not known or member.type != tarfile.REGTYPE or member.issparse() or "\0" in name:
            raise tarfile.TarError(f"{member.name[:80]!r} does not belong into a bundle")
        content = archive.extractfile(member)
        assert content is not None  # of a regular file
        yield member.name, content
