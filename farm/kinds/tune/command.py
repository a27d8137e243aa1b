"""`farm tune MODEL --on SELECTOR --trials N`: search for fast schedules on identical phones, or on this host itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag
from farm.cli.local import cache_folder, scratch_folder, with_tvm
from farm.cli.output import plots, print_json, print_note, terminal
from farm.cli.output.terminal import interruptible
from farm.cli.records import kept_by, opened, write_curve
from farm.cli.spec_options import spec_options
from farm.common.durations import many
from farm.common.errors import ExitCode, UserError
from farm.common.files import check_writable, checked_file
from farm.common.selector import HOST
from farm.kinds.tune import TuneSpec
from farm.kinds.tune.summary import Typed, build_options, print_result, task_lines
from farm.model.specs import OUTPUT

if TYPE_CHECKING:
    from farm.client import Client, Event
    from farm.client.model import Outcome, Submitted
    from farm.kinds.outcomes import TuneOutcome

BAR_CELLS = 20
SEARCH = ("trials", "early_stop", "cost_model", "seed", "candidate_timeout_s")  # fields that a search here reads
STANDING_S = 10.0  # between two lines about the search where they stay


@spec_options(TuneSpec, leave_out=("records",))
def tune(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Which phones: label=value[,label=value...] or an alias; or: host.",
            autocompletion=complete.selectors,
        ),
    ],
    fields: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the tuned package, PACKAGE.farm.tar.", rich_help_panel=OUTPUT),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the tuning curve into this .svg.", rich_help_panel=OUTPUT)
    ] = None,
    wait: work.Wait = None,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Search for fast schedules of a model's operators on identical phones; keep the records. Ctrl-C cancels.

    What was measured is never lost: an attempt that is killed continues where it was, up to exactly so many trials; a
    search that is cancelled or fails keeps its trials, for --prior. Exit code 0 also when nothing faster was
    found, 1 when the search or the tuned model failed, 2 for bad input, 3 when no phone matches, 130 after Ctrl-C.
    """
    _check(model, output, plot, waits=not (detach or fields["hold"]))
    if on == HOST:
        # The time ends the search here, too; what comes before and after it takes as long as it takes.
        work.refuse_queue_options({**fields, "detach": detach, "wait": wait, "timeout_s": None})
        tune_here(model, fields, output=output, plot=plot, json=json)
        return
    with work.client() as farm:
        spec = farm.spec("tune", model=model, on=on, **fields)
        live = Live(tty=terminal.is_lively(sys.stderr))

        def finish(submitted: Submitted, outcomes: Sequence[Outcome]) -> NoReturn:
            live.end()
            for each in outcomes:
                if each.ok:
                    _write(farm, each.result, output, plot, model.name)
            document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
            work.finish(outcomes, document, json=json, show=partial(_print_outcomes, model=model, on=on, output=output))

        work.submit_to_end(farm, spec, finish, detach=detach, wait=wait, json=json, show=live.show)


def _check(model: Path, output: Path | None, plot: Path | None, *, waits: bool) -> None:
    """Refuse files that cannot be read or written before anything is submitted."""
    checked_file(model)
    if plot is not None and plot.suffix != ".svg":
        raise UserError(f"the plot {plot} is no .svg", hint="--plot curve.svg")
    if not waits and (plot is not None or output is not None):
        raise UserError(
            "--detach does not wait for what --plot and -o write", hint="later: farm job output, farm records show"
        )
    if output is not None:
        work.check_package_path(output)
    if plot is not None:
        check_writable(plot)
    if work.is_package(model):
        raise UserError(f"{model} is a package, compiled already", hint="tune the model file that it was made from")


def _print_outcomes(outcomes: Sequence[Outcome], *, model: Path, on: str, output: Path | None) -> None:
    for each in outcomes:
        if each.ok:
            typed = Typed(
                model=str(model), on=on, options=build_options(each.spec), output=output,
                job=each.job.id, prior=str((kept_by(each.job.id) or {}).get("set", "")),
            )  # fmt: skip
            print_result(each.result, typed)
    work.print_failures(outcomes)
    for each in outcomes:
        if not each.ok:
            work.print_kept(each.job.id)


class Live:
    """Lines as they come; at a terminal the search's standing overwrites itself, elsewhere only changes are printed."""

    def __init__(
        self, *, tty: bool, write: Callable[[str], object] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: monotonic seconds."""
        self._tty = tty
        self._write = write or sys.stderr.write
        self._clock = clock
        self._open = False
        self._last_line: tuple[object, bool] = None, False  # trials, and whether there are too few phones
        self._last_line_s = -STANDING_S
        self._tasks: dict[str, Any] = {}  # rows by name, as printed
        self._tasks_s = -STANDING_S

    def show(self, event: Event, line: str) -> None:
        """Print a line about an event."""
        standing = event.data.get("tuning")
        self.line(line, standing if isinstance(standing, Mapping) else None)

    def line(self, line: str, standing: Mapping[str, Any] | None) -> None:
        """Print a line; `standing`: a state of the search, which the next line replaces."""
        if standing is not None and not self._tty and not self._is_news(standing):
            return
        if standing is not None:
            self._print_tasks(standing)
        if standing is not None and self._tty:
            self._write(f"\r\x1b[K{self._drawn(line, standing)}")
            sys.stderr.flush()
            self._open = True
        else:
            self.end()
            print_note(line)

    def _drawn(self, line: str, standing: Mapping[str, Any]) -> str:
        """With a bar ahead of it, cut to one row of the terminal."""
        trials, wanted = standing.get("trials"), standing.get("wanted")
        ahead = ""
        if isinstance(trials, int) and isinstance(wanted, int) and wanted:
            ahead = plots.bar(trials / wanted, BAR_CELLS, terminal.glyphs(sys.stderr)) + " "
        return (ahead + line)[: terminal.columns(sys.stderr) - 1]

    def _print_tasks(self, standing: Mapping[str, Any]) -> None:
        """Those that changed, now and then."""
        done = standing.get("trials") == standing.get("wanted")
        lines = task_lines(standing, self._tasks)
        if not lines or not (done or self._clock() - self._tasks_s >= STANDING_S):
            return
        self._tasks, self._tasks_s = {row["name"]: row for row in standing["tasks"]}, self._clock()
        self.end()
        for line in lines:
            print_note(line)

    def _is_news(self, standing: Mapping[str, Any]) -> bool:
        trials, waits = standing.get("trials"), bool(standing.get("waits"))
        done = trials == standing.get("wanted") and trials != self._last_line[0]
        due = trials != self._last_line[0] and self._clock() - self._last_line_s >= STANDING_S
        if not (done or due or waits != self._last_line[1]):
            return False
        self._last_line, self._last_line_s = (trials, waits), self._clock()
        return True

    def end(self) -> None:
        """Begin a new line if there is one to end."""
        if self._open:
            self._write("\n")
            self._open = False


def _write(farm: Client, result: Mapping[str, Any], output: Path | None, plot: Path | None, name: str) -> None:
    if output is not None and result.get("package"):
        farm.get_file(result["package"], output)
    if plot is not None:
        write_curve(plot, result["curve"], result["trials"], f"{name}: estimated latency")


def tune_here(model: Path, fields: Mapping[str, Any], *, output: Path | None, plot: Path | None, json: bool) -> None:
    """Tune on this machine and print the result."""
    live = Live(tty=terminal.is_lively(sys.stderr))
    with scratch_folder() as folder:
        scratch = Path(folder)
        request = {
            "model": str(model.resolve()),
            "target": HOST if fields["target"] == "cpu" else fields["target"],
            "precision": fields["precision"],
            "shapes": fields["shapes"],
            "dtypes": fields["dtypes"],
            "cache": str(cache_folder()),
            "options": {
                **{name: fields[name] for name in SEARCH},
                **({"search_s": fields["timeout_s"]} if fields["timeout_s"] else {}),
            },
            "prior": _prior(fields["prior"], scratch),
            "output": str(output.resolve()) if output is not None else None,
        }
        result = _carried_out(request, scratch, live, model.name, quiet=json)
    if plot is not None:
        write_curve(plot, result["curve"], result["trials"], f"{model.name}: estimated latency")
    if json:
        print_json({"ok": True, **result})
    else:
        print_result(result, Typed(model=str(model), on=HOST, options=build_options(fields), output=output))


def _carried_out(request: Mapping[str, Any], scratch: Path, live: Live, name: str, *, quiet: bool) -> dict[str, Any]:
    folder, trials = "", 0  # of its records, in case that it is broken off

    def on_line(line: str) -> None:
        nonlocal folder, trials
        try:
            message = loads(line)
        except ValueError:
            return  # something else that TVM printed
        if not isinstance(message, dict):
            return
        folder = str(message.get("folder") or folder)
        if isinstance(message.get("tuning"), dict):
            trials = int(message["tuning"].get("trials", 0))
        if not quiet and ("step" in message or "log" in message):
            live.line(str(message.get("step") or message.get("log") or ""), message.get("tuning"))

    try:
        with interruptible():
            return with_tvm(
                "tune", f"tuning {name}", request, scratch, module="farm.kinds.tune.tune_here", on_line=on_line,
                after_crash="the same command continues where it was",
            )  # fmt: skip
    except KeyboardInterrupt:
        live.end()
        if folder and trials:
            print_note(f"{many(trials, 'trial')} kept in {folder}: the same command continues from them")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        live.end()


def _prior(which: str | None, scratch: Path) -> str | None:
    if which is None:
        return None
    from farm.compiler.record_files import write_records

    _, found = opened(which)
    write_records(found.set, scratch / "prior.tar")
    return str(scratch / "prior.tar")


def print_job(outcome: TuneOutcome, record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one tuning, for `farm job show`. `record_set`: the records that it has stored."""
    if outcome.speedup is None:
        return
    typed = Typed(
        model=str(outcome.spec["name"]), on=outcome.job.selector, options=build_options(outcome.spec),
        job=outcome.job.id, prior=str(record_set["set"]) if record_set else "",
    )  # fmt: skip
    print_result(outcome.result, typed)
