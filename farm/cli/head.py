"""`farm head`: the process that decides about the phones and jobs of a lab of several hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from farm.cli.daemon import begin
from farm.common.errors import UserError


def head(
    config: Annotated[Path | None, typer.Option(help="TOML file; /etc/farm/farm.toml by default.")] = None,
    check: Annotated[bool, typer.Option("--check", hidden=True)] = False,
    die_with_parent: Annotated[bool, typer.Option("--die-with-parent", hidden=True)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Decide for a lab of several hosts which request gets which phone, in the foreground, until SIGTERM or Ctrl-C.

    It reads the hosts' configuration file and uses [store], [quota], [user.NAME], [jobs] workers and, for its /metrics,
    [web]. SIGHUP reads it again (systemctl reload farm-head). Run it on up to three hosts: one decides, and
    another takes over some seconds after that one has ended. docs/service.md
    """
    import asyncio

    from farm.common.systemd import Notifier
    from farm.config import FarmConfig, load

    begin(die_with_parent=die_with_parent, verbose=verbose)
    environ = dict(os.environ)

    def read(lab: str = "") -> FarmConfig:
        return load(config, environ=environ, lab=lab)

    settings = read()
    if not settings.store.url:
        raise UserError(
            "a head apart from the daemon needs a database on a server, and [store] url is empty",
            hint='[store] url = "postgresql://..."; on one host with SQLite the daemon itself decides: farm serve',
        )
    if check:  # before a reload, whose answer a signal would not have
        return
    from farm.daemon.head import HeadService  # 1 s: a mistake in the configuration is reported before it

    asyncio.run(HeadService(settings, read, Notifier.from_environment()).run())
