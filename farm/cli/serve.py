"""`farm serve`: the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from farm.config import FarmConfig

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def serve(
    config: Annotated[Path | None, typer.Option(help="TOML file; /etc/farm/farm.toml by default.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="What must survive a restart.")] = None,
    runtime_dir: Annotated[Path | None, typer.Option(help="Sockets.")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the TVM port.")] = None,
    port: Annotated[int | None, typer.Option(help="The one TVM port; 0 lets the kernel choose.")] = None,
    adb_socket: Annotated[str | None, typer.Option(help="adb server, as adb spells it: tcp:127.0.0.1:5038.")] = None,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Run the daemon in the foreground until SIGTERM or Ctrl-C."""
    import asyncio

    from farm.config import load
    from farm.daemon import Daemon
    from farm.notify import Notifier

    begin(die_with_parent=die_with_parent, verbose=verbose)
    flags = {
        "state_dir": state_dir and str(state_dir),
        "runtime_dir": runtime_dir and str(runtime_dir),
        "tvm.host": host,
        "tvm.port": port,
        "adb.socket": adb_socket,
    }
    environ = dict(os.environ)

    def read() -> FarmConfig:
        return load(config, environ=environ, flags=flags)

    asyncio.run(Daemon(read(), read, Notifier.from_environment()).run())


def begin(*, die_with_parent: bool, verbose: bool) -> None:
    """What a process that serves does first: where it logs to, and with whom it ends."""
    import ctypes
    import faulthandler
    import logging
    import signal

    from farm.core.log_format import PlainFormatter

    faulthandler.enable()  # SIGABRT is how systemd's watchdog ends it: where every thread stood goes into the journal
    if die_with_parent:  # `farm demo` must leave nothing behind, however it ends
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
