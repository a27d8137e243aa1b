"""`farm lab`: make a lab over a PostgreSQL server without a daemon, and set its configuration."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli.connection import JsonFlag, call
from farm.cli.daemon import reload_lines
from farm.cli.host import DEFAULT_CONFIG, ConfigOption, ListenOption, StateOption, check_alone, host_lines
from farm.cli.lab_setup import HostSetup, Listen, keep_administrator, make_database
from farm.cli.output import emit, print_note
from farm.cli.secret_input import without_password
from farm.common.errors import Code, FarmError, HostError, UserError

if TYPE_CHECKING:
    from farm.config import FarmConfig
    from farm.store.moving import Moved

STDIN = "-"

app = typer.Typer(help="A lab over a PostgreSQL server (operators).")


@app.command()
def create(
    listen: ListenOption,
    url: Annotated[
        str,
        typer.Option(
            help="postgresql://USER@HOST/DATABASE of an administrator; default: a database on this host's own server.",
            callback=without_password,
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of this host; default: its host name.")] = "",
    json: JsonFlag = False,
) -> None:
    """Make this host the first of a lab: database, configuration, units, head; then restart the service (root).

    What its store has moves into the database. The administrator's URL is kept for root alone, for `farm host token`.
    """
    from farm.config import load
    from farm.store.engine import shown_url

    setup = HostSetup(Listen.parse(listen), DEFAULT_CONFIG)
    loaded = load(None)
    check_alone(loaded, DEFAULT_CONFIG, write=True)
    name = name or _host_name()
    with setup.stopped():
        administrator = url or make_database(setup.listen)
        made = _make(loaded, administrator, name)
        if not made.own_url:
            raise UserError(
                f"{shown_url(administrator)} has a lab already, of {', '.join(made.hosts)}",
                hint=f"to join it, on one of them: farm host token {name}; here: farm host join --listen {listen}",
            )
        keep_administrator(administrator)
        setup.configure(host_lines(made.own_url, name, setup.listen.url), made.own_url)
    answer = setup.start(head=True)
    lines = (*made.lines(), *setup.lines(answer), "for each further host, here: farm host token NAME")
    emit({"lab": made.lab, "name": name, **answer}, lines, json=json)


@app.command()
def init(
    url: Annotated[
        str,
        typer.Option(
            help="postgresql://USER@HOST/DATABASE, an empty database; default: [store] url.", callback=without_password
        ),
    ] = "",
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Make a lab in an empty database of a PostgreSQL server, with all that a stopped daemon's SQLite store has.

    It moves everything or nothing. It copies the database aside first and changes neither it nor the configuration.
    After a kill, repeat it; after an upgrade, too: it brings a lab's tables and the rights of its hosts up to date.
    A role that may make roles gives this host one of its own; with another role the daemon logs in as that.
    """
    from farm.config import load
    from farm.store.engine import shown_url

    loaded = load(config, flags={"state_dir": state_dir and str(state_dir)})
    url = url or loaded.store.url
    if not url:
        raise UserError(
            "where to? neither --url nor [store] url names a database", hint="--url postgresql://USER@HOST/DATABASE"
        )
    name = loaded.lab.host or _host_name()
    made = _make(loaded, url, name)
    own = shown_url(made.own_url or url)
    moved = {} if made.moved is None else {"backup": str(made.moved.backup), "rows": dict(made.moved.rows)}
    before = made.moved is not None and made.moved.before
    answer = {"url": own, "backup": "", "rows": {}, **moved, "before": before, "lab": made.lab, "hosts": made.hosts}
    file = config or os.environ.get("FARM_CONFIG") or DEFAULT_CONFIG
    emit(answer, (*made.lines(), *(_next(file, own, name) if made.own_url else _joining(name, made.hosts))), json=json)


@app.command()
def config(
    file: Annotated[str, typer.Argument(help="TOML file, or - for standard input; without it: print.")] = "",
    json: JsonFlag = False,
) -> None:
    """Print the configuration that all hosts of the lab have alike, or set it (operators).

    It may have [quota], [user.NAME], [aliases], [[adopt]], [gates] and [jobs] workers. What it sets replaces those keys
    of each host's own file: on this host at once, on the others and the head within seconds. An empty file ends that.
    """
    if not file:
        answer = call("lab.config")
        emit(
            answer, answer["text"].splitlines() or ["# the lab has none: each host's own file has all keys"], json=json
        )
        return
    try:
        text = sys.stdin.read() if file == STDIN else Path(file).read_text("utf-8")
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "it is no text"
        raise UserError(f"cannot read {file}: {problem}", hint="name a TOML file, or - for standard input") from error
    try:
        answer = call("lab.set_config", text=text)
    except FarmError as error:
        from farm.config import LAB_CONFIG

        error.args = (error.message.replace(LAB_CONFIG, "standard input" if file == STDIN else file),)
        raise
    emit(answer, reload_lines(answer), json=json)


@dataclass(frozen=True, slots=True)
class Made:
    """A lab's database as it is now."""

    lab: str  # its id
    hosts: tuple[str, ...]  # that were in it before
    own_url: str  # for this host; "": it is none of the lab's hosts
    moved: Moved | None  # None: this host had nothing to move

    def lines(self) -> Iterator[str]:
        """What was done, for people."""
        if self.moved is None:
            yield "the lab's tables are there; this host has nothing to move"
        else:
            yield f"{'it was moved before' if self.moved.before else 'moved'}: {sum(self.moved.rows.values())} rows"
            yield f"the copy of before is {self.moved.backup}"


def _make(loaded: FarmConfig, url: str, name: str) -> Made:
    """Make the lab, or bring it up to date; move this host's store if it has one, and give the host a role.

    Args:
        loaded: this host's configuration.
        url: of the database, with its administrator's role.
        name: of this host.
    """
    from farm.cli.host import passfile_of
    from farm.head.wire import UNDERSTOOD
    from farm.store.membership import found_lab

    moves = not passfile_of(loaded.state_dir).exists() and (loaded.state_dir / "farm.db").exists()
    moved = _move(loaded, url) if moves else None
    lab, hosts = found_lab(url, UNDERSTOOD)
    joins = moved is None and hosts and name not in hosts
    return Made(lab, hosts, "" if joins else _login(loaded, url, name), moved)


def _joining(name: str, hosts: Sequence[str]) -> Iterator[str]:
    yield f"the lab has hosts: {', '.join(hosts)}; to join it, on one of them: farm host token {name} --url URL"
    yield "then here: farm host join --write"


def _next(file: Path | str, url: str, name: str) -> Iterator[str]:
    """The lines that the configuration needs, and the way to further hosts."""
    yield f"now write this into {file}, then start the daemon and `farm head`:"
    if "***" in url:
        yield "# *** is the password"
    yield from host_lines(url, name)
    yield "then, for each further host: farm host token NAME --url URL, with the administrator's role"


def _login(loaded: FarmConfig, url: str, name: str) -> str:
    """The URL for [store] url: with a role and a password file of this host's own, if `url` can make them."""
    from farm.cli.host import keep_password, passfile_of
    from farm.store.membership import first_login, with_passfile

    passfile = passfile_of(loaded.state_dir)
    own = first_login(url, name, partial(keep_password, loaded.state_dir), kept=passfile.exists())
    return with_passfile(own, str(passfile)) if own else url


def _move(loaded: FarmConfig, url: str) -> Moved:
    """Move the store while no daemon can start.

    Raises:
        UserError: one serves.
    """
    from farm.store.files import StateFolderLock
    from farm.store.moving import move_to_server

    path = loaded.state_dir / "farm.db"
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
        return move_to_server(path, url, lambda table, rows: print_note(f"{table}: {rows} rows") if rows else None)
    finally:
        lock.close()


def _host_name() -> str:
    return socket.gethostname().partition(".")[0].lower()
