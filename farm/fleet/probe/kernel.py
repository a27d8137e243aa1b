"""Lines of the kernel log that tell of a GPU fault. User builds hide the log from the shell. Pure; never raises.

Words of the drivers: kgsl (Qualcomm, adreno_dispatch.c and kgsl_iommu.c), kbase (Arm, mali_kbase_mmu.c), panfrost,
amdgpu under Samsung's sgpu, PowerVR's services.
"""

from __future__ import annotations

import re

MOST_LINES = 20
_FAULT = re.compile(
    r"kgsl.*(?:\bfault\b|\bhang\b|timed? ?out|opcode error|failed to idle)|gpu fault|GPU PAGE FAULT|MISC: GPU hang"
    r"|(?:Unhandled )?Page fault in AS[0-9]|(?:mali|panfrost).*(?:\bfault|\bhang\b|timed? ?out|soft-stop|hard-stop)"
    r"|(?:sgpu|amdgpu|drm).*(?:ring \w+ timeout|GPU reset|GPU fault)|PVR.*(?:\bHWR\b|lockup|page fault)",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"fault[-_ ](?:tolerance|detect\w*|policy)|default|thermal|regulator|opp table", re.IGNORECASE)
_UNREADABLE = re.compile(r"\bdmesg: .*(?:permitted|denied|not found|inaccessible|No such)", re.IGNORECASE)


def parse_kernel(text: str) -> tuple[tuple[str, ...], bool]:
    """The newest such lines, newest last, and whether the log could be read."""
    lines = [line.strip()[:500] for line in text.splitlines()]
    if any(_UNREADABLE.search(line) for line in lines):
        return (), False
    faults = [line for line in lines if _FAULT.search(line) and not _HARMLESS.search(line)]
    return tuple(faults[-MOST_LINES:]), True
