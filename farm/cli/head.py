"""`farm head`: the process that decides about the phones and jobs of a lab of several hosts."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from farm.cli.daemon import begin
from farm.common.errors import UserError


def head(
    config: Annotated[Path | None, typer.Option(help="TOML file; /etc/farm/farm.toml by default.")] = None,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Decide for a lab of several hosts which request gets which phone, in the foreground, until SIGTERM or Ctrl-C.

    It reads the hosts' configuration file and uses [store], [quota], [user.NAME], [gates] and [jobs] workers. Run it on
    up to three hosts: one decides, and another takes over some seconds after that one has ended. docs/service.md
    """
    import asyncio
    import signal

    from farm.config import load

    begin(die_with_parent=die_with_parent, verbose=verbose)
    settings = load(config, environ=dict(os.environ))
    if not settings.store.url:
        raise UserError(
            "a head apart from the daemon needs a database on a server, and [store] url is empty",
            hint='[store] url = "postgresql://..."; on one host with SQLite the daemon itself decides: farm serve',
        )
    # These imports take a second, so mistakes in the configuration are reported before.
    from farm.common.systemd import Notifier
    from farm.config.lease_policy import lease_policy
    from farm.head.process import HeadProcess
    from farm.kinds import KINDS
    from farm.store.retention import Retention

    async def serve() -> None:
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        keep = settings.store
        audit_days = settings.control.audit_days
        retention = partial(Retention, keep_days=keep.keep_days, max_mb=keep.max_mb, audit_days=audit_days)
        notifier = Notifier.from_environment()
        await HeadProcess(keep.url, lease_policy(settings), KINDS, retention, notifier).run(stop)

    asyncio.run(serve())
