"""What a person leaves on a phone: noted before they get it, removed after, through `lease.sh`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.adb.client import AdbClient
from farm.core.errors import PhoneError
from farm.fleet.phone_paths import LEASE
from farm.fleet.rpc_server import ScriptError, StuckProcessError

NOTE_TIMEOUT_S = 15.0  # two listings; a second on a phone with ten thousand files
TIDY_TIMEOUT_S = 60.0  # deleting gigabytes from flash takes its time
_EVIDENCE_CHARS = 2000
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Tidied:
    """What was done away with."""

    killed: int = 0  # processes
    removed: int = 0  # files and folders
    left: int = 0  # files that could not be removed


async def note(client: AdbClient, serial: str) -> str:
    """Note what is on the phone; done again under the same lease it changes nothing.

    Returns:
        The hash of the processes noted, for `tidy`; "" when the phone has no sha256sum.

    Raises:
        PhoneError: the script failed.
        AdbError: phone or link failed.
    """
    result = await client.shell(serial, f"sh {LEASE} begin", timeout_s=NOTE_TIMEOUT_S)
    words = result.text.split()
    if words[:1] != ["begun"]:
        raise PhoneError(
            "the phone could not note what is on it before the lease",
            hint="look at its storage: df /data, ls -l /data/local/tmp",
            evidence=result.said[-_EVIDENCE_CHARS:],
        )
    return words[-1] if _SHA256.fullmatch(words[-1]) else ""


async def tidy(client: AdbClient, serial: str, noted: str = "") -> Tidied:
    """Kill and remove what was not there at the note; `noted`: what `note` returned; "": no process is spared.

    Raises:
        StuckProcessError: something survives SIGKILL.
        ScriptError: the script is not there, or said something else.
        AdbError: phone or link failed.
    """
    result = await client.shell(serial, f"sh {LEASE} clean {noted}", timeout_s=TIDY_TIMEOUT_S)
    said = result.text.strip()
    if said.startswith("failed"):
        raise StuckProcessError.of(said)
    return parse_tidied(result.said)


def parse_tidied(said: str) -> Tidied:
    """Read `cleaned killed=N removed=N left=N`.

    Raises:
        ScriptError: it says something else.
    """
    words = said.split()
    figures = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    counts = [figures.get(name, "") for name in ("killed", "removed", "left")]
    if words[:1] != ["cleaned"] or not all(count.isascii() and count.isdigit() and len(count) < 10 for count in counts):
        raise ScriptError("lease.sh did not say what it did", evidence=said[-_EVIDENCE_CHARS:])
    return Tidied(*map(int, counts))
