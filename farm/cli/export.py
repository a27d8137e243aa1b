"""`farm export` and `farm board`: stored results for other programs, and on one page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from farm.cli import complete
from farm.cli.connection import connect
from farm.cli.output import print_note, write_file
from farm.cli.secret_input import without_password
from farm.cli.stored_results import model_hashes, stored_results
from farm.common.durations import is_number, many, parse_since
from farm.common.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MLFLOW, BENCHER = "mlflow", "bencher"
MAIN_BRANCH = "main"
MAX_NAMED = 20  # branches in a message
WITH_SAMPLES = ("jsonl", "csv")
WITHOUT_BRANCHES = (BENCHER, "openmetrics")  # formats that have no field for the branch

Model = Annotated[
    str,
    typer.Argument(
        help="Only of this model: its name, its file, or the beginning of its SHA-256.", autocompletion=complete.models
    ),
]
Device = Annotated[
    str,
    typer.Option("--on", "--device", metavar="DEVICE", help="Only of this phone.", autocompletion=complete.devices),
]
Branch = Annotated[str, typer.Option(help="Only of sources of this branch; main has those of no branch, too.")]
Since = Annotated[str, typer.Option(help="None older: how long ago (7d, 12h) or a time (2026-05-01).")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file; stdout if not given.")]


def export(
    model: Model = "",
    format: Annotated[  # noqa: A002 (the option's public name)
        Literal["jsonl", "csv", "parquet", "bencher", "openmetrics", "mlflow"], typer.Option(help="What to write.")
    ] = "jsonl",
    device: Device = "",
    since: Since = "",
    branch: Branch = "",
    trusted: Annotated[bool, typer.Option("--trusted", help="Only results of that verdict.")] = False,
    samples: Annotated[
        bool, typer.Option("--samples", help="With jsonl and csv: also each sample, as long as the job is kept.")
    ] = False,
    output: Output = None,
    to: Annotated[
        str, typer.Option(metavar="URI", help="With mlflow: the tracking server.", callback=without_password)
    ] = "",
    experiment: Annotated[str, typer.Option(help="With mlflow: the experiment's name.")] = "farm",
) -> None:
    """Every stored result with its interval, verdict, phone and build, newest first, for other programs.

    A line is one metric of one job. Times are seconds, medians at the phone's nominal speed, but nanoseconds for
    Bencher, which gets the newest trusted result of each model, phone and build: it has no field for a verdict.
    OpenMetrics has the time of each result, for promtool tsdb create-blocks-from openmetrics. Both have no field for a
    branch, and get results of the main branch (main, master, none) if no other is named.

    Exit code 2 when nothing was measured.
    """
    if (format == MLFLOW) != bool(to):
        raise UserError("--format mlflow and --to URI go together", hint="farm export --format mlflow --to URI")
    if samples and format not in WITH_SAMPLES:
        raise UserError(f"--format {format} has no place for samples", hint="--format jsonl, or csv")

    rows: Iterable[Any] = _measured(model, device, since, trusted=trusted or format == BENCHER)
    if branch or format in WITHOUT_BRANCHES:
        rows = _of_branch(rows, branch)
    if format == MLFLOW:
        from farm.results.formats import log_runs, shown_uri

        logged, present = log_runs(rows, to, experiment)
        there = f"; {many(present, 'run')} there already" if present else ""
        print_note(f"{many(logged, 'run')} logged in experiment {experiment} of {shown_uri(to)}{there}")
        return
    from farm.results.formats import FORMATS

    if samples:
        rows = _with_samples(rows)
    if format == "parquet" and output is None and sys.stdout.isatty():
        raise UserError("a Parquet file is not for a terminal", hint="farm export --format parquet -o FILE")
    _write(FORMATS[format](rows), output)


def board(
    model: Model = "", device: Device = "", since: Since = "", branch: Branch = "", output: Output = None
) -> None:
    """One HTML page of models x phones: value, interval, verdict, sparkline, the last change of level; quality, too.

    Results are those of the main branch (main, master, none), if no other is named.

    The file needs no server and loads nothing. Exit code 2 when nothing was measured.
    """
    from farm.results.board import board_of, board_page

    rows = _of_branch(_measured(model, device, since, trusted=False), branch)
    _write([board_page(board_of(rows), datetime.now(UTC)).encode()], output)


def _measured(model: str, device: str, since: str, *, trusted: bool) -> Iterator[dict[str, Any]]:
    """Results, newest first; the daemon is asked for the first page at once.

    Raises:
        UserError: there are none.
    """
    oldest = parse_since(since, datetime.now().astimezone()) if since else None
    every = _stored(model, device, oldest)
    rows = _trusted(every) if trusted else every
    first = next(rows, None)
    if first is None:
        limits = {"of": model, "on": device, "since": since}
        which = "".join(f" {word} {value}" for word, value in limits.items() if value)
        raise UserError(
            f"there is no {'trusted ' if trusted else ''}result{which}", hint="farm bench measures; farm history MODEL"
        )
    return chain([first], rows)


def _of_branch(rows: Iterable[Mapping[str, Any]], branch: str) -> Iterator[Mapping[str, Any]]:
    """The rows of one branch; "": the main branch.

    Raises:
        UserError: there are none.
    """
    from farm.results.series import of_branch, side_branch

    branches: set[str] = set()

    def noted() -> Iterator[Mapping[str, Any]]:
        for row in rows:
            branches.add(side_branch(row) or MAIN_BRANCH)
            yield row

    found = of_branch(noted(), branch)
    first = next(found, None)
    if first is None:
        few = ", ".join(sorted(branches)[:MAX_NAMED]) + ", ..." * (len(branches) > MAX_NAMED)
        raise UserError(f"there is no result of branch {branch or MAIN_BRANCH}", hint=f"--branch, of: {few}")
    return chain([first], found)


def _trusted(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The trusted ones; at the end, the number of the others on stderr."""
    left_out = 0
    for row in rows:
        if row["verdict"] == "trusted":
            yield row
            continue
        left_out += 1
    if left_out:
        print_note(f"left out, as not trusted: {many(left_out, 'result')}")


def _with_samples(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows with the samples of their jobs, as measured; None where the job is gone."""
    with connect() as client:
        for row in rows:
            if not row.get("estimate"):  # of no bench
                yield {**row, "samples_s": None}
                continue
            try:
                result = client.call("job.show", job=row["job"])["result"] or {}
            except UserError as error:
                if error.code != "no_such_job":
                    raise
                result = {}
            samples = result.get("samples_s")
            yield {**row, "samples_s": list(filter(is_number, samples)) if isinstance(samples, list) else None}


def _stored(model: str, device: str, oldest: datetime | None) -> Iterator[dict[str, Any]]:
    with connect() as client:
        hashes = model_hashes(client, model) if model else [None]
        yield from merge(
            *(stored_results(client, sha256, device, oldest) for sha256 in hashes), key=lambda row: -row["seq"]
        )


def _write(chunks: Iterable[bytes], output: Path | None) -> None:
    if output is not None:
        data = b"".join(chunks)
        write_file(output, data)
        print_note(f"wrote {output}: {len(data):,} bytes")
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.flush()
