"""`farm gate`: the TVM port in a process of its own, so that sessions outlive a restart of the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_SOCKET = Path("/run/farm-gate/gate.sock")


def gate(
    host: Annotated[str, typer.Option(help="Address of the TVM port, unless a socket is passed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The TVM port; 0 lets the kernel choose.", min=0, max=65535)] = 9190,
    socket: Annotated[Path, typer.Option(help="Where the daemon finds this gate ([tvm] gate).")] = DEFAULT_SOCKET,
    wait_s: Annotated[float, typer.Option(help="How long newcomers wait for an absent daemon.", min=0.0)] = 120.0,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Hold the TVM port and its sessions for the daemon, in the foreground, until SIGTERM or Ctrl-C.

    Takes the listening sockets that a service manager passes (LISTEN_FDS); what is not passed is bound here.
    """
    import asyncio
    import signal

    from farm.cli.serve import begin
    from farm.notify import Notifier
    from farm.tracker.gate_process import GateProcess, sockets_of

    begin(die_with_parent=die_with_parent, verbose=verbose)
    tvm, control = sockets_of(host, port, socket)

    async def serve() -> None:
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        await GateProcess(wait_s, Notifier.from_environment()).run(tvm, control, stop)

    asyncio.run(serve())
