"""`farm store ...`: the database behind the daemon. With no daemon they work on the database itself."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli.connection import JsonFlag, call, connect
from farm.cli.output import emit
from farm.common.errors import Code, DaemonUnreachableError, ExitCode, UserError
from farm.common.files import publish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedWriter

    from farm.config import FarmConfig

app = typer.Typer(help="The database: check, copy, prune it (operators).")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The daemon's TOML file, while no daemon runs.")]
StateOption = Annotated[
    Path | None, typer.Option("--state-dir", help="The daemon's state folder, while no daemon runs.")
]


@app.command()
def check(config: ConfigOption = None, state_dir: StateOption = None, json: JsonFlag = False) -> None:
    """Look at every page, reference and rule of the database. Exits with 1 when something is wrong."""
    try:
        report = _ask("store.check", config, state_dir)
    except DaemonUnreachableError as unreachable:
        with _alone(config, state_dir, unreachable) as (_, where):
            from farm.store.maintenance import check_database

            report = check_database(where).to_wire()
    emit(report, _check_lines(report), json=json)
    if not report["ok"]:
        raise typer.Exit(ExitCode.FAILED)


def _check_lines(report: dict[str, Any]) -> Iterator[str]:
    rows = ", ".join(f"{count} {table}" for table, count in report["rows"].items() if count)
    yield f"{report['size_bytes'] / 1e6:.1f} MB: {rows}"
    if report["oldest"]:
        yield f"oldest job: {report['oldest'][:16].replace('T', ' ')} UTC"
    for finding in [*report["findings"], *filter(None, [report.get("problem")])]:
        yield f"wrong: {finding}"
    yield "sound" if report["ok"] else "not sound: farm store backup, then restore an older backup"


@app.command()
def backup(
    path: Annotated[Path | None, typer.Argument(help="A new file; by default beside the database.")] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Copy the database as it is at one moment, while the daemon serves.

    A copy at PATH is the caller's own file, of a remote daemon, too.
    """
    try:
        if path is None:
            answer = _ask("store.backup", config, state_dir)
        else:
            _refuse_options(config, state_dir)
            with _new_file(path) as file, connect() as client:
                client.save_backup(file)
    except DaemonUnreachableError as unreachable:
        with _alone(config, state_dir, unreachable) as (_, where):
            from farm.store.maintenance import back_up

            made = back_up(where)
            answer = {"path": str(made), "size_bytes": made.stat().st_size}
            if path is not None:
                with _new_file(path) as file, made.open("rb") as copy:
                    made.unlink()
                    shutil.copyfileobj(copy, file)
    if path is not None:
        answer = {"path": str(path.absolute()), "size_bytes": path.stat().st_size}
    emit(answer, f"{answer['path']} ({answer['size_bytes'] / 1e6:.1f} MB)", json=json)


@contextmanager
def _new_file(path: Path) -> Iterator[BufferedWriter]:
    """A new file that appears whole, for its owner alone.

    Raises:
        UserError: there is one, or it cannot be made.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        if path.exists():
            raise UserError(f"{path} exists already", hint="name a new file")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
        publish(part, path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        problem = f"there is no folder {path.parent}" if missing else f"cannot write {path}: {error.strerror}"
        raise UserError(problem, hint="name a file in a folder of yours with room") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@app.command()
def restore(
    copy: Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `farm store backup` made.")],
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Put a backup in the place of the database, while no daemon runs.

    The copy is checked first. The database of before stays beside it, and the new one belongs to the owner of the state
    folder. Jobs that were submitted after the backup are unknown then.
    """
    try:
        pid = _ask("status", config, state_dir)["pid"]
    except DaemonUnreachableError as unreachable:
        with _alone(config, state_dir, unreachable) as (_, where):
            from farm.store.maintenance import DUMP_HINT
            from farm.store.maintenance import restore as restore_database

            if isinstance(where, str):
                raise UserError("farm does not restore databases on a server", hint=DUMP_HINT) from None
            before = restore_database(copy, where)
    else:
        raise UserError(
            f"a daemon serves (pid {pid}); nothing was restored", Code.STATE_FOLDER_IN_USE,
            hint="stop it first: systemctl stop farm",
        )  # fmt: skip
    answer = {"path": str(where), "before": str(before or "")}
    lines = (f"{where} is {copy} now", *([f"the database of before is {before}"] if before else ()))
    emit(answer, lines, json=json)


@app.command()
def prune(
    keep_days: Annotated[
        float | None, typer.Option(min=0, max=36_500, help="Keep so many days; default: [store] keep_days.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Remove ended jobs with their results and logs, ended leases and events that are too old."""
    try:
        answer = _ask("store.prune", config, state_dir, keep_days=keep_days, dry_run=dry_run)
    except DaemonUnreachableError as unreachable:
        with _alone(config, state_dir, unreachable) as (farm, where):
            from farm.jobs.logs import AttemptLogs
            from farm.store.maintenance import prune_database

            pruned = prune_database(
                where,
                keep_days=farm.store.keep_days if keep_days is None else keep_days,
                max_mb=farm.store.max_mb,
                dry_run=dry_run,
                remove_logs=AttemptLogs(farm.state_dir / "logs").remove,
            )
            answer = pruned.to_wire()
    rows = f"{answer['jobs']} jobs, {answer['leases']} leases, {answer['events']} events"
    done = f"would remove {rows}" if dry_run else f"removed {rows}; freed {answer['freed_bytes'] / 1e6:.1f} MB"
    emit(answer, done, json=json)


def _ask(kind: str, config: Path | None, state_dir: Path | None, **fields: object) -> dict[str, Any]:
    """The daemon's answer.

    Raises:
        DaemonUnreachableError: none runs.
        UserError: one does, and another database may be meant.
    """
    _refuse_options(config, state_dir)
    return call(kind, **fields)


def _refuse_options(config: Path | None, state_dir: Path | None) -> None:
    """Raise UserError for options that name a database, while a daemon serves: another one may be meant."""
    if config is None and state_dir is None:
        return
    pid = call("status")["pid"]
    raise UserError(
        f"--state-dir and --config are for when no daemon runs, and one does (pid {pid})",
        hint="leave them out to ask it; for another database: farm --socket /nowhere store ...",
    )


@contextmanager
def _alone(
    config: Path | None, state_dir: Path | None, unreachable: DaemonUnreachableError
) -> Iterator[tuple[FarmConfig, Any]]:
    """The configuration and the database, while no daemon can start.

    Raises:
        HostError: one serves from it, but does not answer.
    """
    from farm.config import load
    from farm.store.files import StateFolderLock

    loaded = load(config, flags={"state_dir": state_dir and str(state_dir)})
    if not loaded.state_dir.is_dir():
        raise UserError(
            f"there is no state folder {loaded.state_dir}; {unreachable.message}",
            Code.NO_DATABASE,
            hint="--state-dir names the daemon's state folder, --config its configuration",
        )
    lock = StateFolderLock(loaded.state_dir)
    try:
        yield loaded, loaded.store.url or loaded.state_dir / "farm.db"
    finally:
        lock.close()
