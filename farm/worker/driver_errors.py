"""What the driver of a phone's GPU says when it cannot run a kernel: one sentence and a hint. Pure.

The phone is well then: another kernel runs on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.compiler.tvm_errors import first_line

# TVM's words, then the driver's log.
_BUILD_FAILED = re.compile(r"OpenCL build error|the OpenCL driver cannot build")
_BUILD_ERROR = re.compile(r"^\W*(?:\S+: )?error: (?:\S+:\d+:\d+: )?(.+)", re.MULTILINE)
# OpenCL's names of errors, or the words of the virtual phones' runtime.
_IMAGE = re.compile(r"CL_INVALID_IMAGE_(?:SIZE|FORMAT_DESCRIPTOR)|CL_IMAGE_FORMAT_NOT_SUPPORTED")
_WORK_GROUP = re.compile(r"CL_INVALID_WORK_(?:GROUP|ITEM)_SIZE")
_LOCAL_MEMORY = re.compile(r"(\S+ needs \d+ bytes of local memory, and the GPU has \d+)")
_MEMORY_HINT = "another phone, --target cpu, or a target whose max_shared_memory_per_block is what this GPU has"


@dataclass(frozen=True, slots=True)
class KernelRefusal:
    """Why a GPU cannot run a kernel, and what to do."""

    reason: str
    hint: str


def kernel_refusal(error: Exception) -> KernelRefusal | None:
    """What TVM's error says about a kernel; None: it is about something else."""
    text = str(error)
    if _BUILD_FAILED.search(text):
        found = _BUILD_ERROR.search(text)
        return KernelRefusal(
            f"the GPU's driver cannot build a kernel: {found[1].strip() if found else first_line(error)}",
            "the evidence has the driver's words (--json); another phone, --target cpu or --precision float32",
        )
    if _IMAGE.search(text):
        return KernelRefusal(
            f"the GPU has no such image: {first_line(error)}",
            "leave out --texture, or give the target a texture_spatial_limit that fits this GPU",
        )
    if _WORK_GROUP.search(text):
        return KernelRefusal(
            f"the GPU has no such work group: {first_line(error)}",
            "another phone, --target cpu, or a target whose max_threads_per_block is what this GPU has",
        )
    if found := _LOCAL_MEMORY.search(text):
        return KernelRefusal(f"a kernel is too large: {found[1]}", _MEMORY_HINT)
    return None


def memory_refusal(kernel: str, needed_bytes: int, room_bytes: int) -> KernelRefusal | None:
    """Of a kernel that needs more local memory than a GPU has; None: it fits."""
    if needed_bytes <= room_bytes:
        return None
    return KernelRefusal(
        f"a kernel is too large: {kernel} needs {needed_bytes} bytes of local memory, and the GPU has {room_bytes}",
        _MEMORY_HINT,
    )
