"""Runs a program under the filter of system calls that systemd would put around a unit.

    python tests/support/seccomp.py UNIT PROGRAM ARGUMENTS

Only `SystemCallFilter=` (an allow-list, then what is taken out of it) and, of `RestrictSUIDSGID=`, the three chmods.
Sets of calls are asked of `systemd-analyze syscall-filter`, numbers are read from the C headers (x86-64 only).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

from tests.support.needs import lacks
from tests.support.waiting import HANG_S

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
ALLOW, EPERM = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
NUMBER_OFFSET, ARGUMENTS_OFFSET = 0, 16  # in struct seccomp_data
SUID_OR_SGID = 0o6000
MODE_ARGUMENT = {"chmod": 1, "fchmod": 1, "fchmodat": 2}


def why_not() -> str:
    """Why no such filter can be made here; "" when it can."""
    if platform.machine() != "x86_64" or not HEADER.exists():
        return "numbers of system calls are read from the headers of x86-64"
    return lacks("systemd-analyze")


def calls_of(name: str) -> set[str]:
    """The calls that a word of a filter means: a call, or @set with the sets in it."""
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "syscall-filter", name]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S).stdout.splitlines()
    words = [line.strip() for line in lines[1:] if line.strip() and not line.strip().startswith("#")]
    return {call for word in words for call in calls_of(word)}


def allowed(unit: str) -> set[str]:
    """What `SystemCallFilter=` lines come to; the first is an allow-list. @default is always allowed (systemd.exec)."""
    calls = calls_of("@default")
    for line in re.findall(r"^SystemCallFilter=(.+)$", unit, re.MULTILINE):
        named = {call for word in line.removeprefix("~").split() for call in calls_of(word)}
        calls = calls - named if line.startswith("~") else calls | named
    return calls


def program(calls: set[str], *, no_suid: bool) -> bytes:
    """The filter for the kernel."""
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}
    steps = [(LOAD, 0, 0, NUMBER_OFFSET)]
    for name, argument in MODE_ARGUMENT.items() if no_suid else ():
        steps += [
            (EQUAL, 0, 4, numbers[name]), (LOAD, 0, 0, ARGUMENTS_OFFSET + 8 * argument),
            (ANY_BIT, 0, 1, SUID_OR_SGID), (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW),
        ]  # fmt: skip
    for name in sorted(calls & numbers.keys()):
        steps += [(EQUAL, 0, 1, numbers[name]), (RETURN, 0, 0, ALLOW)]
    steps.append((RETURN, 0, 0, EPERM))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def main(unit: Path, command: list[str]) -> None:
    """Put the filter around this process, and become the program."""
    text = unit.read_text()
    code = program(allowed(text), no_suid="\nRestrictSUIDSGID=yes" in text)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    filter_ = Program(len(code) // 8, ctypes.addressof(buffer))
    for option, value, pointer in ((PR_SET_NO_NEW_PRIVS, 1, None), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_)):
        if libc.prctl(option, ctypes.c_ulong(value), ctypes.byref(pointer) if pointer else 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
