"""`farm submit FILE.toml`: the jobs of a spec file (docs/clients.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli import work
from farm.cli.context import JsonFlag, print_json, print_table, say
from farm.cli.interrupts import interruptible
from farm.core.durations import digits

if TYPE_CHECKING:
    from farm.client import Submitted
    from farm.client.outcomes import Outcome
    from farm.client.specfile import Planned


def submit(
    file: Annotated[Path, typer.Argument(help="A TOML file with one job, several, or a matrix.")],
    wait: Annotated[bool, typer.Option("--wait", help="Until all have ended; Ctrl-C cancels them.")] = False,
    key: Annotated[str, typer.Option(help="With the same key again, jobs that are the same are not added again.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be submitted; no daemon needed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Queue the jobs of a file, all or none; the files it names are uploaded.

    Exit code 3 when no phone matches one of them. With --wait: exit code 1 when a job failed, or the reason's code when
    all failed for one.
    """
    from farm.client.specfile import load

    planned = load(file)
    if dry_run:
        _print_plan(planned, json=json)
        return
    with work.client() as farm:
        submitted = farm.submit_file(file, key=key, must_match=True)
        for each in submitted:
            for warning in each.warnings:
                say(f"warning: {warning}")
        if not wait:
            if json:
                work.print_ids(submitted, json=True)
            else:
                _print_submitted(planned, submitted)
            return
        with interruptible():
            work.follow(farm, submitted, quiet=json)
        names = {job: plan.name for plan, each in zip(planned, submitted, strict=True) for job in each.ids}
        outcomes = [farm.job(job, fetch_outputs=False) for job in names]
    work.finish(
        outcomes, {}, json=json, show=lambda ended: _print_outcomes(names.values(), ended),
        more=lambda each: {"name": names[each.job.id]},
    )  # fmt: skip


def _print_plan(planned: Sequence[Planned], *, json: bool) -> None:
    if json:
        print_json([{"name": each.name, "after_tables": each.after, "spec": each.spec.to_wire()} for each in planned])
        return
    print_table(
        ("NAME", "KIND", "ON", "DEVICES", "WHAT", "AFTER"),
        (
            (
                each.name,
                each.spec.kind,
                each.spec.on,
                each.spec.devices,
                getattr(each.spec, "name", "") or getattr(each.spec, "command", "") or "-",
                ", ".join((*each.after, *each.spec.after)) or "-",
            )
            for each in planned
        ),
    )


def _print_submitted(planned: Sequence[Planned], submitted: Sequence[Submitted]) -> None:
    print_table(
        ("NAME", "KIND", "ON", "JOBS", "ID"),
        (
            (plan.name, plan.spec.kind, plan.spec.on, len(each.jobs), each.array or ", ".join(each.ids))
            for plan, each in zip(planned, submitted, strict=True)
        ),
    )


def _print_outcomes(names: Iterable[str], outcomes: Sequence[Outcome]) -> None:
    """One line a job with what came of it; each reason for failures once, on stderr."""
    print_table(
        ("NAME", "JOB", "DEVICE", "STATE", "RESULT"),
        (
            (name, each.job.id, each.device or "-", each.job.state, _result(each))
            for name, each in zip(names, outcomes, strict=True)
        ),
    )
    work.print_failures(outcomes)


def _result(outcome: Outcome) -> str:
    from farm.client.outcomes import BenchOutcome, RunOutcome, ShellOutcome

    if isinstance(outcome, BenchOutcome) and outcome.latency is not None:
        latency = outcome.latency
        median, low, high = (digits(each * 1000) for each in (latency.median_s, latency.low_s, latency.high_s))
        return f"median {median} ms ({low} .. {high})"
    if isinstance(outcome, ShellOutcome) and outcome.exit_code is not None:
        return f"exit code {outcome.exit_code}"
    if isinstance(outcome, RunOutcome) and outcome.ok:
        return f"farm job show {outcome.job.id}"
    return "-"
