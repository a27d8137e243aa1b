"""`farm ci`: jobs whose exit code says whether a model became slower or worse, beyond what noise explains."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag, connect
from farm.cli.model_command import TVM, check_tvm
from farm.cli.output import print_json, print_note, print_table, write_file
from farm.cli.output.terminal import interruptible
from farm.cli.spec_options import spec_options, with_one_placement
from farm.cli.stored_results import stored_results
from farm.common.errors import ExitCode, HostError, NoPhoneError, UserError
from farm.common.files import check_writable, checked_file
from farm.kinds import KINDS
from farm.kinds.bench import BenchSpec
from farm.kinds.bench.command import (
    ProgramSettings,
    RequireOffload,
    Runtime,
    RuntimeFolder,
    check_runtime_options,
    check_shown,
    offload_of,
    on_cpu,
)
from farm.kinds.compare import CompareSpec
from farm.model.specs import JobSpec, check_quality

if TYPE_CHECKING:
    from farm.client import Client, Submitted
    from farm.client.model import Outcome
    from farm.results.ci import CiCase, FailLimit

app = typer.Typer(help="Checks for CI: did a model become slower, or worse, than on another branch?")

LOOKED_BACK = 2000  # results of a phone, in which the baseline is looked for
CI_FILES = {"github": ".github/actions/farm/action.yml", "gitlab": ".gitlab/farm.yml"}
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

FailIf = Annotated[
    str, typer.Option("--fail-if", metavar="CONDITION", help="Exit with 1 when that is sure: slower|worse by N %.")
]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit file.")]
Summary = Annotated[
    Path | None,
    typer.Option(
        "--summary", metavar="FILE", help="Append a Markdown table.", envvar=SUMMARY_VARIABLE, show_default=False
    ),
]
Branch = Annotated[str, typer.Option(help="The branch of this result. Default: that of CI or git.")]
Commit = Annotated[str, typer.Option(help="The commit of this result. Default: that of CI or git.")]
Baseline = Annotated[
    str, typer.Option(metavar="BRANCH", help="Compare with results of it. Default: that of the pull request, or main.")
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
    branch: Branch = "",
    commit: Commit = "",
    baseline: Baseline = "",
    runtime: Runtime = TVM,
    runtime_folder: RuntimeFolder = None,
    settings: ProgramSettings = None,
    require_offload: RequireOffload = "",
    junit: Junit = None,
    summary: Summary = None,
    require_answer: RequireAnswer = False,
    wait: work.Wait = None,
    json: JsonFlag = False,
) -> None:
    """Bench a model, store the result under its branch, and compare it with stored results of the baseline's branch.

    What differs from run to run is part of the interval: the baseline needs 3 results, and 20 tell smaller changes.
    A phone that is slower is benched again, and only two slow results count.

    Exit code 1 when a phone is slower by more than --fail-if for sure, failed, computed wrong numbers or ran less than
    --require-offload off the CPU; 0 when it is not slower, or cannot be told.
    """
    offload = offload_of(require_offload)
    check_shown(fields, json=json)
    check_runtime_options(runtime, **{"--set": settings, "--runtime-folder": runtime_folder})

    def program(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if runtime == TVM:
            return "bench", fields
        from farm.kinds.program.command import fields_with

        given = fields_with(runtime, runtime_folder, model, {**fields, "settings": work.settings(settings)})
        return "program", given

    _check(
        BenchSpec, model, fields, fail_if, (branch, commit, baseline), (junit, summary),
        require_answer=require_answer, wait=wait, json=json, offload=offload, completed=program,
    )  # fmt: skip


def check_command(spec: type[JobSpec]) -> Callable[..., None]:
    """The check of a kind by the metrics that its jobs measure."""

    def command(
        model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
        fields: dict[str, Any],
        fail_if: FailIf = "worse by 5 %",
        branch: Branch = "",
        commit: Commit = "",
        baseline: Baseline = "",
        junit: Junit = None,
        summary: Summary = None,
        require_answer: RequireAnswer = False,
        wait: work.Wait = None,
        json: JsonFlag = False,
    ) -> None:
        check_tvm(f"ci {spec.kind}", TVM, model)
        _check(
            spec, model, fields, fail_if, (branch, commit, baseline), (junit, summary),
            require_answer=require_answer, wait=wait, json=json,
        )  # fmt: skip

    command.__doc__ = f"""As farm {spec.kind}; store the result under its branch, and compare it with the baseline.

    Each metric that farm {spec.kind} stores has its own answer, as that of farm ci bench.

    Exit code 1 when one is worse by more than --fail-if for sure, or a phone failed; 0 when it is not, or cannot be
    told.
    """
    return spec_options(spec, leave_out=("branch", "commit", "hold"), devices="all")(command)


for _kind in KINDS.kinds.values():
    if _kind.checked:
        app.command(_kind.name)(check_command(_kind.spec))


def _check(
    kind: type[JobSpec],
    model: Path,
    fields: dict[str, Any],
    fail_if: str,
    source: tuple[str, str, str],
    files: tuple[Path | None, Path | None],
    *,
    require_answer: bool,
    wait: str | None,
    json: bool,
    offload: float | None = None,
    completed: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]] | None = None,
) -> NoReturn:
    """Run a model's jobs of a kind, judge what they measured, and end the command.

    Args:
        kind: of the jobs.
        model: its file.
        fields: of the spec, as the options give them.
        fail_if: the condition of --fail-if.
        source: branch, commit and the baseline's branch; "": not given.
        files: of JUnit and of the summary.
        require_answer: as the option.
        wait: as the option.
        json: as the option.
        offload: as of --require-offload.
        completed: the kind that is submitted, and its fields; None: as they are.
    """
    from farm.results.ci import BEYOND, FailLimit, confirmed

    limit, command = FailLimit.parse(fail_if), f"ci {kind.kind}"
    checked_file(model)
    work.refuse_host(fields["on"], command)
    _check_files(*files)
    fields["branch"], fields["commit"], baseline = _source(*source)
    if "threads" in fields:
        fields = with_one_placement(fields, f"farm {command}")
    name, fields = completed(fields) if completed else (kind.kind, fields)
    with work.client() as farm:
        spec = farm.spec(name, **{**fields, "model": model})
        _, outcomes = work.submit_and_wait(farm, spec, detach=False, wait=wait, json=json)
        found = [_judged(each, model.name, baseline, limit, offload) for each in outcomes]
        beyond = {at: cases[0].device for at, cases in enumerate(found) if any(case.answer in BEYOND for case in cases)}
        again = _measure_again(farm, spec, beyond, limit, wait=wait, json=json) if beyond else {}
    answers = []
    for at, (cases, outcome) in enumerate(zip(found, outcomes, strict=True)):
        second = _judged(again[at], model.name, baseline, limit, offload) if at in again else []
        of_metric = {case.metric: case for case in second}
        for case in cases:
            other = of_metric.get(case.metric, second[0] if second else None)
            doubtful = case.answer in BEYOND
            answers.append((confirmed(case, other), again.get(at, outcome)) if doubtful else (case, outcome))
    _finish(answers, limit, files, require_answer=require_answer, json=json)


def _measure_again(
    farm: Client, spec: JobSpec, devices: Mapping[int, str], limit: FailLimit, *, wait: str | None, json: bool
) -> dict[int, Outcome]:
    """Measure on each of the devices once more; those that are not to be had now are left out."""
    if not json:
        print_note(f"{limit.beyond} on {', '.join(devices.values())}: measured again, for one result may be chance")
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


def _judged(outcome: Outcome, model: str, baseline: str, limit: FailLimit, offload: float | None) -> list[CiCase]:
    """Each metric of a job against the baseline among the newest results of its phone; `offload`: as of the option."""
    from farm.results.ci import CiAnswer, CiCase, judged
    from farm.results.series import by_metric

    if not outcome.ok:
        return [_failed(outcome, model)]
    if offload and (why := on_cpu(outcome.result, offload)):
        return [CiCase(model, outcome.device, CiAnswer.FAILED, why)]
    certificate = outcome.result.get("certificate") or {}
    if certificate.get("values") == {}:  # so it is no row of history
        told = judged({**certificate, "name": model, "device": outcome.device}, (), baseline, limit)
        return [replace(told, metric="")]
    with connect() as client:
        rows = list(by_metric(islice(stored_results(client, None, outcome.device), LOOKED_BACK)))
    new = [row for row in rows if row["job"] == outcome.job.id]
    if not new:
        raise HostError(f"the result of {outcome.job.id} is not stored any more", hint="farm store check")
    return [judged(each, rows, baseline, limit) for each in new]


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
    check_quality(fields["quality"], fields["metric"], {})
    _check_files(junit, summary)
    with work.client() as farm:
        spec = farm.spec("compare", model=a, model_b=b, **fields)
        _, outcomes = work.submit_and_wait(farm, spec, detach=False, wait=wait, json=json)

    answers = [(_compared(each, a.name, b.name, limit), each) for each in outcomes]
    _finish(answers, limit, (junit, summary), require_answer=require_answer, json=json)


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
    return CiCase(model, outcome.device or outcome.job.id, CiAnswer.FAILED, why, metric="")


def _check_files(*files: Path | None) -> None:
    """Before the measurement: files that cannot be written would cost its answer."""
    for each in files:
        if each is not None:
            check_writable(each)


def _finish(
    judged: Sequence[tuple[CiCase, Outcome]],
    limit: FailLimit,
    files: tuple[Path | None, Path | None],
    *,
    require_answer: bool,
    json: bool,
) -> NoReturn:
    """Write the files, print the answers, each with the outcome that gave it, and end the command."""
    from farm.results.ci import BEYOND, CiAnswer, junit_file, markdown

    (junit, summary), cases = files, [case for case, _ in judged]
    outcomes = list({outcome.job.id: outcome for _, outcome in judged}.values())
    if junit is not None:
        write_file(junit, junit_file(cases, limit))
    if summary is not None:
        _append(summary, markdown(cases, limit))
    code, answers = work.exit_code(outcomes), {case.answer for case in cases}
    if answers & BEYOND:
        code = ExitCode.FAILED
    elif require_answer and answers != {CiAnswer.WITHIN}:
        code = ExitCode.NO_ANSWER
    elif CiAnswer.FAILED in answers:  # of a phone that did its part, too: too much ran on its CPU
        code = code or ExitCode.FAILED
    if json:
        wire = [{**case.to_wire(), "job": outcome.job.id} for case, outcome in judged]
        print_json({"ok": code == ExitCode.OK, "fail_if": limit.text, "cases": wire})
    else:
        print_table(
            ("MODEL", "PHONE", "VERDICT", "CHANGE (99 % RANGE)", "WHY"),
            [(case.model, case.place, case.answer, case.change, case.about) for case in cases],
            below="WHY",
        )
        for case, outcome in judged:
            if case.answer is CiAnswer.FAILED and outcome.ok:
                print_note(f"error: {case.model} on {case.place}: {case.about}")
            elif case.answer in BEYOND:
                print_note(f"error: {case.model} on {case.place} is {limit.text} or more: {case.change}")
            elif require_answer and case.answer in (CiAnswer.CANNOT_TELL, CiAnswer.NO_BASELINE):
                print_note(f"error: no answer for {case.model} on {case.place}, and --require-answer was given")
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
