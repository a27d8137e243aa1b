"""Reads .tar files of people's: plain files only, and never more bytes than the archive itself has. Writes our own."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


class TarError(ValueError):
    """The archive is damaged, cut short, or has something else than plain files; the message is a clause."""


def members(data: bytes, *, skip_folders: bool = False) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member, in the archive's order. Names may be anything: never write to them.

    A sparse member says that it has gigabytes and is a few hundred bytes; here a member's size is what it takes in the
    archive, so all contents together are smaller than `data`. `skip_folders`: as `tar cf` puts before their files.

    Raises:
        TarError: as it says; what came before it was given.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if skip_folders and member.type == tarfile.DIRTYPE:
                    continue
                if member.type not in _PLAIN or member.issparse():
                    raise TarError(f"its member {member.name[:80]!r} is no plain file")
                if not 0 <= member.size <= len(data) - member.offset_data:
                    raise TarError(f"its member {member.name[:80]!r} is cut short")
                yield member.name, data[member.offset_data : member.offset_data + member.size]
    except TarError:
        raise
    except (tarfile.TarError, EOFError, OverflowError, ValueError, RecursionError, MemoryError) as error:
        raise TarError(f"it is damaged, or cut short ({str(error)[:200] or type(error).__name__})") from error


def packed(files: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive of files with these names and contents: the same files, the same bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(content), 0o644
            archive.addfile(about, io.BytesIO(content))
    return made.getvalue()
