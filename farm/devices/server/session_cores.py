"""Puts the processes of a phone's RPC session on cores, and into Android's group of the app in front (`cores.sh`)."""

from __future__ import annotations

from farm.adb.client import AdbClient
from farm.common.errors import Code, UserError
from farm.devices.server.phone_paths import CORES
from farm.devices.server.rpc_server import script_error
from farm.model.placement import core_ranges

PLACE_LIMIT_S = 20.0
_EVIDENCE_CHARS = 2000
_HINTS = {
    "cores": "other cores, or a rooted phone: Android's cpusets bind its shell user",
    "top-app": "leave out --top-app, or use a rooted phone: Android lets no shell user into that group",
}


async def place_session(client: AdbClient, serial: str, mask: int, *, top_app: bool) -> None:
    """Put the session's processes, with all threads that they have now, on the cores of a mask (0: as they are).

    Raises:
        UserError: the phone does not allow it.
        PhoneError: the phone does not show the session's processes.
        AdbError: phone or link failed.
    """
    words = f"{mask:x}" if mask else "-"
    said = await client.shell(
        serial, f"sh {CORES} {words}{' top-app' if top_app else ''}", timeout_s=PLACE_LIMIT_S
    )  # fmt: skip
    check_placed(said.text, mask)


def check_placed(text: str, mask: int) -> None:
    """Judge what `cores.sh` printed. Pure.

    Raises:
        UserError: the phone refused something, or a process has fewer cores than were asked for.
        PhoneError: there is no process.
    """
    found = 0
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        what, _, why = rest.partition(" ")
        if word == "refused" and what in _HINTS:
            asked = f"cores {core_ranges(mask)}" if what == "cores" else "the group top-app"
            raise UserError(
                f"the phone does not let the session have {asked}: {why or 'it does not say why'}",
                Code.PLACEMENT_REFUSED, hint=_HINTS[what], evidence=text[:_EVIDENCE_CHARS],
            )  # fmt: skip
        if word == "process":
            found += 1
            if mask and (lacking := mask & ~_hexadecimal(why)):
                raise UserError(
                    f"the phone keeps the session off cores {core_ranges(lacking)}", Code.PLACEMENT_REFUSED,
                    hint=_HINTS["cores"], evidence=text[:_EVIDENCE_CHARS],
                )  # fmt: skip
    if not found:
        raise script_error("cores.sh found no process that serves the session", evidence=text[:_EVIDENCE_CHARS])


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
