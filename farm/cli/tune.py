"""`farm tune MODEL --on SELECTOR --trials N`: search for fast schedules on one or several identical phones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import given, work
from farm.cli import model_options as m
from farm.cli.context import JsonFlag, print_table, say, tell
from farm.cli.records import write_curve
from farm.core.durations import format_duration
from farm.core.errors import UserError
from farm.core.limits import MAX_TRIALS
from farm.core.selector import HOST

if TYPE_CHECKING:
    from farm.client import Client, Event
    from farm.client.outcomes import Outcome

ENDED = {
    "trials": "all trials are done",
    "early_stop": "it did not get better any more",
    "timeout": "its time was over",
    "exhausted": "there was nothing new to try",
}


class CostModel(StrEnum):
    """What guesses which candidates are worth measuring."""

    XGB = "xgb"
    RANDOM = "random"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune")(tune)


def tune(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    on: Annotated[str, typer.Option("--on", help="Which phones: label=value[,label=value...] or an alias; or: host.")],
    trials: Annotated[int, typer.Option(min=1, max=MAX_TRIALS, help="Candidates to measure.")] = 1000,
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
    priority: work.Priority = work.PRIORITY,
    deadline: work.Deadline = None,
    max_attempts: work.Attempts = work.MAX_TRIES,
    after: work.After = None,
    hold: work.Hold = False,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Search for fast schedules of a model's operators on identical phones; keep the records. Ctrl-C cancels.

    What was measured is never lost: an attempt that is killed goes on where it was, up to exactly so many trials.
    Exit code 1 when the search or the tuned model failed, 2 for bad input, 3 when no phone matches.
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

        given.nothing_is_queued({**options, "detach": detach, "timeout_s": None})  # a search ends by its time here, too

        tune_here(model, chosen, options, prior, output=output, plot=plot, json=json)
        return
    with work.client() as farm:
        spec = farm.tune_spec(model, prior=prior, **options, **chosen)
        live = Live(tty=sys.stderr.isatty())
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
                print_result(each.result, model.name, on, output)
        work.print_failures(outcomes)

    work.finish(outcomes, document, json=json, show=show)


class Live:
    """Lines as they come; at a terminal the search's standing overwrites itself."""

    def __init__(self, *, tty: bool, write: Callable[[str], object] | None = None) -> None:
        self._tty = tty
        self._write = write or sys.stderr.write
        self._open = False

    def show(self, event: Event, line: str) -> None:
        """Print a line about an event."""
        self.line(line, standing=isinstance(event.data.get("tuning"), Mapping))

    def line(self, line: str, *, standing: bool) -> None:
        """Print a line; `standing`: the next one replaces it."""
        if standing and self._tty:
            self._write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            self._open = True
        else:
            self.end()
            say(line)

    def end(self) -> None:
        """Begin a new line if there is one to end."""
        if self._open:
            self._write("\n")
            self._open = False


def print_result(result: Mapping[str, Any], name: str, on: str, output: Path | None) -> None:
    """Tasks, what it took, what it brought, and what to type next."""
    print_table(
        ("TASK", "WEIGHT", "TRIALS", "FAILED", "UNTUNED ms", "BEST ms", "GFLOPS"),
        (
            (
                row["name"], row["weight"], row["trials"], row["failed"],
                "-" if row["default_ms"] is None else f"{row['default_ms']:.4f}",
                "-" if row["best_ms"] is None else f"{row['best_ms']:.4f}",
                "-" if row["best_gflops"] is None else f"{row['best_gflops']:.2f}",
            )
            for row in result["tasks"]
        ),
    )  # fmt: skip
    tell()
    for line in summary_lines(result):
        tell(line)
    for note in result["notes"]:
        say(f"warning: {note}")
    kept = result["records"]
    where = kept.get("where") or f"version {kept['version']} of {kept['name']}"
    tell(f"records    {where}")
    if output is not None:
        tell(f"package    {output}")
    tell(f"next       {next_command(result, name, on, output)}")


def summary_lines(result: Mapping[str, Any]) -> list[str]:
    """What it took and what it brought."""
    earlier = f", {result['earlier_trials']} of them by earlier attempts" if result["earlier_trials"] else ""
    lines = [
        f"trials     {result['trials']} of {result['wanted_trials']}{earlier}: {ENDED[result['ended']]}",
        f"time       {format_duration(result['search_s'])} of search",
    ]
    alone = len(result["phones"]) == 1
    for phone in result["phones"]:
        shown = phone["factor"] and not alone
        factor = f", {phone['factor']:.3f} of the first phone's time for the same work" if shown else ""
        out = f"; left out: {phone['left_out']}" if phone["left_out"] else ""
        lines.append(f"phone      {phone['device']}: {phone['trials']} trials{factor}{out}")
    gain = result["speedup"]
    lines.append(
        f"latency    {gain['tuned_ms']:.3f} ms tuned, {gain['untuned_ms']:.3f} ms without, on {result['device']}"
    )
    doubt = "" if gain["answer"] in ("faster", "slower") else f": {gain['answer']}"
    if doubt and not gain["low"] <= 1 <= gain["high"]:
        doubt += f" by only {result['comparison']['pairs']} pairs of samples"
    between = f"{gain['low']:.2f} to {gain['high']:.2f}"
    lines.append(f"speed-up   {gain['times']:.2f} times ({gain['confidence']:.0%} interval {between}){doubt}")
    error = result.get("max_abs_error")
    if error is not None:
        lines.append(f"numbers    right: off by {error:.1e} at most")
    return lines


def next_command(result: Mapping[str, Any], name: str, on: str, output: Path | None) -> str:
    """What people do with a tuned model."""
    if output is not None:
        return f"farm bench {output} --on {on}" if on != HOST else f"farm run {output} --on host"
    if "version" in result["records"]:
        return f"farm records export {name} -o records.tar; farm bench {name} --on {on} --records records.tar"
    return f"farm records show {result['records']['where']}"


def _write(farm: Client, result: Mapping[str, Any], output: Path | None, plot: Path | None, name: str) -> None:
    if output is not None:
        farm.get_file(result["package"], output)
    if plot is not None:
        write_curve(plot, result["curve"], result["trials"], f"{name}: estimated latency")
