"""`farm usage`: who used what."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from farm.cli.context import JsonFlag, call, print_json, print_table, tell
from farm.core.durations import format_duration, parse_since


class By(StrEnum):
    """What use is summed by."""

    USER = "user"
    DEVICE = "device"
    DOOR = "door"


def usage(
    since: Annotated[str, typer.Option(help="How long ago (7d, 12h) or a time (2026-05-01, 14:00).")] = "7d",
    until: Annotated[str, typer.Option(help="Likewise; now if not given.", show_default=False)] = "",
    by: Annotated[By, typer.Option(help="user, device or door.")] = By.USER,
    json: JsonFlag = False,
) -> None:
    """Say who used phones for how long; what is still in somebody's hands counts up to now."""
    now = datetime.now().astimezone()
    window = {"since": parse_since(since, now).isoformat()}
    if until:
        window["until"] = parse_since(until, now).isoformat()
    answer = call("usage", by=by.value, **window)
    if json:
        print_json(answer)
        return
    if not answer["usage"]:
        tell("nobody used a phone in that time")
        return
    total_s = sum(row["held_s"] for row in answer["usage"])
    print_table(
        (by.value.upper(), "TIME", "SHARE", "LEASES", "JOBS"),
        (
            (
                row["name"], format_duration(row["held_s"]), f"{row['held_s'] / total_s:.0%}" if total_s else "-",
                row["leases"], row["jobs"],
            )
            for row in answer["usage"]
        ),
    )  # fmt: skip
