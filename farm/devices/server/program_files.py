"""Files of programs on a phone: pushed once, each set in a folder named by its hash; the least used sets go.

A person who had the phone may have changed what lies there, so every attempt has the hashes compared and what does not
belong removed. That takes a round trip, and as long as the phone hashes the files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from farm.adb.client import AdbClient
from farm.adb.push import PushFile, push_tree
from farm.devices.server.phone_paths import PROGRAMS
from farm.devices.server.provision import keep_only, real_folder, run_script

WORK = "work"
KEPT_SETS = 8  # beside those in use: a few runtimes with a few models
_SET = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A file of a set."""

    local: Path
    name: str
    mode: int
    sha256: str


def set_folder(sha256: str) -> str:
    """Where a set is on a phone."""
    return f"{PROGRAMS}/{sha256[:16]}"


def work_folder(side: int) -> str:
    """Where the program of one side of a comparison works; of a program alone, side 0."""
    return f"{PROGRAMS}/{WORK}{side}"


async def install_sets(client: AdbClient, serial: str, sets: Mapping[str, Sequence[ProgramFile]], sides: int) -> int:
    """Make each set, by its hash, whole on the phone, and the work folders empty; returns the bytes that were sent.

    Raises:
        PhoneStorageFull: /data has no room.
        PhoneError, AdbError: it could not be done; a repeat sends what is missing.
    """
    listed = await client.shell(serial, f"ls -t {PROGRAMS} 2>/dev/null; exit 0", timeout_s=15.0)
    await run_script(client, serial, "\n".join(_prepared(listed.text.split(), sets, sides)))
    files = [
        PushFile(file.local, f"{set_folder(sha256)}/{file.name}", file.mode, file.sha256)
        for sha256, some in sets.items()
        for file in some
    ]
    return (await push_tree(client, serial, files)).pushed_bytes


def outdated(there: Sequence[str], used: Collection[str]) -> list[str]:
    """The sets to remove of those that are there, the latest used first. Pure."""
    others = [name for name in there if _SET.fullmatch(name) and name not in used]
    return others[KEPT_SETS:]


def _prepared(there: Sequence[str], sets: Mapping[str, Sequence[ProgramFile]], sides: int) -> list[str]:
    used = {Path(set_folder(sha256)).name for sha256 in sets}
    works = [work_folder(side) for side in range(sides)]
    return [
        real_folder(PROGRAMS),
        f"find {PROGRAMS} -mindepth 1 -maxdepth 1 ! -name '{16 * '[0-9a-f]'}' -exec rm -rf {{}} + 2>/dev/null",
        *(f"rm -rf {PROGRAMS}/{name}" for name in outdated(there, used)),
        *(f"{keep_only(set_folder(each), [file.name for file in some])}" for each, some in sets.items()),
        *(f"touch {set_folder(sha256)}" for sha256 in sets),
        *(f"mkdir -p {quote(work)} || exit 1" for work in works),
    ]
