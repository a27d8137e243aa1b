"""`farm job show`: one job as a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from farm.cli import bench, compare, run, tune_summary
from farm.cli.context import local_time, print_table, tell
from farm.cli.records import kept_words
from farm.core.durations import format_duration


def print_page(shown: Mapping[str, Any], kept: Mapping[str, Any] | None = None) -> None:
    """The answer of `job.show`: who, where, why it waits or failed; its attempts; its result.

    `kept`: the set of records that the job, a tuning, has kept, as `records.list` tells it.
    """
    row = shown["job"]
    tell(f"{row['id']} is {row['state']}: {row['kind']} of {row['user']}, priority {row['priority']}")
    for name, value in _facts(shown):
        tell(f"  {name:<10}{value}")
    if kept and row["ended_at"] and row["state"] != "done":
        tell(f"  {'records':<10}{kept_words(kept)}")
    if shown["attempts"]:
        tell()
        print_table(
            ("ATTEMPT", "DEVICE", "STATE", "STARTED", "TOOK", "ERROR"),
            (
                (
                    each["number"], each["device"], each["state"], local_time(each["started_at"]),
                    _took(each["started_at"], each["ended_at"]), (each["error"] or {}).get("message", "-"),
                )
                for each in shown["attempts"]
            ),
        )  # fmt: skip
    if shown["result"]:
        tell()
        _print_result(shown, kept)


def print_standing(told: Mapping[str, Any] | None) -> None:
    """A running search: its latest line, and each task's rates."""
    if told is not None:
        tell()
        tell(str(told.get("step", "")))
        for line in tune_summary.task_lines(told["tuning"]):
            tell(line)


def _facts(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from farm.jobs.spec_words import unusual, what

    row, spec, error = shown["job"], shown["spec"], shown["job"]["error"] or {}
    yield from what(row, spec)
    if row["on"]:
        yield "ran on" if row["ended_at"] else "runs on" if row["state"] == "running" else "was on", row["on"]
    if row["array"]:
        yield "array", row["array"]
    if shown["after"]:
        yield "after", ", ".join(shown["after"])
    yield "submitted", local_time(row["submitted_at"])
    if row["ended_at"]:
        yield "ended", f"{local_time(row['ended_at'])}, after {_took(row['submitted_at'], row['ended_at'])}"
    if row["waits"]:
        yield "waits", row["waits"]
    for name, value in (("error", error.get("message")), ("hint", error.get("hint"))):
        if value:
            yield name, str(value)
    if options := ", ".join(unusual(spec)):
        yield "options", options


def _print_result(shown: Mapping[str, Any], kept: Mapping[str, Any] | None) -> None:
    """As the command that submits such jobs prints it."""
    from farm.client.outcomes import (
        BenchOutcome,
        CompareOutcome,
        LeaseOutcome,
        RunOutcome,
        ShellOutcome,
        TuneOutcome,
        outcome_from,
    )

    outcome = outcome_from(shown)
    match outcome:
        case RunOutcome():
            run.print_results([outcome])
            tell(f"outputs: farm job output {outcome.job.id} -o FILE.npz")
        case ShellOutcome():
            tell(f"exit code {outcome.exit_code}")
            for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
                if text:
                    tell(f"{name}:")
                    for line in text.rstrip().split("\n"):
                        tell(line)
        case LeaseOutcome():
            held = "" if outcome.held_s is None else f"held for {format_duration(outcome.held_s)}"
            tell(": ".join(filter(None, (held, outcome.reason))))
        case TuneOutcome() if outcome.speedup is not None:
            tune_summary.print_result(
                outcome.result,
                tune_summary.Typed(
                    model=str(outcome.spec["name"]),
                    on=outcome.job.selector,
                    options=tune_summary.build_options(outcome.spec),
                    job=outcome.job.id,
                    prior=str(kept["set"]) if kept else "",
                ),
            )
        case CompareOutcome() if outcome.answer:
            compare.print_results([outcome.result])
        case BenchOutcome() if outcome.latency is not None:
            bench.print_results([{**outcome.result, "device": outcome.device}])


def _took(started: str, ended: str | None) -> str:
    if not ended:
        return "-"
    seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)
