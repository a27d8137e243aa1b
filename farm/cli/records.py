"""`farm records ...`: sets of tuning records, those the farm keeps and those in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete
from farm.cli.connection import JsonFlag, call, connect
from farm.cli.output import emit, local_time, print_line, print_note, table, write_file
from farm.common.durations import format_duration, in_one_unit, many, with_unit
from farm.common.errors import UserError
from farm.kinds.tune.summary import used
from farm.model.identity import target_words

if TYPE_CHECKING:
    from farm.compiler.records import Best, RecordReading, RecordSet

app = typer.Typer(help="Tuning records of `farm tune`, to compile with or to continue from.")

Which = Annotated[
    str,
    typer.Argument(
        metavar="SET", help="A set's number, a model's name, or a folder or .tar.", autocompletion=complete.record_sets
    ),
]


@app.command("list")
def list_sets(
    name: Annotated[str, typer.Argument(help="Only sets of the model of that name.")] = "", json: JsonFlag = False
) -> None:
    """The sets that the farm keeps, the newest first."""
    answer = call("records.list", name=name)
    rows = (
        (
            row["set"], row["name"], row["version"], target_words(row["target"]), row["records"],
            local_time(row["at"], to="minutes"), row["user"] or "-", row["job"] or "-",
        )
        for row in answer["sets"]
    )  # fmt: skip
    titles = ("SET", "MODEL", "VERSION", "TARGET", "RECORDS", "KEPT", "USER", "JOB")
    none = "no records: farm tune keeps what its search measured"
    emit(answer, table(titles, rows, none=none), json=json)


@app.command()
def show(
    which: Which,
    plot: Annotated[Path | None, typer.Option(help="Also draw the tuning curve into this .svg.")] = None,
    json: JsonFlag = False,
) -> None:
    """The content of a set: each task's best, the phones, the course of the estimate."""
    from farm.compiler.records import best
    from farm.tuning.progress import replayed

    about, found = opened(which)
    records, estimate = found.set, replayed(found.set)
    if plot is not None:
        write_curve(plot, estimate.curve, len(records.records), f"{about.get('name', which)}: estimated latency")
    devices = Counter(origin.device for origin in records.origins.values() if origin.device)
    document = {
        **about,
        "records": len(records.records),
        "tasks": _rows(best(records)),
        "devices": devices,
        "curve": estimate.curve,
        "damage": [str(each) for each in (*found.damage, *found.torn)],
    }

    def lines() -> Iterator[str]:
        shown: dict[str, Callable[[Any], str]] = {"target": target_words, "at": local_time}
        for key in ("name", "version", "target", "user", "job", "at", "artifact"):
            if about.get(key):
                yield f"{key:9} {shown.get(key, str)(about[key])}"
        measured = ", ".join(f"{count} by {device}" for device, count in sorted(devices.items()))
        yield f"records   {len(records.records)}" + (f" ({measured})" if measured else "")
        if estimate.curve:
            trial, seconds, latency_s = estimate.curve[-1]
            yield f"estimate  {with_unit(latency_s * 1e3)}, since trial {trial} after {format_duration(seconds)}"
        yield from best_table(records)

    emit(document, lines(), json=json)


@app.command()
def merge(
    which: Annotated[list[str], typer.Argument(metavar="SET SET...", help="Numbers, names, folders, .tar files.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder or .tar; without, the farm keeps it.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """One set of several: of the same candidate the fastest measurement stays."""
    from farm.compiler.record_files import packed, write_records
    from farm.compiler.records import best
    from farm.compiler.records import merge as merged

    if len(which) < 2:
        raise UserError("one set alone is merged already", hint="farm records merge A B -o C")
    sources = [opened(each) for each in which]
    result = merged([found.set for _, found in sources])
    answer: dict[str, Any] = {
        "records": len(result.records),
        "tasks": len(best(result)),
        "damage": [
            f"{name}: {each}"
            for name, (_, found) in zip(which, sources, strict=True)
            for each in (*found.damage, *found.torn)
        ],
    }
    if output is not None:
        write_records(result, output)
        answer["file"] = str(output)
    else:
        about = _same_model([about for about, _ in sources], which)
        with connect() as client:
            artifact = client.put_artifact(packed(result))
            answer |= client.call(
                "records.keep", model=about["model"], name=about["name"], target=about["target"],
                artifact=artifact, records=len(result.records), best={"tasks": _rows(best(result))},
            )  # fmt: skip
    where = f"in {output}" if output is not None else f"kept as version {answer['version']}"
    emit(answer, f"{many(answer['records'], 'record')} of {many(answer['tasks'], 'task')}, {where}", json=json)


@app.command()
def export(
    which: Which,
    output: Annotated[Path, typer.Option("--output", "-o", help="A folder (MetaSchedule's own form) or a .tar.")],
) -> None:
    """Write a set as files that stock TVM reads: ms.database.JSONDatabase(work_dir=FOLDER)."""
    from farm.compiler.record_files import write_records

    _, found = opened(which)
    write_records(found.set, output)
    print_line(f"{many(len(found.set.records), 'record')} in {output}")


@app.command()
def best(
    which: Which,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write only these records, which compiling needs.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """The best record of each task."""
    from farm.compiler import records as r
    from farm.compiler.record_files import write_records

    _, found = opened(which)
    if output is not None:
        kept = r.pruned(found.set)
        write_records(kept, output)
        tasks = r.best(found.set)
        wrote = f"{many(len(kept.records), 'record')} of {many(len(tasks), 'task')}"
        print_note(f"wrote {wrote} to {output}{left_out(kept, tasks)}")
    emit({"tasks": _rows(r.best(found.set))}, best_table(found.set), json=json)


@app.command()
def remove(
    sets: Annotated[
        list[int],
        typer.Argument(
            metavar="SET...", help="Numbers that `farm records list` shows.", autocompletion=complete.record_sets
        ),
    ],
    json: JsonFlag = False,
) -> None:
    """Forget sets that the farm keeps (who tuned them, and operators); jobs that use them still can."""
    removed = [call("records.remove", set=number) for number in sets]
    lines = (
        f"removed set {row['set']}: version {row['version']} of {row['name']} for {target_words(row['target'])}"
        for row in removed
    )
    emit({"sets": removed}, lines, json=json)


def opened(which: str) -> tuple[dict[str, Any], RecordReading]:
    """A set by number, name or path: the farm's facts about it (none about a file), and its records.

    Damaged lines are reported on stderr.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    from farm.compiler.record_files import is_path, read_records

    path = Path(which)
    if is_path(path):
        if not path.exists():
            raise UserError(f"{which} does not exist", hint="farm records list shows what the farm keeps")
        return {}, _with_warnings(read_records(path), which)
    with connect() as client:
        about = client.call("records.show", set=which)
        about.pop("best", None)
        return about, _with_warnings(read_records(client.get_artifact(about["artifact"]), which), which)


def _with_warnings(found: RecordReading, which: str) -> RecordReading:
    for line in found.problems(which):
        print_note(f"warning: {line}")
    return found


def kept_by(job: str) -> dict[str, Any] | None:
    """The newest set of records that a tune job has kept."""
    return next(iter(call("records.list", job=job, limit=1)["sets"]), None)


def kept_words(kept: Mapping[str, Any]) -> str:
    """A line about the set of a tuning that did not end by itself: another tuning may continue from it."""
    many = kept["records"]
    return f"{many} trial{'s were' if many != 1 else ' was'} kept: --prior {kept['set']} continues from them"


def best_table(records: RecordSet) -> Iterator[str]:
    """A table of the tasks."""
    from farm.compiler.records import best

    return table(
        ("TASK", "WEIGHT", "TRIALS", "FAILED", "UNTUNED", "BEST", "GFLOPS", "USED", "PHONE"),
        (
            (
                each.name, each.weight, each.trials, each.failed,
                *in_one_unit([s * 1e3 if s else None for s in (each.default_s, each.seconds)], aligned=False),
                f"{each.gflops:.2f}" if each.gflops else "-",
                used(kept_own=each.kept_own), each.device or "-",
            )
            for each in best(records)
        ),
        spare=("WEIGHT", "GFLOPS"),
    )  # fmt: skip


def left_out(kept: RecordSet, tasks: Sequence[Best]) -> str:
    """Why of these tasks fewer have a record that compiling needs; "" when none is left out."""
    there = {each.workload for each in kept.records}
    missing = [each for each in tasks if each.workload not in there]
    none_ran = sum(each.seconds is None for each in missing)
    slower = len(missing) - none_ran
    why = [
        f"{slower} left out, whose best is no faster than TVM's own schedule without tuning" if slower else "",
        f"{none_ran} left out, of which no candidate ran" if none_ran else "",
    ]
    return "".join(f"; {each}" for each in why if each)


def write_curve(path: Path, curve: Any, trials: int, title: str) -> None:
    """Draw a tuning curve into a file.

    Raises:
        UserError: it cannot be written, or is no .svg.
    """
    from farm.cli.output.plots import svg

    if path.suffix != ".svg":
        raise UserError(f"the plot {path} is no .svg", hint="--plot curve.svg")
    write_file(path, svg(curve, trials, title).encode())


def _same_model(abouts: list[dict[str, Any]], which: list[str]) -> dict[str, Any]:
    for about, name in zip(abouts, which, strict=True):
        if not about:
            raise UserError(
                f"{name} is a file: whose records shall it become?", hint="-o FILE.tar writes the merged set"
            )
        if (about["model"], about["target"]) != (abouts[0]["model"], abouts[0]["target"]):
            raise UserError(
                f"{which[0]} and {name} are for different models or targets",
                hint="-o FILE.tar merges them all the same",
            )
    return abouts[0]


def _rows(tasks: Iterable[Best]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [{**asdict(each), "gflops": each.gflops} for each in tasks]
