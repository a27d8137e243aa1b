"""`farm store ...`: the database behind the daemon. With no daemon they work on the database itself."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli.context import JsonFlag, call, print_json, tell
from farm.core.errors import DaemonUnreachableError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm.config import FarmConfig

app = typer.Typer(help="The database: is it sound, copy it, prune it (operators).")

ConfigOption = Annotated[Path | None, typer.Option("--config", help="The daemon's TOML file, when none serves.")]
StateOption = Annotated[Path | None, typer.Option("--state-dir", help="The daemon's state folder, when none serves.")]


@app.command()
def check(config: ConfigOption = None, state_dir: StateOption = None, json: JsonFlag = False) -> None:
    """Look at every page, reference and rule of the database. Exits with 1 when something is wrong."""
    try:
        report = call("store.check")
    except DaemonUnreachableError as unreachable:
        with _alone(config, state_dir, unreachable) as (_, where):
            from farm.store.offline import check_database

            report = check_database(where).to_wire()
    if json:
        print_json(report)
    else:
        rows = ", ".join(f"{count} {table}" for table, count in report["rows"].items() if count)
        tell(f"{report['size_bytes'] / 1e6:.1f} MB: {rows}")
        if report["oldest"]:
            tell(f"oldest job: {report['oldest'][:16].replace('T', ' ')} UTC")
        for finding in [*report["findings"], *filter(None, [report.get("problem")])]:
            tell(f"wrong: {finding}")
        tell("sound" if report["ok"] else "not sound: farm store backup, then restore an older backup")
    if not report["ok"]:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def backup(
    path: Annotated[Path | None, typer.Argument(help="A new file; beside the database unless named.")] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Copy the database as it is at one moment, while the daemon serves."""
    to = path.absolute() if path else None
    try:
        answer = call("store.backup", path=str(to or ""))
    except DaemonUnreachableError as unreachable:
        with _alone(config, state_dir, unreachable) as (_, where):
            from farm.store.offline import back_up

            made = back_up(where, to)
            answer = {"path": str(made), "size_bytes": made.stat().st_size}
    if json:
        print_json(answer)
    else:
        tell(f"{answer['path']} ({answer['size_bytes'] / 1e6:.1f} MB)")


@app.command()
def prune(
    keep_days: Annotated[float | None, typer.Option(help="As configured ([store] keep_days) unless given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is too old.")] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
    json: JsonFlag = False,
) -> None:
    """Remove ended jobs with their results and logs, ended leases and events that are too old."""
    try:
        answer = call("store.prune", keep_days=keep_days, dry_run=dry_run)
    except DaemonUnreachableError as unreachable:
        with _alone(config, state_dir, unreachable) as (farm, where):
            from farm.jobs.logs import AttemptLogs
            from farm.store.offline import prune_database

            pruned = prune_database(
                where,
                keep_days=farm.store.keep_days if keep_days is None else keep_days,
                max_mb=farm.store.max_mb,
                dry_run=dry_run,
                remove_logs=AttemptLogs(farm.state_dir / "logs").remove,
            )
            answer = pruned.to_wire()
    if json:
        print_json(answer)
        return
    said = f"{answer['jobs']} jobs, {answer['leases']} leases, {answer['events']} events"
    tell(f"would remove {said}" if dry_run else f"removed {said}; freed {answer['freed_bytes'] / 1e6:.1f} MB")


@contextmanager
def _alone(
    config: Path | None, state_dir: Path | None, unreachable: DaemonUnreachableError
) -> Iterator[tuple[FarmConfig, Any]]:
    """The configuration and the database, while no daemon can start.

    Raises:
        StateFolderInUseError: one serves from it, but does not answer.
    """
    from farm.config import load
    from farm.store.lock import StateFolderLock
    from farm.store.offline import NoDatabaseError

    loaded = load(config, flags={"state_dir": state_dir and str(state_dir)})
    if not loaded.state_dir.is_dir():
        raise NoDatabaseError(
            f"there is no state folder {loaded.state_dir}; {unreachable.message}",
            hint="--state-dir names the daemon's state folder, --config its configuration",
        )
    lock = StateFolderLock(loaded.state_dir)
    try:
        yield loaded, loaded.store.url or loaded.state_dir / "farm.db"
    finally:
        lock.close()
