"""A phone's processes and their use of the host, read there from the phone's init downwards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from farm.bundle.model import LOADER_PREFIX, SERVER_PROGRAM

_LOADER_WORDS = 3  # ld-linux-... --library-path FOLDER
_FIRST_WORDS = 2 + _LOADER_WORDS
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a phone."""

    pid: int  # on the host
    parent: int
    name: str
    default_schedule_s: float  # CPU time
    collected_s: float  # of children that ended
    is_server: bool  # runs tvm_rpc: the server itself or one of its sessions


def runs_server(command_line: bytes) -> bool:
    """Whether it runs tvm_rpc: itself, as the script of an interpreter, under qemu, or by its bundle's loader."""
    names = [PurePosixPath(os.fsdecode(word)).name for word in command_line.split(b"\0")[:_FIRST_WORDS]]
    loader = max((at for at, name in enumerate(names[:2]) if name.startswith(LOADER_PREFIX)), default=None)
    programs = names[:2] if loader is None else names[loader + _LOADER_WORDS :][:1]
    return SERVER_PROGRAM in programs


def read_tree(root: int) -> list[Process]:
    """Every living process from `root` down, parents before their children. Those that end meanwhile are left out."""
    found: list[Process] = []
    waiting = [(root, 0)]
    while waiting:
        pid, parent = waiting.pop()
        process = _process(pid, parent)
        if process is not None:
            found.append(process)
            waiting += [(child, pid) for child in _children(pid)]
    return found


def sessions_of(tree: list[Process]) -> set[int]:
    """The processes that serve sessions: a tvm_rpc whose parent is one, and whatever it started."""
    servers = {process.pid for process in tree if process.is_server}
    sessions: set[int] = set()
    for process in tree:
        if process.parent in sessions or (process.is_server and process.parent in servers):
            sessions.add(process.pid)
    return sessions


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        return _fields(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace"))[0] in {"T", "t"}
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    except OSError:
        return children
    return children


def _process(pid: int, parent: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    name = stat.partition("(")[2].rpartition(")")[0]
    user, system, collected_user, collected_system = (int(ticks) / _TICKS_PER_S for ticks in _fields(stat)[11:15])
    return Process(
        pid, parent, name, user + system, collected_user + collected_system, is_server=runs_server(command_line)
    )


def _fields(stat: str) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold blanks and parentheses (proc(5))."""
    return stat.rpartition(")")[2].split()
