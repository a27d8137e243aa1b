"""The summary of a tuning, for people: its tasks, its cost, its gain, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.cli.output import print_line, print_note, print_table
from farm.common.durations import format_duration, in_one_unit, many, with_unit
from farm.common.limits import MAX_TRIALS
from farm.common.selector import HOST
from farm.measure.conditions import ratio_words
from farm.results.series import checked_against

MAX_TASKS = 12  # shown while it runs: those with the most work come first
MORE = 4  # times as many trials, where so many brought nothing
ENDED = {
    "trials": "all trials are done",
    "early_stop": "it did not get better any more",
    "timeout": "its time was over",
    "exhausted": "there was nothing new to try",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """The typed arguments, from which suggested follow-up commands are made."""

    model: str  # path
    on: str
    options: tuple[str, ...] = ()  # of the build
    output: Path | None = None
    job: str = ""  # "": on this host
    prior: str = ""  # the set of records that the job has kept


def build_options(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Options that build a model as a spec (its fields as JSON) does."""
    words: list[str] = []
    for name, usual in (("target", "cpu"), ("precision", "float32")):
        if given.get(name, usual) != usual:
            words += [f"--{name}", str(given[name])]
    for name, shape in (given.get("shapes") or {}).items():
        words += ["--shape", f"{name}:[{','.join(map(str, shape))}]"]
    for name, dtype in (given.get("dtypes") or {}).items():
        words += ["--dtype", f"{name}:{dtype}"]
    return tuple(words)


def print_result(result: Mapping[str, Any], typed: Typed) -> None:
    """Tasks, cost, gain, and the next command."""
    print_table(
        ("TASK", "WEIGHT", "TRIALS", "FAILED", "UNTUNED", "BEST", "GFLOPS", "USED"),
        (
            (
                row["name"], row["weight"], row["trials"], row["failed"],
                *in_one_unit([row["default_ms"], row["best_ms"]], aligned=False),
                "-" if row["best_gflops"] is None else f"{row['best_gflops']:.2f}",
                used(kept_own=row.get("kept_own", False)),
            )
            for row in result["tasks"]
        ),
        spare=("WEIGHT", "GFLOPS"),
    )  # fmt: skip
    print_line()
    for line in summary_lines(result):
        print_line(line)
    for note in result["notes"]:
        print_note(f"warning: {note}")
    kept = result["records"]
    where = kept.get("where") or f"version {kept['version']} of {kept['name']}"
    print_line(f"records    {where}")
    if typed.output is not None and result.get("package", True):
        print_line(f"package    {typed.output}")
        if "speedup" in result and _has_records(result) and not worth_it(result):
            print_note(f"warning: {typed.output} was measured no faster than a build without tuning")
    print_line(f"next       {next_command(result, typed)}")


def used(*, kept_own: bool) -> str:
    """Which schedule of a task the model is compiled with."""
    return "TVM's own" if kept_own else "best"


def task_lines(standing: Mapping[str, Any], shown: Mapping[str, Any] | None = None) -> list[str]:
    """How each task of a search stands: trials, the rate of the latest and of the best candidate; so many at most.

    `shown`: rows by name as they were shown before; those that are the same are left out.
    """
    rows = [row for row in standing.get("tasks", ()) if row["trials"] and (shown or {}).get(row["name"]) != row]
    lines = [f"  {row['name']}: {many(row['trials'], 'trial')}, {_rates(row)}" for row in rows[:MAX_TASKS]]
    return lines + ([f"  and {len(rows) - MAX_TASKS} tasks more"] if len(rows) > MAX_TASKS else [])


def _rates(row: Mapping[str, Any]) -> str:
    best_ms = f", {with_unit(row['best_ms'])}" if row["best_ms"] is not None else ""
    return f"latest {_rate(row['latest_gflops'])}, best {_rate(row['best_gflops'])}{best_ms}"


def _rate(gflops: float | None) -> str:
    return "-" if gflops is None else f"{gflops:.2f} GFLOPS"


def summary_lines(result: Mapping[str, Any]) -> list[str]:
    """The cost and the gain of a tuning."""
    earlier = f", {result['earlier_trials']} of them by earlier attempts" if result["earlier_trials"] else ""
    lines = [
        f"trials     {result['trials']} of {result['wanted_trials']}{earlier}: {ENDED[result['ended']]}",
        f"time       {format_duration(result['search_s'])} of search",
    ]
    if remote := result.get("builds", {}).get("remote"):
        lines.append(f"builds     {remote} by builders, {result['builds']['local']} on this host")
    alone = len(result["phones"]) == 1
    for phone in result["phones"]:
        shown = phone["factor"] and not alone
        factor = f", {phone['factor']:.3f} of the first phone's time for the same work" if shown else ""
        out = f"; left out: {phone['left_out']}" if phone["left_out"] else ""
        out += f"; lost: {lost}" if (lost := phone.get("lost")) else ""
        lines.append(f"phone      {phone['device']}: {many(phone['trials'], 'trial')}{factor}{out}")
    tasks = result["tasks"]
    if untried := sum(not row["trials"] for row in tasks):
        lines.append(
            f"untried    {untried} of {len(tasks)} tasks never had a candidate: --trials at least {len(tasks)}"
        )
    lines += _gain_lines(result)
    error = result.get("max_abs_error")
    if error is not None:
        lines.append(f"numbers    off by {error:.1e} at most from {checked_against(result)}")
    return lines


def worth_it(result: Mapping[str, Any]) -> bool:
    """Whether the tuned build is another one than the untuned, and was not measured slower, surely or not."""
    return "speedup" in result and _has_records(result) and result["speedup"]["times"] >= 1


def next_command(result: Mapping[str, Any], typed: Typed) -> str:
    """The next commands: for a tuned model that is worth it; else to search on."""
    if not worth_it(result):
        trials = min(MAX_TRIALS, max(len(result["tasks"]), MORE * result["wanted_trials"]))
        words = ["farm", "tune", typed.model, "--on", typed.on, *typed.options, "--trials", str(trials)]
        return shlex.join([*words, "--prior", typed.prior] if typed.prior else words)
    package = typed.output or Path(f"{Path(typed.model).stem}.farm.tar")
    if typed.on == HOST:
        done = ["farm", "run", str(package), "--on", HOST]
        return shlex.join(done if typed.output else ["farm", "records", "show", result["records"]["where"]])
    bench = shlex.join(["farm", "bench", str(package), "--on", typed.on])
    if typed.output is not None:
        return bench
    return f"{shlex.join(['farm', 'job', 'output', typed.job, '-o', str(package)])} && {bench}"


def _has_records(result: Mapping[str, Any]) -> bool:
    return bool(result.get("compile", {}).get("tuned", True))


def tasks_sentence(result: Mapping[str, Any]) -> str:
    """The time of all tasks together, beside the model's own time; "" where one of them has no times."""
    rows = [(row.get("weight", 1), row.get("default_ms"), row.get("best_ms")) for row in result.get("tasks") or ()]
    if not rows or not all(untuned and best for _, untuned, best in rows):
        return ""
    sums = [sum(each) for each in zip(*((n * ms, n * min(ms, best)) for n, ms, best in rows), strict=True)]
    untuned, used_times = in_one_unit(sums, aligned=False)
    return (
        f"{untuned} untuned, {used_times} with the schedules used: all tasks together, each timed "
        "alone while others are built; the model is timed whole, afterwards"
    )


def _times(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 100 else ratio_words(value)


def _gain_lines(result: Mapping[str, Any]) -> list[str]:
    if result.get("left_out"):
        package = "" if result.get("package") else "; there is no package"
        return [f"left out   the time was over at: {result['left_out']}{package}; a longer --timeout has it all"]
    gain = result["speedup"]
    if not _has_records(result):
        return [
            f"latency    {with_unit(gain['untuned_ms'])} on {result['device']}",
            "speed-up   none: no schedule was faster than TVM's own, so both builds are the same; try more trials",
        ]
    doubt = "" if gain["answer"] in ("faster", "slower") else f": {gain['answer']}"
    if doubt and not gain["low"] <= 1 <= gain["high"]:
        doubt += f" by only {result['comparison']['pairs']} pairs of samples"
    if gain["answer"] == "slower":
        doubt = ": SLOWER than untuned, do not use it; try more trials, or a quieter phone"
    between = f"{_times(gain['low'])} to {_times(gain['high'])}"
    tuned, untuned = in_one_unit([gain["tuned_ms"], gain["untuned_ms"]], aligned=False)
    together = tasks_sentence(result)
    return [
        *([f"tasks      {together}"] if together else []),
        f"latency    {tuned} tuned, {untuned} untuned, on {result['device']}",
        f"speed-up   {_times(gain['times'])} times ({gain['confidence']:.0%} interval {between}){doubt}",
    ]
