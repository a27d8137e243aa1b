"""`farm ci`: benches and comparisons whose exit code says whether a model became slower, beyond what noise explains."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag, connect
from farm.cli.output import print_json, print_note, print_table, write_file
from farm.cli.output.terminal import interruptible
from farm.cli.spec_options import spec_options, with_one_placement
from farm.cli.stored_results import stored_results
from farm.common.errors import ExitCode, HostError, NoPhoneError, UserError
from farm.common.files import check_writable, checked_file
from farm.kinds.bench import BenchSpec
from farm.kinds.compare import CompareSpec

if TYPE_CHECKING:
    from farm.client import Client, Submitted
    from farm.client.model import Outcome
    from farm.model.specs import JobSpec
    from farm.results.ci import CiCase, FailLimit

app = typer.Typer(help="Checks for CI: did a model become slower than on another branch?")

LOOKED_BACK = 2000  # results of a phone, in which the baseline is looked for
CI_FILES = {"github": ".github/actions/farm/action.yml", "gitlab": ".gitlab/farm.yml"}
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

FailIf = Annotated[
    str, typer.Option("--fail-if", metavar="CONDITION", help="Exit with 1 when that is sure: slower by N %.")
]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit file.")]
Summary = Annotated[
    Path | None,
    typer.Option(
        "--summary", metavar="FILE", help="Append a Markdown table.", envvar=SUMMARY_VARIABLE, show_default=False
    ),
]
RequireAnswer = Annotated[
    bool, typer.Option("--require-answer", help="Exit with 125 where nothing is slower, but not all have an answer.")
]


@app.command()
@spec_options(BenchSpec, leave_out=("branch", "commit", "hold"), devices="all")
def bench(
    model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
    fields: dict[str, Any],
    fail_if: FailIf = "slower by 2 %",
    branch: Annotated[str, typer.Option(help="The branch of this result. Default: that of CI or git.")] = "",
    commit: Annotated[str, typer.Option(help="The commit of this result. Default: that of CI or git.")] = "",
    baseline: Annotated[
        str,
        typer.Option(metavar="BRANCH", help="Compare with results of it. Default: that of the pull request, or main."),
    ] = "",
    junit: Junit = None,
    summary: Summary = None,
    require_answer: RequireAnswer = False,
    wait: work.Wait = None,
    json: JsonFlag = False,
) -> None:
    """Bench a model, store the result under its branch, and compare it with stored results of the baseline's branch.

    What differs from run to run is part of the interval: the baseline needs 3 results, and 20 tell smaller changes.
    A phone that is slower is benched again, and only two slow results count.

    Exit code 1 when a phone is slower by more than --fail-if for sure, failed or computed wrong numbers; 0 when it
    is not, or cannot be told.
    """
    from farm.results.ci import CiAnswer, FailLimit, confirmed

    limit = FailLimit.parse(fail_if)
    checked_file(model)
    work.refuse_host(fields["on"], "ci bench")
    _check_files(junit, summary)
    fields["branch"], fields["commit"], baseline = _source(branch, commit, baseline)
    with work.client() as farm:
        spec = farm.spec("bench", model=model, **with_one_placement(fields, "farm ci bench"))
        _, outcomes = work.submit_and_wait(farm, spec, detach=False, wait=wait, json=json)
        cases = [_judged(each, model.name, baseline, limit) for each in outcomes]
        slower = {at: case.device for at, case in enumerate(cases) if case.answer is CiAnswer.SLOWER}
        again = _bench_again(farm, spec, slower, wait=wait, json=json) if slower else {}
    for at in slower:
        second = _judged(again[at], model.name, baseline, limit) if at in again else None
        cases[at] = confirmed(cases[at], second)
        outcomes[at] = again.get(at, outcomes[at])
    _finish(cases, outcomes, limit, junit, summary, require_answer=require_answer, json=json)


def _bench_again(
    farm: Client, spec: JobSpec, devices: Mapping[int, str], *, wait: str | None, json: bool
) -> dict[int, Outcome]:
    """Bench on each of the devices once more; those that are not to be had now are left out."""
    if not json:
        print_note(f"slower on {', '.join(devices.values())}: benched again, for one slow result may be chance")
    again: dict[int, Submitted] = {}
    with interruptible():
        for at, device in devices.items():
            try:
                again[at] = work.submit(farm, replace(spec, on=device, devices=1))
            except NoPhoneError as error:
                print_note(error.message)
        try:
            if again:
                work.follow(farm, list(again.values()), quiet=json, limit_s=work.wait_s(wait))
        except NoPhoneError as error:  # within --wait
            print_note(error.message)
    outcomes = {at: farm.job(submitted.ids[0], fetch_outputs=False) for at, submitted in again.items()}
    return {at: outcome for at, outcome in outcomes.items() if outcome.job.state != "cancelled"}


def _judged(outcome: Outcome, model: str, baseline: str, limit: FailLimit) -> CiCase:
    """A bench against the baseline among the newest results of its phone."""
    from farm.results.ci import judged

    if not outcome.ok:
        return _failed(outcome, model)
    with connect() as client:
        rows = list(islice(stored_results(client, None, outcome.device), LOOKED_BACK))
    new = next((row for row in rows if row["job"] == outcome.job.id), None)
    if new is None:
        raise HostError(f"the result of {outcome.job.id} is not stored any more", hint="farm store check")
    return judged(new, rows, baseline, limit)


@app.command()
@spec_options(CompareSpec, leave_out=("hold", "settings", "settings_b"), devices="all")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="The baseline: a model file or a package.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The new one.")],
    fields: dict[str, Any],
    fail_if: FailIf = "slower by 2 %",
    junit: Junit = None,
    summary: Summary = None,
    require_answer: RequireAnswer = False,
    wait: work.Wait = None,
    json: JsonFlag = False,
) -> None:
    """Time two builds in turns on the same phones: smaller changes are told than by stored results.

    Exit code 1 when B is slower by more than --fail-if for sure, a phone failed or computed wrong numbers.
    """
    from farm.results.ci import FailLimit

    limit = FailLimit.parse(fail_if)
    for each in (a, b):
        checked_file(each)
    work.refuse_host(fields["on"], "ci compare")
    _check_files(junit, summary)
    with work.client() as farm:
        spec = farm.spec("compare", model=a, model_b=b, **fields)
        _, outcomes = work.submit_and_wait(farm, spec, detach=False, wait=wait, json=json)

    cases = [_compared(each, a.name, b.name, limit) for each in outcomes]
    _finish(cases, outcomes, limit, junit, summary, require_answer=require_answer, json=json)


def _compared(outcome: Outcome, a: str, b: str, limit: FailLimit) -> CiCase:
    from farm.results.ci import compared

    return compared(outcome.result["comparison"], b, outcome.device, a, limit) if outcome.ok else _failed(outcome, b)


@app.command()
def init(
    system: Annotated[Literal["github", "gitlab"], typer.Argument(help="The CI system.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; by default where the system looks for it.")
    ] = None,
) -> None:
    """Write an action for GitHub, or a template for GitLab, that runs farm ci bench. It replaces no file.

    Its first lines say how to use it.
    """
    path = output or Path(CI_FILES[system])
    if path.exists():
        raise UserError(f"{path} is there already", hint="remove it, or name another file: -o FILE")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {path.parent}: {error.strerror}", hint="name a file with -o") from error
    write_file(path, (Path(__file__).parent / "ci_files" / f"{system}.yml").read_bytes())
    print_note(f"wrote {path}")


def _source(branch: str, commit: str, baseline: str) -> tuple[str, str, str]:
    """Branch, commit and the baseline's branch, completed by what CI or git says.

    Raises:
        UserError: nothing says the branch.
    """
    from farm.cli.ci_sources import BASELINE, source_of_folder, source_of_variables

    if not (branch and commit):
        source = source_of_variables(os.environ) or source_of_folder(Path.cwd())
        branch, commit, baseline = branch or source.branch, commit or source.commit, baseline or source.baseline
    if not branch:
        raise UserError("the commit that is checked out is on no branch", hint="say which it is: --branch NAME")
    return branch, commit, baseline or BASELINE


def _failed(outcome: Outcome, model: str) -> CiCase:
    from farm.results.ci import CiAnswer, CiCase

    why = outcome.error.message if outcome.error else f"the job is {outcome.job.state}"
    return CiCase(model, outcome.device or outcome.job.id, CiAnswer.FAILED, why)


def _check_files(*files: Path | None) -> None:
    """Before the measurement: files that cannot be written would cost its answer."""
    for each in files:
        if each is not None:
            check_writable(each)


def _finish(
    cases: Sequence[CiCase],
    outcomes: Sequence[Outcome],
    limit: FailLimit,
    junit: Path | None,
    summary: Path | None,
    *,
    require_answer: bool,
    json: bool,
) -> NoReturn:
    """Write the files, print the answers, and end the command with its exit code."""
    from farm.results.ci import CiAnswer, junit_file, markdown

    if junit is not None:
        write_file(junit, junit_file(cases, limit))
    if summary is not None:
        _append(summary, markdown(cases, limit))
    code, answers = work.exit_code(outcomes), {case.answer for case in cases}
    if CiAnswer.SLOWER in answers:
        code = ExitCode.FAILED
    elif require_answer and answers != {CiAnswer.WITHIN}:
        code = ExitCode.NO_ANSWER
    if json:
        jobs = [each.job.id for each in outcomes]
        wire = [{**case.to_wire(), "job": job} for case, job in zip(cases, jobs, strict=True)]
        print_json({"ok": code == ExitCode.OK, "fail_if": limit.text, "cases": wire})
    else:
        print_table(
            ("MODEL", "PHONE", "VERDICT", "CHANGE (99 % RANGE)", "WHY"),
            [(case.model, case.device, case.answer, case.change, case.about) for case in cases],
            below="WHY",
        )
        for case in cases:
            if case.answer is CiAnswer.SLOWER:
                print_note(f"error: {case.model} on {case.device} is {limit.text} or more: {case.change}")
            elif require_answer and case.answer in (CiAnswer.CANNOT_TELL, CiAnswer.NO_BASELINE):
                print_note(f"error: no answer for {case.model} on {case.device}, and --require-answer was given")
        work.print_failures(outcomes)
    raise typer.Exit(code)


def _append(path: Path, text: str) -> None:
    """Append to a summary that other steps write to, too.

    Raises:
        UserError: it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", hint="name a file in a folder that exists and is yours"
        ) from error
