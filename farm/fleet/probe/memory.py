"""/proc/meminfo, and the room on /data. Pure; never raises."""

from __future__ import annotations

import re

_MEMINFO = re.compile(r"^(\w+):[ \t]+([0-9]{1,12}) kB", re.MULTILINE | re.ASCII)
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)([KMGT]?)", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BLOCK = re.compile(r"\b(1K|512|1024)-blocks\b")
_MOST_BYTES = 1 << 44  # 16 TiB


def parse_meminfo(text: str) -> tuple[int | None, int | None]:
    """Total and available bytes; free, buffers and cache stand for the latter on kernels before 3.14."""
    found: dict[str, int] = {}
    for name, value in _MEMINFO.findall(text):
        found.setdefault(name, int(value) << 10)
    total, available = found.get("MemTotal"), found.get("MemAvailable")
    if available is None and "MemFree" in found:
        available = sum(found.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    if not total or (available is not None and available > total):
        return total or None, None
    return total, available


def parse_data(text: str) -> tuple[int | None, int | None]:
    """Total and free bytes of /data, from `df /data` or the /data line of any `df`: toybox's, busybox's, toolbox's."""
    block = _BLOCK.search(text)
    scale = {"512": 512}.get(block[1], 1 << 10) if block else 0  # 0: amounts carry their unit
    # busybox breaks a line behind a long device name.
    lines = re.sub(r"\n[ \t]{10,}(?=[0-9])", " ", text).splitlines()
    header = next((line for line in lines if "Filesystem" in line), "")
    for line in lines:
        words = line.split()
        if "/data" not in words:
            continue
        at = words.index("/data")
        if at == 0 and len(words) >= 4:  # toolbox: mount point, size, used, free, block size
            total, free = _bytes(words[1], 0), _bytes(words[3], 0)
        elif at >= 4:  # device, size, used, available, use%, mount point
            total, free = _bytes(words[at - 4], scale), _bytes(words[at - 2], scale)
        else:
            continue
        if total and free is not None and free <= total <= _MOST_BYTES:
            return total, free
    return _behind_another_mount(lines, header, scale)


def _behind_another_mount(lines: list[str], header: str, scale: int) -> tuple[int | None, int | None]:
    """`df /data` names the mount point that holds it (a container's, a phone without a /data of its own)."""
    rows = [line.split() for line in lines if line.strip() and line != header]
    if not header or len(rows) != 1 or len(rows[0]) != 6 or not rows[0][5].startswith("/"):
        return None, None
    total, free = _bytes(rows[0][1], scale), _bytes(rows[0][3], scale)
    return (total, free) if total and free is not None and free <= total <= _MOST_BYTES else (None, None)


def _bytes(word: str, scale: int) -> int | None:
    """An amount with its unit, or blocks of `scale` bytes."""
    found = _AMOUNT.fullmatch(word)
    if found is None:
        return None
    if not found[2] and not scale and found[1] != "0":
        return None  # a bare number without a heading: nobody knows of what
    return int(float(found[1]) * (_UNITS[found[2]] if found[2] else scale or 1))
