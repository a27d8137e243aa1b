"""Shell scripts of a push and how their output is read: pure text.

POSIX sh, as mksh with toybox or, on old phones, toolbox runs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

LONG_REQUEST_BYTES = 24 << 10  # phones with shell,v2 take more; the server's request ends at 64 KiB
SHORT_REQUEST_BYTES = 3 << 10  # older ones: 4096 with everything
_PART_SUFFIX = ".farm-part"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class HashTool(StrEnum):
    """How a phone's files are verified. People see the value."""

    SHA256 = "sha256sum"
    MD5 = "md5"
    NONE = "read back"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One path as the phone reports it."""

    path: str
    present: bool = False
    digest: str = ""  # lower-case hex; empty when absent, unreadable or no tool
    mode: int | None = None  # permission bits; None when absent or the phone has no `stat`


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """The answer to `inspect`."""

    files: Mapping[str, FileFacts]
    tool: HashTool
    free_bytes: int | None  # on the file system of the first path; None = not reported
    evidence: str  # its output about free space

    def joined(self, more: TreeFacts) -> TreeFacts:
        """These and the next batch's facts."""
        return TreeFacts({**self.files, **more.files}, self.tool, self.free_bytes, self.evidence)


def temporary_name(remote: str) -> str:
    """Where a file is sent first: hidden, in the folder where it belongs, the same for every attempt."""
    path = PurePosixPath(remote)
    return str(path.with_name(f".{path.name}{_PART_SUFFIX}"))


def split_paths(paths: Sequence[str], limit_bytes: int) -> Iterator[Sequence[str]]:
    """Groups of paths whose `inspect` fits a request; each path is quoted once, and half the room is the script's."""
    return _groups(paths, limit_bytes // 2, shlex.quote)


def inspect(paths: Sequence[str]) -> str:
    """A script that prints which paths are files, their modes and hashes, and the free space where the first belongs.

    Few processes, since each costs a phone milliseconds: one `stat` and one hash program for all paths together.
    """
    quoted = " ".join(shlex.quote(path) for path in paths)
    return (
        f"set -- {quoted}\n"
        "h=; for t in sha256sum md5sum md5; do "
        'if "$t" /dev/null >/dev/null 2>&1; then h=$t; break; fi; done\n'
        'echo "tool $h"\n'
        'd=${1%/*}; while [ -n "$d" ] && [ ! -d "$d" ]; do d=${d%/*}; done\n'
        'stat -f -c \'space %a %S\' "${d:-/}" 2>/dev/null || { echo df; df "${d:-/}"; }\n'
        'echo files; for f; do if [ -f "$f" ]; then echo "$f"; fi; done\n'
        "echo modes; stat -c '%a %n' \"$@\" 2>/dev/null\n"
        'echo hashes; if [ -n "$h" ]; then $h "$@" 2>/dev/null; fi\n'
        "echo end"
    )


_SPACE = re.compile(r"space (\d+) (\d+)")
_HASH = re.compile(r"([0-9a-f]{64}|[0-9a-f]{32})\s+\*?(.+)")
_MODE = re.compile(r"([0-7]{1,4}) (.+)")
_TOOLS = {"sha256sum": HashTool.SHA256, "md5sum": HashTool.MD5, "md5": HashTool.MD5, "": HashTool.NONE}


def read_inspection(paths: Sequence[str], text: str) -> TreeFacts | None:
    """Reads the output of `inspect`; None when it is not whole (the phone's shell failed: its output is `text`)."""
    lines = text.replace("\r", "").split("\n")
    if "end" not in lines or not all(word in lines for word in ("files", "modes", "hashes")):
        return None
    head, rest = lines[: (at := lines.index("files"))], lines[at + 1 :]
    present = set(rest[: rest.index("modes")])
    modes = rest[rest.index("modes") + 1 : (at := rest.index("hashes"))]
    mode_of = {match[2]: int(match[1], 8) & 0o777 for line in modes if (match := _MODE.fullmatch(line))}
    digest_of = {match[2]: match[1] for line in rest[at + 1 :] if (match := _HASH.fullmatch(line))}
    tool = next((_TOOLS.get(line.removeprefix("tool").strip()) for line in head if line.startswith("tool")), None)
    if tool is None:
        return None
    files = {path: FileFacts(path, path in present, digest_of.get(path, ""), mode_of.get(path)) for path in paths}
    words = "\n".join(line for line in head if not line.startswith("tool"))
    return TreeFacts(files, tool, free_bytes(words), words.strip())


# coreutils, busybox, toybox: Available Use% Mount; toolbox: Mount Size Used Free Blksize.
_DF_PERCENT = re.compile(r"\s([\d.]+)([KMGT]?)\s+(\d+)%\s+/\S*\s*\Z")
_DF_TOOLBOX = re.compile(r"/\S*\s+[\d.]+[KMGT]?\s+[\d.]+[KMGT]?\s+([\d.]+)([KMGT]?)\s+\d+\s*\Z")


def free_bytes(text: str) -> int | None:
    """Free bytes from `stat -f` or from any generation's `df` of one folder; None for any other text."""
    if match := _SPACE.search(text):
        return int(match[1]) * int(match[2])
    if match := _DF_PERCENT.search(text):
        unit = _UNITS[match[2]] if match[2] else 1 << 10  # a bare number counts 1K-blocks
        return int(float(match[1]) * unit)
    if match := _DF_TOOLBOX.search(text):
        return int(float(match[1]) * _UNITS[match[2]])
    return None


def install(moves: Sequence[tuple[str, str, int]]) -> list[str]:
    """One line per (temporary, final, mode): permission bits as asked (adbd widens them), then the atomic rename."""
    lines = []
    for temporary, final, mode in moves:
        source, target = shlex.quote(temporary), shlex.quote(final)
        # `mv` onto a folder would move into it. toolbox' mv knows no -f; stdin is closed so that none can ask.
        lines.append(
            f"if [ -d {target} ]; then echo {target}: open failed: Is a directory; exit 1; fi; "
            f"chmod {mode & 0o777:o} {source} || exit 1; "
            f"mv -f {source} {target} 2>/dev/null || mv {source} {target} </dev/null || exit 1"
        )
    return lines


def change_modes(modes: Sequence[tuple[str, int]]) -> list[str]:
    """One line per (path, permission bits)."""
    return [f"chmod {mode & 0o777:o} {shlex.quote(path)} || exit 1" for path, mode in modes]


def remove(path: str) -> str:
    """A line that removes a file which may not be there."""
    return f"rm -f {shlex.quote(path)}"


def batches(lines: Sequence[str], limit_bytes: int = SHORT_REQUEST_BYTES) -> Iterator[str]:
    """The lines joined into as few commands as fit a request."""
    return map("\n".join, _groups(lines, limit_bytes))


def _groups(texts: Iterable[str], limit_bytes: int, sent: Callable[[str], str] = str) -> Iterator[list[str]]:
    """The texts in order, in groups that together take no more, unless one does alone; `sent`: as they are sent."""
    group: list[str] = []
    size = 0
    for text in texts:
        cost = len(sent(text).encode()) + 1
        if group and size + cost > limit_bytes:
            yield group
            group, size = [], 0
        group.append(text)
        size += cost
    if group:
        yield group
