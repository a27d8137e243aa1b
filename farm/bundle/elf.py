"""Reads what a dynamic linker would read of an ELF file: no sections, no symbols, no third-party package.

Layout: System V ABI chapter 4/5 (gabi+), `elf.h`; Android's API note: NDK `crtbrand.S`.
Anything that is not a well-formed ELF file raises `ElfError`, and nothing else does (hypothesis holds it to that).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from farm.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

ELF_MAGIC = b"\x7fELF"
MAX_PROGRAM_HEADERS = 1024  # real files have about ten; more means garbage
MAX_DYNAMIC_ENTRIES = 65_536  # a library with that many entries has not been seen; stops a walk through garbage
MAX_NAME_BYTES = 4096  # PATH_MAX of Linux: no library name or interpreter is longer

_EI_CLASS, _EI_DATA, _EI_NIDENT = 4, 5, 16
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 1, 5, 10, 14
_NT_ANDROID_IDENT = 1


class ElfError(UserError):
    """The file is not a readable ELF file."""

    code = "bad_elf"


class NotElfError(ElfError):
    """The file is not an ELF file at all."""

    code = "not_elf"


class ElfType(IntEnum):
    """`e_type` of the files that matter to a bundle."""

    REL = 1  # an object file
    EXEC = 2  # an executable at a fixed address
    DYN = 3  # a shared library or a position-independent executable
    CORE = 4


class Machine(IntEnum):
    """`e_machine` of the ABIs Android has or had."""

    I386 = 3
    MIPS = 8
    ARM = 40
    X86_64 = 62
    AARCH64 = 183
    RISCV = 243


@dataclass(frozen=True, slots=True)
class ElfInfo:
    """What one ELF file says about itself."""

    bits: int  # 32 or 64
    little_endian: bool
    machine: int  # `e_machine`; see Machine for the known ones
    type: int  # `e_type`; see ElfType
    interpreter: str = ""  # of a dynamically linked program: "/system/bin/linker64"
    needed: tuple[str, ...] = ()  # DT_NEEDED, in order
    soname: str = ""
    # The smallest p_align of the LOAD segments: what a kernel's page size must not exceed (0: nothing to load).
    # bionic judges by the smallest one too (linker_phdr.cpp, phdr_table_get_minimum_alignment).
    page_alignment_bytes: int = 0
    android_api: int | None = None  # from the .note.android.ident note that the NDK puts into everything it links

    @property
    def machine_name(self) -> str:
        """A name for people: `AARCH64`, or `machine 8` when unknown."""
        return Machine(self.machine).name if self.machine in set(Machine) else f"machine {self.machine}"


@dataclass(frozen=True, slots=True)
class _Segment:
    type: int
    offset: int
    address: int
    file_bytes: int
    align: int


class _Image:
    """A file's bytes with every read checked against its end."""

    def __init__(self, data: bytes | mmap.mmap, where: str) -> None:
        self._data = data
        self._where = where
        self.size = len(data)
        self.order = "<"

    def error(self, what: str) -> ElfError:
        return ElfError(
            f"{self._where} is a damaged ELF file: {what}",
            hint="copy the file again from where it was built; `readelf -lhd` shows what is left of it",
        )

    def read(self, offset: int, length: int, what: str) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self.error(f"{what} lies outside the file (offset {offset}, {length} bytes of {self.size})")
        return bytes(self._data[offset : offset + length])

    def unpack(self, layout: str, offset: int, what: str) -> tuple[int, ...]:
        layout = self.order + layout
        return struct.unpack(layout, self.read(offset, struct.calcsize(layout), what))

    def text(self, offset: int, limit: int, what: str) -> str:
        """The NUL-terminated string at `offset` that must end within `limit` bytes."""
        raw = self.read(offset, min(limit, MAX_NAME_BYTES, max(self.size - offset, 0)), what)
        end = raw.find(b"\0")
        if end < 0:
            raise self.error(f"{what} has no end")
        text = raw[:end].decode(errors="replace")
        if "\ufffd" in text or not text.isprintable():  # people read it in a terminal
            raise self.error(f"{what} is not text")
        return text


def read_elf(path: Path) -> ElfInfo:
    """Read the ELF file at `path`.

    Raises:
        NotElfError: it is no ELF file.
        ElfError: it is one, but damaged.
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
        NotElfError: the magic number is missing.
        ElfError: anything else is wrong.
    """
    if bytes(data[:4]) != ELF_MAGIC:
        raise _not_elf(where, bytes(data[:4]))
    image = _Image(data, where)
    ident = image.read(0, _EI_NIDENT, "the identification")
    bits = {1: 32, 2: 64}.get(ident[_EI_CLASS], 0)
    order = {1: "<", 2: ">"}.get(ident[_EI_DATA], "")
    if not bits or not order:
        raise image.error(f"unknown class {ident[_EI_CLASS]} or byte order {ident[_EI_DATA]}")
    image.order = order
    kind, machine = image.unpack("HH", 16, "the header")
    segments = _segments(image, bits)
    dynamic = _dynamic(image, bits, segments)
    loads = [segment.align for segment in segments if segment.type == _PT_LOAD]
    return ElfInfo(
        bits=bits,
        little_endian=order == "<",
        machine=machine,
        type=kind,
        interpreter=_interpreter(image, segments),
        needed=tuple(dynamic.get(_DT_NEEDED, ())),
        soname=dynamic.get(_DT_SONAME, [""])[0],
        page_alignment_bytes=min(loads, default=0),
        android_api=_android_api(image, segments),
    )


def _not_elf(where: str, start: bytes) -> NotElfError:
    seen = f"it starts with {start!r}" if start else "it is empty"
    return NotElfError(f"{where} is not an ELF file", hint="an executable or library is expected here", evidence=seen)


def _segments(image: _Image, bits: int) -> list[_Segment]:
    if bits == 64:
        (table,) = image.unpack("Q", 32, "the header")
        entry_size, count = image.unpack("HH", 54, "the header")
        layout, expected = "IIQQQQQQ", 56
    else:
        (table,) = image.unpack("I", 28, "the header")
        entry_size, count = image.unpack("HH", 42, "the header")
        layout, expected = "IIIIIIII", 32
    if count == 0:
        return []
    if count > MAX_PROGRAM_HEADERS or entry_size < expected:
        raise image.error(f"{count} program headers of {entry_size} bytes")
    found = []
    for index in range(count):
        row = image.unpack(layout, table + index * entry_size, "a program header")
        if bits == 64:
            kind, _flags, offset, address, _physical, file_bytes, _memory, align = row
        else:
            kind, offset, address, _physical, file_bytes, _memory, _flags, align = row
        found.append(_Segment(kind, offset, address, file_bytes, align))
    for segment in found:
        if segment.type == _PT_LOAD and segment.offset + segment.file_bytes > image.size:
            raise image.error(
                f"truncated: a segment ends at {segment.offset + segment.file_bytes} of {image.size} bytes"
            )
    return found


def _interpreter(image: _Image, segments: list[_Segment]) -> str:
    for segment in segments:
        if segment.type == _PT_INTERP:
            return image.text(segment.offset, segment.file_bytes, "the interpreter")
    return ""


def _dynamic(image: _Image, bits: int, segments: list[_Segment]) -> dict[int, list[str]]:
    """The string-valued entries of the dynamic section, by tag."""
    table = next((segment for segment in segments if segment.type == _PT_DYNAMIC), None)
    if table is None:
        return {}
    layout, size = ("qQ", 16) if bits == 64 else ("iI", 8)
    entries: list[tuple[int, int]] = []
    for index in range(min(table.file_bytes // size, MAX_DYNAMIC_ENTRIES)):
        tag, value = image.unpack(layout, table.offset + index * size, "the dynamic section")
        if tag == _DT_NULL:
            break
        entries.append((tag, value))
    wanted = [(tag, value) for tag, value in entries if tag in (_DT_NEEDED, _DT_SONAME)]
    if not wanted:
        return {}
    single = dict(entries)
    if _DT_STRTAB not in single or _DT_STRSZ not in single:
        raise image.error("its dynamic section has no string table")
    strings, strings_bytes = _file_offset(image, segments, single[_DT_STRTAB]), single[_DT_STRSZ]
    result: dict[int, list[str]] = {}
    for tag, value in wanted:
        if value >= strings_bytes:
            raise image.error(f"a name lies outside the string table ({value} of {strings_bytes})")
        result.setdefault(tag, []).append(image.text(strings + value, strings_bytes - value, "a library name"))
    return result


def _file_offset(image: _Image, segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.type == _PT_LOAD and segment.address <= address < segment.address + segment.file_bytes:
            return segment.offset + address - segment.address
    raise image.error(f"address {address:#x} is in no segment")


def _android_api(image: _Image, segments: list[_Segment]) -> int | None:
    for segment in segments:
        if segment.type != _PT_NOTE:
            continue
        offset, end = segment.offset, min(segment.offset + segment.file_bytes, image.size)
        while offset + 12 <= end:
            name_bytes, value_bytes, kind = image.unpack("III", offset, "a note")
            name_at = offset + 12
            value_at = name_at + (name_bytes + 3 & ~3)
            if value_at + value_bytes > end:
                break  # padding after the last note, or a note for tools only: nothing a loader would refuse
            if (
                kind == _NT_ANDROID_IDENT
                and value_bytes >= 4
                and image.read(name_at, name_bytes, "a note") == b"Android\0"
            ):
                return image.unpack("I", value_at, "a note")[0]
            offset = value_at + (value_bytes + 3 & ~3)
    return None
