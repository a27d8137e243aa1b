"""The local memory of OpenCL kernels, read from their source, which TVM keeps in a library."""

from __future__ import annotations

import re

_LINE = re.compile(rb"// Function: (\w+)|__local ([a-z]+)(\d*) \w+\[(\d+)\];")
_BYTES = {
    b"bool": 1, b"char": 1, b"uchar": 1, b"short": 2, b"ushort": 2, b"half": 2, b"int": 4, b"uint": 4, b"float": 4,
    b"long": 8, b"ulong": 8, b"double": 8,
}  # fmt: skip


def most_local_memory(library: bytes) -> tuple[str, int]:
    """The kernel of a library that allocates the most local memory, and how many bytes; ("", 0): none allocates any."""
    needed, kernel = {"": 0}, ""
    for name, dtype, lanes, count in _LINE.findall(library):
        if name:
            kernel = name.decode()
        else:
            needed[kernel] = needed.get(kernel, 0) + _BYTES.get(dtype, 0) * int(lanes or 1) * int(count)
    return max(needed.items(), key=lambda each: each[1])
