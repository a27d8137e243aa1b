"""`farm alias`, `forward`, `reservation`, `usage`: keys of TVM clients, adb entries that stay, who has phones when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, call, call_and_emit
from farm.cli.output import emit, now_of, print_json, print_line, print_note, table
from farm.common.durations import format_duration, parse_duration, parse_since, parse_when

alias = typer.Typer(help="Aliases: keys that stock TVM clients ask for.")
forward = typer.Typer(
    help="adb forward/reverse entries that farm keeps alive. TVM needs none: the tracker's port is the way."
)

Alias = Annotated[str, typer.Argument(help="The key.", autocompletion=complete.aliases)]
Device = Annotated[str, typer.Argument(help="A device's name or adb serial.", autocompletion=complete.devices)]
Listen = Annotated[str, typer.Argument(help="The socket that listens, as adb spells it: tcp:9000.")]
reservation = typer.Typer(help="Reservations: phones that are kept for one user for a time.")


@alias.command("list")
def list_aliases(json: JsonFlag = False) -> None:
    """Every key, the phones that answer to it, and its selector if an operator set it."""
    answer = call("alias.list")
    cells = ((row["alias"], ", ".join(row["devices"]) or "-", row["selector"]) for row in answer["aliases"])
    none = "no aliases: farm alias set ALIAS SELECTOR"
    emit(answer, table(("ALIAS", "DEVICES", "SELECTOR"), cells, none=none), json=json)


@alias.command("set")
def set_alias(
    alias: Alias,
    selector: Annotated[
        str, typer.Argument(help="Which phones answer to it, e.g. gpu=adreno-740.", autocompletion=complete.selectors)
    ],
    json: JsonFlag = False,
) -> None:
    """Let every phone that matches SELECTOR answer to ALIAS."""
    answer = call("alias.set", alias=alias, selector=selector)
    emit(answer, f"{answer['alias']}: {', '.join(answer['devices']) or 'no phone now'}", json=json)
    if answer["alias"] != alias.lower():
        print_note(f"warning: the key is {answer['alias']}: letters, digits and . _ - only")
    if answer["no_match"]:
        print_note(f"warning: {answer['no_match']}")


@alias.command("remove")
def remove_alias(alias: Alias, json: JsonFlag = False) -> None:
    """Remove a key that an operator set."""
    call_and_emit("alias.remove", "removed {alias}", json=json, alias=alias)


@forward.command("add")
def add_entry(
    device: Device,
    listen: Listen,
    dial: Annotated[str, typer.Argument(help="The socket to dial on the other side: tcp:9000.")],
    reverse: Annotated[bool, typer.Option("--reverse", help="The phone listens, the host is dialled.")] = False,
    json: JsonFlag = False,
) -> None:
    """Keep a forward (or, with --reverse, a reverse) for as long as farm knows the phone."""
    done = "{kind} {device} {listen} -> {dial}"
    call_and_emit("forward.add", done, json=json, device=device, listen=listen, dial=dial, reverse=reverse)


@forward.command("list")
def list_entries(json: JsonFlag = False) -> None:
    """Every entry that farm keeps, and why it does not work now."""
    answer = call("forward.list")
    cells = ((row["device"], row["kind"], row["listen"], row["dial"], row["problem"]) for row in answer["tunnels"])
    none = "no forwards: farm forward add DEVICE LISTEN DIAL"
    emit(answer, table(("DEVICE", "KIND", "LISTEN", "DIAL", "PROBLEM"), cells, none=none), json=json)


@forward.command("remove")
def remove_entry(
    device: Device,
    listen: Listen,
    dialler_stopped: Annotated[
        bool,
        typer.Option(
            "--dialler-stopped",
            help="Nothing on the phone dials it any more: removing a reverse that is dialled aborts the adb server.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Remove an entry. A reverse is removed only once nothing dials it; until then it waits."""
    answer = call("forward.remove", device=device, listen=listen, dialler_stopped=dialler_stopped)
    waits = f"{answer['listen']} of {answer['device']} waits: {answer['waits']}"
    emit(answer, waits if answer["waits"] else f"removed {answer['listen']} of {answer['device']}", json=json)


@reservation.command("add")
def add_reservation(
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Selector of the phones: a name, pool=lab, gpu=adreno-740 ...",
            autocompletion=complete.selectors,
        ),
    ],
    user: Annotated[str, typer.Option(help="The user who gets them.")],
    duration: Annotated[str, typer.Option("--for", help="How long: 2h, 30m, 1d.")],
    start: Annotated[str, typer.Option("--from", help="From when: now, +30m, 14:00, 2026-05-01T14:00.")] = "now",
    note: Annotated[str, typer.Option(help="What for; others see it.")] = "",
    json: JsonFlag = False,
) -> None:
    """Keep phones for one user. Others get one only if their lease ends before the reservation starts."""
    parse_when(start, datetime.now().astimezone())  # a mistake is said without a daemon too
    starts_at = parse_when(start, now_of(call("reservation.list")).astimezone())
    ends_at = starts_at + timedelta(seconds=parse_duration(duration))
    window = {"starts_at": starts_at.isoformat(), "ends_at": ends_at.isoformat()}
    answer = call("reservation.add", selector=on, user=user, note=note, **window)
    row = answer["reservation"]
    emit(answer, f"{row['id']}: {', '.join(answer['devices'])} for {row['user']}, {_window(row)}", json=json)


@reservation.command("list")
def list_reservations(json: JsonFlag = False) -> None:
    """Reservations that are not over."""
    answer = call("reservation.list")
    rows = (
        (row["id"], row["selector"], row["user"], _window(row), row["note"] or "-") for row in answer["reservations"]
    )
    none = "no reservations: farm reservation add --on SELECTOR --user NAME --for 2h"
    emit(answer, table(("ID", "ON", "USER", "WHEN", "NOTE"), rows, none=none), json=json)


@reservation.command("remove")
def remove_reservations(
    reservations: Annotated[list[str], typer.Argument(help="Ids, from `farm reservation list`.")],
    json: JsonFlag = False,
) -> None:
    """Remove reservations."""
    removed = []
    try:
        for each in reservations:
            removed.append(call("reservation.remove", reservation=each)["reservation"])
            if not json:
                print_line(f"removed {removed[-1]['id']}")
    finally:
        if json and removed:
            print_json({"reservations": removed})


def _window(row: Mapping[str, Any]) -> str:
    if not (row["starts_at"] and row["ends_at"]):
        return "unknown"
    starts, ends = (datetime.fromisoformat(row[name]).astimezone() for name in ("starts_at", "ends_at"))
    until = f"{ends:%H:%M}" if starts.date() == ends.date() else f"{ends:%Y-%m-%d %H:%M}"
    return f"{starts:%Y-%m-%d %H:%M} to {until}"


def usage(
    since: Annotated[str, typer.Option(help="How long ago (7d, 12h) or a time (2026-05-01, 14:00).")] = "7d",
    until: Annotated[str, typer.Option(help="Until when; now if not given.", show_default=False)] = "",
    by: Annotated[Literal["user", "device", "source"], typer.Option(help="user, device or source.")] = "user",
    json: JsonFlag = False,
) -> None:
    """Sum up who used phones for how long; leases that have not ended count up to now."""
    now = datetime.now().astimezone()
    window = {"since": parse_since(since, now).isoformat()}
    if until:
        window["until"] = parse_since(until, now).isoformat()
    answer = call("usage", by=by, **window)
    total_s = sum(row["held_s"] + row["cleaned_s"] for row in answer["usage"])
    rows = (
        (
            row["name"], format_duration(row["held_s"]), format_duration(row["cleaned_s"]),
            f"{(row['held_s'] + row['cleaned_s']) / total_s:.0%}" if total_s else "-", row["leases"], row["jobs"],
        )
        for row in answer["usage"]
    )  # fmt: skip
    used = table((by.upper(), "HELD", "CLEANING", "SHARE", "LEASES", "JOBS"), rows)
    emit(answer, used if answer["usage"] else "no phone was used in that time", json=json)
