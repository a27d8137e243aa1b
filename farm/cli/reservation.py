"""`farm reservation ...`: phones that are kept for somebody for a time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from farm.cli import complete
from farm.cli.context import JsonFlag, call, print_json, print_table, tell
from farm.core.durations import parse_duration, parse_when

app = typer.Typer(help="Reservations: phones that are kept for somebody for a time.")


@app.command()
def add(
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Selector of the phones: a name, pool=lab, gpu=adreno-740 ...",
            autocompletion=complete.selectors,
        ),
    ],
    user: Annotated[str, typer.Option(help="Whom they are kept for.")],
    duration: Annotated[str, typer.Option("--for", help="How long: 2h, 30m, 1d.")],
    start: Annotated[str, typer.Option("--from", help="From when: now, +30m, 14:00, 2026-05-01T14:00.")] = "now",
    note: Annotated[str, typer.Option(help="What for; others see it.")] = "",
    json: JsonFlag = False,
) -> None:
    """Keep phones for one user; others get none of them that they would not have given back by then."""
    starts_at = parse_when(start, datetime.now().astimezone())
    ends_at = starts_at + timedelta(seconds=parse_duration(duration))
    answer = call(
        "reservation.add",
        selector=on,
        user=user,
        starts_at=starts_at.isoformat(),
        ends_at=ends_at.isoformat(),
        note=note,
    )
    if json:
        print_json(answer)
        return
    row = answer["reservation"]
    tell(f"{row['id']}: {', '.join(answer['devices'])} for {row['user']}, {_window(row)}")


@app.command("list")
def list_reservations(json: JsonFlag = False) -> None:
    """Reservations that are not over."""
    answer = call("reservation.list")
    if json:
        print_json(answer)
        return
    print_table(
        ("ID", "ON", "USER", "WHEN", "NOTE"),
        ((row["id"], row["selector"], row["user"], _window(row), row["note"] or "-") for row in answer["reservations"]),
    )


@app.command()
def remove(
    reservations: Annotated[list[str], typer.Argument(help="Ids, from `farm reservation list`.")],
    json: JsonFlag = False,
) -> None:
    """Take reservations back."""
    removed = []
    try:
        for each in reservations:
            removed.append(call("reservation.remove", reservation=each)["reservation"])
            if not json:
                tell(f"removed {removed[-1]['id']}")
    finally:
        if json and removed:
            print_json({"reservations": removed})


def _window(row: dict[str, Any]) -> str:
    starts, ends = (datetime.fromisoformat(row[name]).astimezone() for name in ("starts_at", "ends_at"))
    until = f"{ends:%H:%M}" if starts.date() == ends.date() else f"{ends:%Y-%m-%d %H:%M}"
    return f"{starts:%Y-%m-%d %H:%M} to {until}"
