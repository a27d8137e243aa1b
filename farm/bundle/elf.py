"""Reads a dynamic linker's parts of an ELF file: program headers, never sections or symbols.

pyelftools parses; this module bounds how much it reads and turns every failure into an `ElfError`, because a file of
unknown origin can make pyelftools raise nearly any exception (hypothesis holds this module to ElfError alone).
"""

from __future__ import annotations

import contextlib
import io
import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, cast

from farm.bundle.model import ElfError, ElfInfo
from farm.common.errors import Code

if TYPE_CHECKING:
    from pathlib import Path

    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.segments import Segment

ELF_MAGIC = b"\x7fELF"
MAX_PROGRAM_HEADERS = 1024  # real files have about ten; more means garbage
MAX_NAME_BYTES = 4096  # PATH_MAX of Linux: no library name or interpreter is longer
MAX_READ_BYTES = 1 << 20  # of one file, all reads together; real files need about 10 kB: bounds the time for garbage
_NT_ANDROID_IDENT = "NT_GNU_ABI_TAG"  # pyelftools' word for note type 1, whatever the note's name
_NT_BUILD_ID = "NT_GNU_BUILD_ID"
MAX_BUILD_ID_BYTES = 64  # linkers write 8 to 20


class _BoundedReader(io.RawIOBase):
    """A stream over a file's bytes that refuses to read more than MAX_READ_BYTES of them in all."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self._position = 0
        self._left = MAX_READ_BYTES

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (len(self._data) if whence == io.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._position + size if size >= 0 else len(self._data)
        read = bytes(self._data[self._position : min(end, self._position + self._left)])
        self._position += len(read)
        self._left -= len(read)
        if self._left <= 0:
            raise ValueError(f"reading it takes more than {MAX_READ_BYTES} bytes")
        return read


def read_elf(path: Path) -> ElfInfo:
    """Read the ELF file at `path`.

    Raises:
        ElfError: it is no ELF file, or a damaged one.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            raise _not_elf(path.name, b"")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse_elf(data, path.name)


def parse_elf(data: bytes | mmap.mmap, where: str = "the file") -> ElfInfo:
    """Read an ELF file's bytes; `where` names it in errors.

    Raises:
        ElfError: the magic number is missing, or the rest is damaged.
    """
    if bytes(data[:4]) != ELF_MAGIC:
        raise _not_elf(where, bytes(data[:4]))
    try:
        return _read(cast("BinaryIO", _BoundedReader(data)), len(data))
    except Exception as error:
        raise ElfError(
            f"{where} is a damaged ELF file: {error or type(error).__name__}",
            hint="copy the file again from where it was built; `readelf -lhd` shows what is left of it",
        ) from error


def _not_elf(where: str, start: bytes) -> ElfError:
    seen = f"it starts with {start!r}" if start else "it is empty"
    return ElfError(
        f"{where} is not an ELF file", Code.NOT_ELF, hint="an executable or library is expected here", evidence=seen
    )


def _read(stream: BinaryIO, file_bytes: int) -> ElfInfo:
    from elftools.elf.elffile import ELFFile  # 90 ms that only `farm bundle add` and its like need

    file = ELFFile(stream)
    # A loader ignores the section headers, and stripped files have wrong ones; pyelftools finds names without them.
    file.header["e_shoff"] = 0
    if file["e_phnum"] > MAX_PROGRAM_HEADERS:
        raise ValueError(f"{file['e_phnum']} program headers")
    segments = list(file.iter_segments())
    loads = [segment for segment in segments if segment["p_type"] == "PT_LOAD"]
    for segment in loads:
        if (end := segment["p_offset"] + segment["p_filesz"]) > file_bytes:
            raise ValueError(f"truncated: a segment ends at {end} of {file_bytes} bytes")
    dynamic = next((segment for segment in segments if segment["p_type"] == "PT_DYNAMIC"), None)
    machine = file["e_machine"]  # a number where elf.h has no name for it
    interpreters = (segment for segment in segments if segment["p_type"] == "PT_INTERP")
    return ElfInfo(
        bits=file.elfclass,
        little_endian=file.little_endian,
        machine=f"machine {machine}" if isinstance(machine, int) else machine.removeprefix("EM_"),
        type=str(file["e_type"]).removeprefix("ET_"),
        interpreter=next((_checked(each.get_interp_name(), "the interpreter") for each in interpreters), ""),
        needed=_names(dynamic, "DT_NEEDED"),
        soname="".join(_names(dynamic, "DT_SONAME")[:1]),
        page_alignment_bytes=min((segment["p_align"] for segment in loads), default=0),
        android_api=_android_api(segments, "<I" if file.little_endian else ">I"),
        build_id=_build_id(segments),
    )


def _names(dynamic: DynamicSegment | None, tag_name: str) -> tuple[str, ...]:
    """The strings of every entry of the dynamic section that has this tag."""
    if dynamic is None:
        return ()
    found = []
    for tag in dynamic.iter_tags(tag_name):
        strings_bytes = next((size["d_val"] for size in dynamic.iter_tags("DT_STRSZ")), 0)
        if tag["d_val"] >= strings_bytes:
            raise ValueError(f"a name lies outside the string table ({tag['d_val']} of {strings_bytes})")
        found.append(_checked(getattr(tag, tag_name.removeprefix("DT_").lower()), "a library name"))
    return tuple(found)


def _checked(text: str, what: str) -> str:
    if not text or len(text) > MAX_NAME_BYTES:
        raise ValueError(f"{what} is empty, has no end or is too long")
    if not text.isprintable():  # people read it in a terminal
        raise ValueError(f"{what} is not text")
    return text


def _android_api(segments: Sequence[Segment], word: str) -> int | None:
    for name, kind, data in _notes(segments):
        if (name, kind) == ("Android", _NT_ANDROID_IDENT) and len(data) >= struct.calcsize(word):
            return int(struct.unpack_from(word, data)[0])
    return None


def _build_id(segments: Sequence[Segment]) -> str:
    found = (data for name, kind, data in _notes(segments) if (name, kind) == ("GNU", _NT_BUILD_ID))
    return next(found, b"")[:MAX_BUILD_ID_BYTES].hex()


def _notes(segments: Sequence[Segment]) -> Iterator[tuple[str, object, bytes]]:
    """The name, type and content of each note up to the first that is malformed, of each segment of notes."""
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError

    for segment in segments:
        if segment["p_type"] == "PT_NOTE":
            # Padding after the last note, or a note for tools only, can be malformed: no loader refuses it.
            with contextlib.suppress(ELFError, ConstructError):
                for note in segment.iter_notes():
                    yield note["n_name"], note["n_type"], note["n_descdata"]
