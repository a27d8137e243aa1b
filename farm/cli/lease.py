"""`farm lease ...`: who holds which phone, longer or no more; `farm/kinds/lease/command.py` leases one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, call, call_and_emit
from farm.cli.output import now_of, print_json, print_line, print_table, when
from farm.common.durations import format_duration, parse_duration

if TYPE_CHECKING:
    pass

app = typer.Typer(help="A phone of your own for a while: TVM key, adb server; who holds which phone.")
# Commands that need the spec or a client, which cost 0.25 s to import.
LAZY = dict.fromkeys(("acquire", "run", "show"), "farm.kinds.lease.command:app")

Which = Annotated[
    str, typer.Argument(help="A lease's id, its job's, or the device's name.", autocompletion=complete.leases)
]


@app.command()
def extend(
    lease: Which,
    duration: Annotated[str, typer.Option("--for", help="How much longer: 30m, 2h.")],
    json: JsonFlag = False,
) -> None:
    """Keep a phone longer."""
    answer = call("lease.extend", lease=lease, seconds=parse_duration(duration))
    if json:
        print_json(answer)
    else:
        print_line(f"{answer['lease']} ends {when(datetime.fromisoformat(answer['expires_at']), now_of(answer))}")


@app.command()
def release(lease: Which, json: JsonFlag = False) -> None:
    """Give a phone back: it is cleaned and checked for the next user."""
    call_and_emit("lease.release", "released {lease}", json=json, lease=lease)


@app.command("list")
def list_leases(json: JsonFlag = False) -> None:
    """Leased phones and waiting requests."""
    answer = call("lease.list")
    if json:
        print_json(answer)
        return
    now = now_of(answer)
    hosts = any("host" in row for row in answer["leases"])  # of a lab
    print_table(
        ("DEVICE", *(("HOST",) if hosts else ()), "LEASE", "USER", "SOURCE", "NOTE", "HELD", "ENDS", "SESSION"),
        (
            (
                row["device"], *((row.get("host", ""),) if hosts else ()), row["id"], row["user"], row["source"],
                row["note"] or row["key"] or row["job"] or "-", format_duration(row["held_s"]),
                when(datetime.fromisoformat(row["expires_at"]), now) if row["expires_at"] else "-",
                "open" if row["session"] else "-",
            )
            for row in answer["leases"]
        ),
        none="no leases: farm lease acquire --on SELECTOR",
    )  # fmt: skip
    for row in answer["waiting"]:
        print_line(f"waiting: {row['user']} for {row['selector']}, {format_duration(row['waited_s'])}")
    if answer["waiting_more"]:
        print_line(f"waiting: {answer['waiting_more']} more")


@app.command()
def kick(
    device: Annotated[str, typer.Argument(help="A device's name, or a lease's id.", autocompletion=complete.leases)],
    json: JsonFlag = False,
) -> None:
    """End a lease now (operators): its session is cut, the phone is cleaned and checked."""
    call_and_emit("lease.kick", "ended lease {id} on {device}", json=json, device=device)
