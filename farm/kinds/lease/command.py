"""`farm lease ...`: a phone of one's own for a while, and who holds which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag, call, call_and_emit
from farm.cli.output import now_of, print_json, print_line, print_table, when
from farm.common.durations import format_duration, parse_duration

if TYPE_CHECKING:
    from farm.client.lease import AsyncLease, HeldPhone
    from farm.kinds.lease.outcome import LeaseOutcome

app = typer.Typer(help="A phone of your own for a while: TVM key, adb server; who holds which phone.")
# Commands with the spec's options, which cost 0.25 s to import.
LAZY = dict.fromkeys(("acquire", "run"), "farm.kinds.lease.holding:app")

Which = Annotated[
    str, typer.Argument(help="A lease's id, its job's, or the device's name.", autocompletion=complete.leases)
]


@app.command()
def show(lease: Which, json: JsonFlag = False) -> None:
    """Show how to use a lease of yours: its addresses and its key."""
    with work.client() as farm:
        held = farm.lease_show(lease)
    if json:
        print_json(facts_of(held))
    else:
        print_lease(held.inner)


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


def facts_of(held: HeldPhone) -> dict[str, Any]:
    """A lease as JSON, its key included."""
    from farm.client.lease import HeldPhone

    facts = {field.name: getattr(held, field.name) for field in fields(HeldPhone)}
    return {**facts, "expires_at": held.expires_at.isoformat()}


def print_lease(held: AsyncLease) -> None:
    """Print the facts needed to use a lease."""
    rows = {
        "device": f"{held.device} ({held.serial})",
        "lease": f"{held.lease}, job {held.job}",
        "until": when(held.expires_at, held.now),
        "tvm": f'rpc.connect("{held.tvm_host}", {held.tvm_port}, key="{held.tvm_key}")',
        "adb": f"export ANDROID_ADB_SERVER_PORT={held.adb_port}",
    }
    for name, value in rows.items():
        print_line(f"{name:<8}{value}")


def print_job(outcome: LeaseOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the outcome of one lease, for `farm job show`."""
    held = "" if outcome.held_s is None else f"held for {format_duration(outcome.held_s)}"
    print_line(": ".join(filter(None, (held, outcome.reason))))
