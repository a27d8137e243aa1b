"""`farm lease ...`: who holds which phone."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli.context import JsonFlag, call, print_json, print_table

app = typer.Typer(help="Leases: who holds which phone.")


@app.command("list")
def list_leases(json: JsonFlag = False) -> None:
    """Phones in someone's hands, and what waits."""
    answer = call("lease.list")
    if json:
        print_json(answer)
        return
    print_table(
        ("DEVICE", "LEASE", "USER", "DOOR", "KEY", "HELD", "SESSION"),
        (
            (
                row["device"], row["id"], row["user"], row["door"], row["key"] or "-", f"{row['held_s']:.1f}s",
                "open" if row["session"] else "-",
            )
            for row in answer["leases"]
        ),
    )  # fmt: skip
    for row in answer["waiting"]:
        typer.echo(f"waiting: {row['user']} for {row['selector']}, {row['waited_s']:.1f}s")


@app.command()
def kick(device: Annotated[str, typer.Argument(help="A device or lease id.")], json: JsonFlag = False) -> None:
    """End a lease now: its session is cut, the phone is cleaned and checked."""
    answer = call("lease.kick", device=device)
    if json:
        print_json(answer)
    else:
        typer.echo(f"ended lease {answer['id']} on {answer['device']}")
