"""`farm forward ...`: adb forwards and reverses that survive replugs, reboots and restarts."""

from __future__ import annotations

from typing import Annotated

import typer

from farm.cli import complete
from farm.cli.context import JsonFlag, act, call, print_json, print_table, tell

app = typer.Typer(
    help="adb forward/reverse entries that farm keeps alive. TVM needs none: the tracker's port is the way."
)

Device = Annotated[str, typer.Argument(help="A device's name or adb serial.", autocompletion=complete.devices)]
Listen = Annotated[str, typer.Argument(help="The socket that listens, as adb spells it: tcp:9000.")]


@app.command()
def add(
    device: Device,
    listen: Listen,
    dial: Annotated[str, typer.Argument(help="The socket that is dialled on the other side: tcp:9000.")],
    reverse: Annotated[bool, typer.Option("--reverse", help="The phone listens, the host is dialled.")] = False,
    json: JsonFlag = False,
) -> None:
    """Keep a forward (or, with --reverse, a reverse) for as long as farm knows the phone."""
    done = "{kind} {device} {listen} -> {dial}"
    act("forward.add", done, json=json, device=device, listen=listen, dial=dial, reverse=reverse)


@app.command("list")
def list_tunnels(json: JsonFlag = False) -> None:
    """Every entry farm keeps, and what keeps it from working now."""
    rows = call("forward.list")["tunnels"]
    if json:
        print_json(rows)
        return
    print_table(
        ("DEVICE", "KIND", "LISTEN", "DIAL", "PROBLEM"),
        ((row["device"], row["kind"], row["listen"], row["dial"], row["problem"]) for row in rows),
    )


@app.command()
def remove(
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
    """Give an entry up. A reverse goes only once nothing dials it; until then it waits."""
    answer = call("forward.remove", device=device, listen=listen, dialler_stopped=dialler_stopped)
    if json:
        print_json(answer)
    elif answer["waits"]:
        tell(f"{answer['listen']} of {answer['device']} waits: {answer['waits']}")
    else:
        tell(f"removed {answer['listen']} of {answer['device']}")
