"""`farm tune MODEL --on SELECTOR --trials N`: search for fast schedules on one or several identical phones."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import complete, given, plots, terminal, work
from farm.cli import model_options as m
from farm.cli.context import JsonFlag, say
from farm.cli.records import kept_by, write_curve
from farm.cli.tune_summary import Typed, build_options, print_result, task_lines
from farm.core.errors import UserError
from farm.core.limits import DEFAULT_TRIALS, MAX_TRIALS
from farm.core.selector import HOST

if TYPE_CHECKING:
    from farm.client import Client, Event
    from farm.client.outcomes import Outcome

BAR_CELLS = 20
STANDING_S = 10.0  # between two lines about the search where they stay
_NUMBER = re.compile(r"[0-9.]+")


class CostModel(StrEnum):
    """What guesses which candidates are worth measuring."""

    XGB = "xgb"
    RANDOM = "random"


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
    trials: Annotated[int, typer.Option(min=1, max=MAX_TRIALS, help="Candidates to measure.")] = DEFAULT_TRIALS,
    devices: Annotated[str, typer.Option(help="How many identical phones at once; all: as many as there are.")] = "1",
    early_stop: Annotated[
        int | None, typer.Option(min=1, max=MAX_TRIALS, help="End after so many trials without a better estimate.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="For all of it, the end included: 30m, 8h.")] = None,
    prior: Annotated[
        str | None, typer.Option(help="Records to begin with: a set's number, a model's name, a folder or .tar.")
    ] = None,
    cost_model: Annotated[CostModel, typer.Option(help="What chooses candidates.")] = CostModel.XGB,
    target: m.Target = "cpu",
    precision: m.PrecisionOption = m.Precision.FLOAT32,
    shape: m.Shapes = None,
    dtype: m.Dtypes = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    candidate_timeout: Annotated[
        float, typer.Option(min=0.5, max=600, help="Seconds for one candidate on a phone.")
    ] = 10.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the tuned package, PACKAGE.farm.tar.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the tuning curve into this .svg.")] = None,
    quiesce: work.Quiesce = None,
    priority: work.Priority = work.PRIORITY,
    deadline: work.Deadline = None,
    max_attempts: work.Attempts = work.MAX_TRIES,
    after: work.After = None,
    hold: work.Hold = False,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Search for fast schedules of a model's operators on identical phones; keep the records. Ctrl-C cancels.

    What was measured is never lost: an attempt that is killed goes on where it was, up to exactly so many trials; of a
    search that is cancelled or fails the trials so far are kept, for --prior. Exit code 0 also when nothing faster was
    found, 1 when the search or the tuned model failed, 2 for bad input, 3 when no phone matches, 130 after Ctrl-C.
    """
    work.checked(model)
    if plot is not None and plot.suffix != ".svg":
        raise UserError(f"the plot {plot} is no .svg", hint="--plot curve.svg")
    if (detach or hold) and (plot is not None or output is not None):
        raise UserError(
            "--detach does not wait for what --plot and -o write", hint="later: farm job output, farm records show"
        )
    for written in (output, plot):
        given.writable(written)
    if given.is_package(model):
        raise UserError(f"{model} is a package, compiled already", hint="tune the model file that it was made from")
    chosen: dict[str, Any] = {
        "trials": trials,
        "early_stop": early_stop,
        "cost_model": cost_model.value,
        "seed": seed,
        "candidate_timeout_s": candidate_timeout,
    }
    options = work.job_options(on, devices, timeout, priority, deadline, max_attempts, after, hold)
    options |= {key: value for key, value in m.model_options(target, precision, shape, dtype, None).items() if value}
    if on == HOST:
        from farm.cli.tune_host import tune_here

        # A search ends by its time here, too.
        given.nothing_is_queued({**options, "detach": detach, "timeout_s": None, "quiesce": quiesce})
        tune_here(model, chosen, options, prior, output=output, plot=plot, json=json)
        return
    options["quiesce"] = quiesce
    with work.client() as farm:
        spec = farm.tune_spec(model, prior=prior, **options, **chosen)
        live = Live(tty=terminal.lively(sys.stderr))
        submitted = work.carried_out(farm, spec, detach=detach or hold, json=json, show=live.show)
        live.end()
        outcomes = farm.wait(submitted)
        for each in outcomes:
            if each.ok:
                _write(farm, each.result, output, plot, model.name)
    document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}

    def show(outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            if each.ok:
                typed = Typed(
                    model=str(model), on=on, options=build_options(spec.to_wire()), output=output, job=each.job.id,
                    prior=str((kept_by(each.job.id) or {}).get("set", "")),
                )  # fmt: skip
                print_result(each.result, typed)
        work.print_failures(outcomes)
        for each in outcomes:
            if not each.ok:
                work.say_kept(each.job.id)

    work.finish(outcomes, document, json=json, show=show)


class Live:
    """Lines as they come; at a terminal the search's standing overwrites itself, elsewhere only news of it is told."""

    def __init__(
        self,
        *,
        tty: bool,
        write: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: monotonic seconds."""
        self._tty = tty
        self._write = write or sys.stderr.write
        self._clock = clock
        self._open = False
        self._told: tuple[object, str] = None, ""  # trials, and why there are too few phones
        self._told_s = -STANDING_S
        self._tasks: dict[str, Any] = {}  # rows by name, as told
        self._tasks_s = -STANDING_S

    def show(self, event: Event, line: str) -> None:
        """Print a line about an event."""
        standing = event.data.get("tuning")
        self.line(line, standing if isinstance(standing, Mapping) else None)

    def line(self, line: str, standing: Mapping[str, Any] | None) -> None:
        """Print a line; `standing`: what it says of the search, for the next one replaces it."""
        if standing is not None and not self._tty and not self._is_news(standing):
            return
        if standing is not None:
            self._tell_tasks(standing)
        if standing is not None and self._tty:
            self._write(f"\r\x1b[K{self._drawn(line, standing)}")
            sys.stderr.flush()
            self._open = True
        else:
            self.end()
            say(line)

    def _drawn(self, line: str, standing: Mapping[str, Any]) -> str:
        """With a bar ahead of it, cut to one row of the terminal."""
        trials, wanted = standing.get("trials"), standing.get("wanted")
        ahead = ""
        if isinstance(trials, int) and isinstance(wanted, int) and wanted:
            ahead = plots.bar(trials / wanted, BAR_CELLS, terminal.glyphs(sys.stderr)) + " "
        return (ahead + line)[: terminal.columns(sys.stderr) - 1]

    def _tell_tasks(self, standing: Mapping[str, Any]) -> None:
        """Those that changed, now and then."""
        done = standing.get("trials") == standing.get("wanted")
        lines = task_lines(standing, self._tasks)
        if not lines or not (done or self._clock() - self._tasks_s >= STANDING_S):
            return
        self._tasks, self._tasks_s = {row["name"]: row for row in standing["tasks"]}, self._clock()
        self.end()
        for line in lines:
            say(line)

    def _is_news(self, standing: Mapping[str, Any]) -> bool:
        trials, waits = standing.get("trials"), _NUMBER.sub("", str(standing.get("waits", "")))
        done = trials == standing.get("wanted") and trials != self._told[0]
        due = trials != self._told[0] and self._clock() - self._told_s >= STANDING_S
        if not (done or due or waits != self._told[1]):
            return False
        self._told, self._told_s = (trials, waits), self._clock()
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
