"""`farm drain`: hand out no phone any more and wait until none is out, for an upgrade."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from farm.cli.context import JsonFlag, call, connect, print_json, say, tell
from farm.core.errors import ExitCode

LOOK_EVERY_S = 0.5


def drain(
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for leases.")
    ] = 0.0,
    end: Annotated[bool, typer.Option("--end", help="Hand phones out again.")] = False,
    json: JsonFlag = False,
) -> None:
    """Hand out no phone any more; leases and jobs that run go on, requests wait (operators; docs/service.md).

    It ends with `farm drain --end`, and with the daemon: after a restart phones are handed out again. Exit code 3 when
    phones are still out.
    """
    answer = call("host.drain", on=not end)
    until = time.monotonic() + wait_s
    if answer["leases"] and not end and wait_s > 0:
        say(f"waiting for {len(answer['leases'])} leases ...")
        with connect() as client:
            while answer["leases"] and time.monotonic() < until:
                time.sleep(LOOK_EVERY_S)
                held = {row["name"] for row in client.call("status")["devices"] if row["holder"]}
                answer["leases"] = [lease for lease in answer["leases"] if lease["device"] in held]
    if json:
        print_json(answer)
    elif end:
        tell("phones are handed out again")
    else:
        for lease in answer["leases"]:
            tell(f"{lease['device']}: {lease['user']} has had it for {lease['held_s']:.0f} s")
        tell("no phone is handed out any more" + ("" if answer["leases"] else "; none is out"))
    if answer["leases"] and not end:
        raise typer.Exit(ExitCode.NO_PHONE)
