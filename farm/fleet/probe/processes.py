"""`ps -A -o`: the busiest processes, and those of farm's RPC server. Pure; never raises.

Old toolbox's `ps` has neither groups nor shares of the CPU; its columns are told by its heading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from farm.core.health import ProcessReading
from farm.core.phone_text import WORD, plain

MOST_BUSIEST = 10
MOST_OF_SERVER = 64  # a session is a process, and a phone has one at a time
SERVER_NAME = "tvm_rpc"
_NOTED = re.compile(r"^(self|server|supervisor)=([0-9]{1,9})[ \t]*$", re.MULTILINE | re.ASCII)
_RENAMED = {"NAME": "NAME", "CMD": "NAME", "ARGS": "NAME", "CMDLINE": "NAME", "S": "S", "RSS": "RSS"}


def parse_processes(text: str) -> tuple[tuple[ProcessReading, ...], tuple[ProcessReading, ...]]:
    """The busiest (without kernel threads and the probe itself), and the server's: supervisor, server, sessions."""
    noted = {name: int(number) for name, number in _NOTED.findall(text)}
    own, server, supervisor = (noted.get(name, -1) for name in ("self", "server", "supervisor"))
    rows = {row.pid: row for row in _rows(text)}
    ours = {
        pid
        for pid, row in rows.items()
        if row.name == SERVER_NAME or pid in (server, supervisor) or row.pgid == server > 1 or row.ppid == server > 1
    }
    group = tuple(row for pid, row in sorted(rows.items()) if pid in ours)[:MOST_OF_SERVER]
    others = [row for row in rows.values() if own not in (row.pid, row.ppid) and not row.name.startswith("[")]
    others.sort(key=lambda row: row.cpu_percent or 0.0, reverse=True)
    return tuple(row for row in others if row.cpu_percent)[:MOST_BUSIEST], group


def _rows(text: str) -> list[ProcessReading]:
    columns: dict[str, int] = {}
    rows = []
    for line in text.splitlines():
        words = line.split()
        if "PID" in words and "PPID" in words:
            columns = {_RENAMED.get(word, word): at for at, word in enumerate(words)}
        elif columns and (row := _row(words, columns)) is not None:
            rows.append(row)
    return rows


def _name(words: Sequence[str]) -> str:
    """Without the path; a kernel thread's ("kworker/0:0") has none."""
    name = " ".join(words)
    return plain(name.rpartition("/")[2] if name.startswith("/") else name, WORD)


def _row(words: Sequence[str], columns: dict[str, int]) -> ProcessReading | None:
    name_at = columns.get("NAME", len(columns))
    if "S" not in columns and "PC" in columns:  # toolbox heads the state with nothing: it stands before the name
        state_at, name_at = name_at, name_at + 1
    else:
        state_at = columns.get("S", -1)
    if len(words) <= name_at:
        return None

    def number(column: str) -> int:
        at = columns.get(column, -1)
        return int(words[at]) if 0 <= at < len(words) and re.fullmatch(r"[0-9]{1,12}", words[at], re.ASCII) else -1

    pid, rss = number("PID"), number("RSS")
    if pid < 0 or number("PPID") < 0:
        return None
    share_at = columns.get("%CPU", -1)
    share = words[share_at] if share_at >= 0 else ""
    state = words[state_at] if state_at >= 0 else ""
    return ProcessReading(
        pid=pid,
        ppid=number("PPID"),
        pgid=number("PGID"),
        state=state[:1] if state[:1].isalpha() else "",
        cpu_percent=float(share) if re.fullmatch(r"[0-9]{1,5}(?:\.[0-9]{1,3})?", share, re.ASCII) else None,
        rss_bytes=rss << 10 if rss >= 0 else None,
        name=_name(words[name_at:]),
    )
