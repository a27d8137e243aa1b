"""Lines of the kernel log that tell of a GPU fault. User builds hide the log from the shell. Pure; never raises.

Words of the drivers: kgsl (Qualcomm, adreno_dispatch.c and kgsl_iommu.c), kbase (Arm, mali_kbase_mmu.c), panfrost,
amdgpu under Samsung's sgpu, PowerVR's services.
"""

from __future__ import annotations

import re

from farm.core.phone_text import plain

MOST_LINES = 20
_MOST_CHARACTERS = 300  # of a line
# Of a driver's lines only those with its words for a fault. Two patterns, not `driver.*fault`: that takes the square of
# a line's length where a phone names the driver over and over.
_DRIVERS = tuple(
    (re.compile(driver, re.IGNORECASE), re.compile(fault, re.IGNORECASE))
    for driver, fault in (
        (r"kgsl", r"\bfault\b|\bhang\b|timed? ?out|opcode error|failed to idle"),
        (r"mali|panfrost", r"\bfault|\bhang\b|timed? ?out|soft-stop|hard-stop"),
        (r"sgpu|amdgpu|drm", r"ring \w{1,40} timeout|GPU reset|GPU fault"),
        (r"PVR", r"\bHWR\b|lockup|page fault"),
    )
)
_FAULT = re.compile(r"gpu fault|GPU PAGE FAULT|MISC: GPU hang|(?:Unhandled )?Page fault in AS[0-9]", re.IGNORECASE)
_HARMLESS = re.compile(r"fault[-_ ](?:tolerance|detect\w*|policy)|default|thermal|regulator|opp table", re.IGNORECASE)
_UNREADABLE = re.compile(r"permitted|denied|not found|inaccessible|No such", re.IGNORECASE)


def parse_kernel(text: str) -> tuple[tuple[str, ...], bool]:
    """The newest such lines, newest last, and whether the log could be read."""
    lines = [plain(line.strip(), _MOST_CHARACTERS) for line in text.splitlines()]
    if any(_UNREADABLE.search(line.partition("dmesg: ")[2]) for line in lines):
        return (), False
    faults = [line for line in lines if _tells_of_fault(line) and not _HARMLESS.search(line)]
    return tuple(faults[-MOST_LINES:]), True


def _tells_of_fault(line: str) -> bool:
    if _FAULT.search(line):
        return True
    return any((at := driver.search(line)) and fault.search(line, at.end()) for driver, fault in _DRIVERS)
