"""`farm lab`: the lab's store on a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farm.cli.connection import JsonFlag
from farm.cli.output import emit, print_note
from farm.common.errors import Code, HostError, UserError

app = typer.Typer(help="The lab's store on a PostgreSQL server (operators).")


@app.callback()
def group() -> None:
    """Keep `init` a command of its group."""


@app.command()
def init(
    url: Annotated[
        str, typer.Option(help="postgresql://USER@HOST/DATABASE, an empty database; default: [store] url.")
    ] = "",
    config: Annotated[Path | None, typer.Option("--config", help="The daemon's TOML file.")] = None,
    state_dir: Annotated[Path | None, typer.Option("--state-dir", help="The daemon's state folder.")] = None,
    json: JsonFlag = False,
) -> None:
    """Move the SQLite store of a stopped daemon to a PostgreSQL server: all of it, or nothing.

    It copies the database aside first and changes neither it nor the configuration. After a kill, repeat it.
    """
    from farm.config import load
    from farm.store.files import StateFolderLock
    from farm.store.maintenance import there
    from farm.store.moving import move_to_server

    loaded = load(config, flags={"state_dir": state_dir and str(state_dir)})
    url = url or loaded.store.url
    if not url:
        raise UserError(
            "where to? neither --url nor [store] url names a database", hint="--url postgresql://USER@HOST/DATABASE"
        )
    path = there(loaded.state_dir / "farm.db")
    try:
        lock = StateFolderLock(loaded.state_dir)
    except HostError as error:
        if error.code != Code.STATE_FOLDER_IN_USE:
            raise
        raise UserError(
            f"a daemon serves from {loaded.state_dir}; nothing was moved",
            Code.STATE_FOLDER_IN_USE,
            hint="stop it first: systemctl stop farm",
        ) from error
    try:
        moved = move_to_server(path, url, lambda table, rows: print_note(f"{table}: {rows} rows") if rows else None)
    finally:
        lock.close()
    answer = {"url": moved.url, "backup": str(moved.backup), "rows": dict(moved.rows), "before": moved.before}
    emit(
        answer,
        (
            f"{'it was moved before' if moved.before else 'moved'}: {sum(moved.rows.values())} rows",
            f"the copy of before is {moved.backup}",
            f"now write this into {config or '/etc/farm/farm.toml'}, then start the daemon:",
            "[store]",
            f'url = "{moved.url}"' + ("    # *** is the password" if "***" in moved.url else ""),
        ),
        json=json,
    )
