"""`farm host`: the hosts of a lab. `token`, `join` and `remove` change the lab's database without a daemon."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm import RELEASE
from farm.cli.connection import JsonFlag, call
from farm.cli.lab_setup import MAX_HEADS, HostSetup, Listen, administrator_url, append_lines
from farm.cli.output import emit, local_time, print_note, table
from farm.cli.secret_input import TokenFile, read_token, without_password
from farm.common.durations import format_duration, many
from farm.common.errors import Code, HostError, UserError
from farm.common.files import write_durably
from farm.common.peers import user_name

if TYPE_CHECKING:
    from farm.config import FarmConfig
    from farm.store.host_token_policy import HostToken
    from farm.store.membership import OrderedBy

app = typer.Typer(help="The hosts of a lab: let one join, list, drain and remove them.")
DEFAULT_CONFIG = Path("/etc/farm/farm.toml")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The daemon's TOML file.")]
StateOption = Annotated[Path | None, typer.Option("--state-dir", help="The daemon's state folder.")]
UrlOption = Annotated[
    str,
    typer.Option(
        help="URL of the lab's database, with its administrator's role; default: the one that `farm lab create` kept.",
        callback=without_password,
    ),
]
ListenOption = Annotated[str, typer.Option(metavar="ADDRESS[:PORT]", help="This host's address for the other hosts.")]


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="Name of the new host.")],
    url: UrlOption = "",
    address: Annotated[
        str,
        typer.Option(help="URL of the database for the new host, if it needs another one.", callback=without_password),
    ] = "",
    json: JsonFlag = False,
) -> None:
    """Make a token with which one machine may join the lab within 24 hours (for operators)."""
    from farm.head.wire import PROTOCOL
    from farm.store.membership import new_token

    url = administrator_url(url)
    made, leads = new_token(url, name, RELEASE, PROTOCOL, _ordered_by(), address=address)
    emit({"name": name, "token": made.text(), "url": made.url}, made.text(), json=json)
    if json:
        return
    if not leads:
        print_note("its URL works on this machine only; for another machine add --address postgresql://...")
    print_note("on the new host: farm host join --listen ADDRESS")


@app.command()
def join(
    token_file: TokenFile = None,
    listen: ListenOption = "",
    write: Annotated[bool, typer.Option("--write", help="Write [store] and [lab] into the configuration.")] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Use a token: this machine is a host of the lab.

    --listen also sets up its service: configuration, units, a head on the first three hosts, and a restart (root).
    Without it, and without --write, the lines for the configuration are printed, this once.
    """
    from farm.config import load
    from farm.store.host_token_policy import HostToken

    found = HostToken.parse(read_token(token_file))
    if listen:
        _set_up(found, HostSetup(Listen.parse(listen), DEFAULT_CONFIG), json=json)
        return
    loaded = load(config, flags={"state_dir": state_dir and str(state_dir)}, optional=write)
    file = config or Path(os.environ.get("FARM_CONFIG") or DEFAULT_CONFIG)
    check_alone(loaded, file, write=write)
    url, _ = _use(found, loaded)
    lines = host_lines(url, found.name)
    if write:
        append_lines(file, lines)
    answer = {"name": found.name, "lab": found.lab, "written": str(file) if write else "", "config": lines}
    emit(answer, _joined_lines(found.name, file, lines, loaded, write=write), json=json)


def _set_up(found: HostToken, setup: HostSetup, *, json: bool) -> None:
    from farm.config import load

    loaded = load(None)
    check_alone(loaded, DEFAULT_CONFIG, write=True)
    with setup.stopped():
        url, hosts = _use(found, loaded)
        setup.configure(host_lines(url, found.name, setup.listen.url), url)
    answer = setup.start(head=hosts <= MAX_HEADS)
    done = f"this machine is the host {found.name} of the lab"
    emit({"lab": found.lab, "name": found.name, **answer}, (done, *setup.lines(answer)), json=json)


def _use(found: HostToken, loaded: FarmConfig) -> tuple[str, int]:
    """Use the token up: the database's URL for this host, and how many hosts the lab has now."""
    from farm.head.wire import PROTOCOL
    from farm.store.membership import join as use
    from farm.store.membership import with_passfile

    hosts = use(found, RELEASE, PROTOCOL, partial(keep_password, loaded.state_dir))
    return with_passfile(found.url, str(passfile_of(loaded.state_dir))), hosts


def host_lines(url: str, name: str, listen: str = "") -> list[str]:
    """The lines of the configuration that make a machine a host of a lab."""
    own = [f'listen = "{listen}"'] if listen else []
    return ["[store]", f'url = "{url}"', "", "[lab]", f'host = "{name}"', 'head = "apart"', *own]


def _joined_lines(name: str, file: Path, lines: list[str], loaded: FarmConfig, *, write: bool) -> Iterator[str]:
    yield f"this machine is the host {name} of the lab; its password is in {loaded.state_dir / 'keys'}"
    if write:
        yield f"its configuration is in {file}; now restart the daemon: systemctl restart farm"
    else:
        yield f"now write this into {file}, then restart the daemon (systemctl restart farm):"
        yield from lines
    yield 'so that other hosts reach it, also in [lab]: listen = "tcp://ADDRESS:9194"'
    if (loaded.state_dir / "farm.db").exists():
        yield f"{loaded.state_dir / 'farm.db'} stays as it is and is not moved: adopt the phones of this host again"


@app.command("list")
def list_(json: JsonFlag = False) -> None:
    """Every host: address, state, whether this host reaches it, latest beat, phones, release."""
    answer = call("host.list")
    rows = (
        (
            row["name"] + (" (this one)" if row["name"] == answer["own"] else ""), row["address"] or "-", row["state"],
            row["reach"] or "-",
            "-" if row["silent_s"] is None else f"{format_duration(row['silent_s'])} ago", row["phones"],
            row["version"] or "-", row["protocol"], row["drained"] or "-",
        )
        for row in answer["hosts"]
    )  # fmt: skip
    none = "this host belongs to no lab: docs/many-hosts.md" if not answer["own"] else "no host has begun yet"
    titles = ("HOST", "ADDRESS", "STATE", "REACH", "BEAT", "PHONES", "FARM", "PROTOCOL", "DRAINED")
    tokens = (
        f"a token lets {each['name']} join until {local_time(each['expires_at'])} (made by {each['made_by']})"
        for each in answer["tokens"]
    )
    problems = (f"warning: {each}" for each in answer["problems"])
    emit(answer, (*table(titles, rows, none=none), *tokens, *problems), json=json)


@app.command()
def drain(
    name: Annotated[str, typer.Argument(help="The host.")],
    undo: Annotated[bool, typer.Option("--undo", help="Hand its phones out again.")] = False,
    json: JsonFlag = False,
) -> None:
    """Hand out no phone of a host any more; its leases and running jobs continue. `farm drain` is for this host."""
    answer = call("host.drain", on=not undo, host=name)
    left = len(answer["leases"])
    rest = f"; {many(left, 'lease')} there {'continues' if left == 1 else 'continue'}" if left else ""
    done = f"phones of {name} are handed out" if undo else f"no phone of {name} is handed out{rest}"
    emit(answer, done, json=json)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The host, or the name in an unused token.")],
    url: UrlOption = "",
    force: Annotated[bool, typer.Option("--force", help="Also while it runs, or has the lab's only head.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove a drained or stopped host: it loses the database, its leases end, its jobs continue elsewhere."""
    from farm.store.membership import remove as take_out

    removed = take_out(administrator_url(url), name, _ordered_by(), force=force)
    answer = {"name": removed.name, "had_role": removed.had_role, "connections": removed.connections}
    lines = [f"{name} is no host of the lab any more; {many(removed.connections, 'connection')} ended"]
    if not removed.had_role:
        lines.append(
            f"warning: {name} has the password of the lab's own database role: change that, or its daemon comes back"
        )
    emit(answer, lines, json=json)


def _ordered_by() -> OrderedBy:
    from farm.store.membership import OrderedBy

    uid = int(os.environ.get("SUDO_UID", os.getuid()))
    return OrderedBy(user_name(uid), f"uid {uid} on {socket.gethostname()}")


def check_alone(loaded: FarmConfig, file: Path, *, write: bool) -> None:
    """Whether this machine may join, before anything is changed.

    Raises:
        UserError: it belongs to a lab, or its configuration cannot be written.
    """
    if loaded.store.url or loaded.lab.host:
        raise UserError(
            f"this machine has a database already: [store] url or [lab] host in {file}",
            Code.DATABASE_UNUSABLE,
            hint="remove these lines first, if it shall belong to this lab instead",
        )
    text = file.read_text() if file.is_file() else ""
    if write and any(line.strip() in ("[store]", "[lab]") for line in text.splitlines()):
        raise UserError(f"{file} has a [store] or [lab] already", hint="without --write it prints the lines to add")
    if write and not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"{file} cannot be written by this user", hint="sudo, or without --write")


def passfile_of(state_dir: Path) -> Path:
    """The file with the password of a host's own database role."""
    return state_dir / "keys" / "database.pass"


def keep_password(state_dir: Path, password: str) -> None:
    """Write the password file, readable by the daemon's user only: libpq refuses any other.

    Raises:
        HostError: it cannot be written.
    """
    passfile = passfile_of(state_dir)
    try:
        owner = state_dir.stat() if state_dir.exists() else None
        passfile.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(passfile, f"*:*:*:*:{password}\n".encode(), 0o600)
        if os.geteuid() == 0 and owner is not None:
            for path in (passfile.parent, passfile):
                shutil.chown(path, owner.st_uid, owner.st_gid)
    except OSError as error:
        raise HostError(
            f"the password cannot be kept in {passfile}: {error.strerror}; nothing was changed",
            hint="make room there, or run it as root",
        ) from error
