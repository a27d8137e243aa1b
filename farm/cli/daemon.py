"""`farm serve`, `gate`, `reload`, `drain`, `uninstall`: the daemon, and the TVM port in a process that outlives it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag, call, connect
from farm.cli.output import emit, print_note
from farm.common.durations import parse_duration
from farm.common.errors import ExitCode, FarmError, UserError

PR_SET_PDEATHSIG = 1  # linux/prctl.h
GATE_SOCKET = Path("/run/farm-gate/gate.sock")
POLL_S = 0.5


def serve(
    config: Annotated[Path | None, typer.Option(help="TOML file; /etc/farm/farm.toml by default.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder of what must survive a restart.")] = None,
    runtime_dir: Annotated[Path | None, typer.Option(help="Folder of its sockets.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the TVM port.")] = None,
    port: Annotated[int | None, typer.Option(help="The one TVM port; 0 lets the kernel choose.")] = None,
    adb_socket: Annotated[str | None, typer.Option(help="adb server, as adb spells it: tcp:127.0.0.1:5038.")] = None,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C."""
    import asyncio

    from farm.common.systemd import Notifier
    from farm.config import FarmConfig, load

    begin(die_with_parent=die_with_parent, verbose=verbose)
    flags = {
        "state_dir": state_dir and str(state_dir),
        "runtime_dir": runtime_dir and str(runtime_dir),
        "tvm.host": host,
        "tvm.port": port,
        "adb.socket": adb_socket,
    }
    environ = dict(os.environ)

    def read(lab: str = "") -> FarmConfig:
        return load(config, environ=environ, flags=flags, lab=lab)

    settings = read()
    from farm.daemon.daemon import Daemon  # 2 s: a mistake in the configuration is reported before it

    asyncio.run(Daemon(settings, read, Notifier.from_environment()).run())


def gate(
    host: Annotated[str, typer.Option(help="Address of the TVM port, unless a socket is passed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The TVM port; 0 lets the kernel choose.", min=0, max=65535)] = 9190,
    socket: Annotated[Path, typer.Option(help="Where the daemon finds this gate ([tvm] gate).")] = GATE_SOCKET,
    wait_s: Annotated[
        str, typer.Option("--wait-s", metavar="DURATION", help="How long new clients wait for an absent daemon.")
    ] = "2m",
    child: Annotated[tuple[int, int] | None, typer.Option(hidden=True)] = None,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Hold the TVM port and its sessions for the daemon, in the foreground, until SIGTERM or Ctrl-C.

    Takes the listening sockets that a service manager passes (LISTEN_FDS) and binds the others itself.
    """
    import asyncio
    import signal

    from farm.common.systemd import Notifier
    from farm.tvm_server.gate.child import inherited_sockets
    from farm.tvm_server.gate.process import GateProcess, sockets_of

    begin(die_with_parent=die_with_parent, verbose=verbose)
    tvm, control = inherited_sockets(*child) if child else sockets_of(host, port, socket)

    async def serve() -> None:
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # there is nothing to read again, and its end would end sessions
        await GateProcess(parse_duration(wait_s, zero=True), Notifier.from_environment()).run(tvm, control, stop)

    asyncio.run(serve())


def begin(*, die_with_parent: bool, verbose: bool) -> None:
    """Set up a process that serves: its log, and its end together with its parent."""
    import ctypes
    import faulthandler
    import logging
    import signal

    from farm.common.phone_text import PlainFormatter
    from farm.common.systemd import JournalFormatter, journal_reads

    faulthandler.enable()  # SIGABRT is how systemd's watchdog ends it: where every thread stood goes into the journal
    if die_with_parent:  # `farm demo` must leave nothing behind, however it ends
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    handler = logging.StreamHandler()
    words = "%(levelname)-7s %(name)s: %(message)s"
    handler.setFormatter(JournalFormatter(words) if journal_reads() else PlainFormatter(f"%(asctime)s {words}"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def reload(json: JsonFlag = False) -> None:
    """Read the daemon's configuration again, without cutting any session (operators).

    It is checked as a whole first: if it has a mistake, the old one stays in force. `systemctl reload farm` and SIGHUP
    do the same; after SIGHUP only the log says what was wrong.
    """
    answer = call("reload")
    emit(answer, reload_lines(answer), json=json)


def reload_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The answer of `reload` for people."""
    applied, restart = answer["applied"], answer["restart"]
    yield f"in force now: {', '.join(applied)}" if applied else "nothing has changed that can be in force at once"
    for note in answer.get("notes", ()):
        yield f"note: {note}"
    if restart:
        yield f"after a restart: {', '.join(restart)}"
        yield "restart the daemon when it suits: jobs continue afterwards (a service: systemctl restart farm)"


def drain(
    wait: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Wait for the end of leases at most so long.", show_default=False),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Hand phones out again.")] = False,
    json: JsonFlag = False,
) -> None:
    """Hand out no phone any more; leases and jobs that run continue, requests wait (operators; docs/service.md).

    One phone: `farm device drain NAME`, which a restart does not end. This ends with `farm drain --end`, and with the
    daemon: after a restart phones are handed out again. Exit code 3 when phones are still leased.
    """
    limit_s = work.wait_s(wait) or 0.0
    answer = call("host.drain", on=not end)
    until = time.monotonic() + limit_s
    if answer["leases"] and not end and limit_s > 0:
        print_note(f"waiting for {len(answer['leases'])} leases ...")
        with connect() as client:
            while answer["leases"] and time.monotonic() < until:
                time.sleep(POLL_S)
                held = {row["name"] for row in client.call("device.list")["devices"] if row["holder"]}
                answer["leases"] = [lease for lease in answer["leases"] if lease["device"] in held]
    emit(answer, "phones are handed out again" if end else _drain_lines(answer), json=json)
    if answer["leases"] and not end:
        raise typer.Exit(ExitCode.NO_PHONE)


def _drain_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    for lease in answer["leases"]:
        yield f"{lease['device']}: {lease['user']} has had it for {lease['held_s']:.0f} s"
    yield "no phone is handed out any more" + ("" if answer["leases"] else "; none is leased")


def uninstall(
    yes: Annotated[bool, typer.Option("--yes", help="Confirm; without this nothing happens.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove everything farm put on every reachable phone and forget them all."""
    if not yes:
        ends = ", ".join(f"{user} on {device}" for user, device in _held_here())
        raise UserError(
            "this stops every phone's RPC server and removes farm from all phones",
            hint=f"add --yes; it ends the leases of {ends}" if ends else "add --yes",
        )
    answer = call("uninstall")
    ended = [f"ended {each['lease']}: {each['user']} on {each['device']}" for each in answer.get("ended", ())]
    cleaned = [f"cleaned {name}" for name in answer["cleaned"]]
    failed = [f"not cleaned {name}: {reason}" for name, reason in answer["failed"].items()]
    emit(answer, [*ended, *cleaned, *failed], json=json)
    raise typer.Exit(ExitCode.FAILED if answer["failed"] else ExitCode.OK)


def _held_here() -> list[tuple[str, str]]:
    """User and device of each lease at this daemon; none while it is away."""
    try:
        found = call("device.list")
    except FarmError:
        return []
    here = [row for row in found["devices"] if row.get("host", "") == found["host"]]
    return [(row["holder"], row["name"]) for row in here if row["holder"]]
