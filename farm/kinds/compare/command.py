"""`farm compare A B --on SELECTOR`: which of two builds is faster, by how much, how sure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from farm.cli import complete, work
from farm.cli.connection import JsonFlag
from farm.cli.model_command import TVM
from farm.cli.output import fold_reasons, paragraph, print_json, print_line, print_remarks, print_table, print_unlike
from farm.cli.quality import both_words, compare_stored_quality, needed_words, print_found_loss
from farm.cli.spec_options import flag_of, spec_options
from farm.common.durations import in_one_unit
from farm.common.errors import UserError
from farm.common.files import checked_file, short_hash
from farm.kinds import KINDS
from farm.kinds.bench.command import RuntimeFolder, check_runtime_options, notes_of
from farm.kinds.compare import CompareSpec
from farm.kinds.program.command import packed_runtime
from farm.measure.conditions import left_open, ratio_words, reasons_of
from farm.model.job import MEASURING_KINDS
from farm.model.specs import ALL, RUNTIME, SIDE_B, check_quality, fields_of
from farm.programs.description import RUNTIMES
from farm.results.series import checked_against, runtime_words

if TYPE_CHECKING:
    from farm.client import Client
    from farm.client.model import Outcome, Submitted
    from farm.kinds.outcomes import CompareOutcome
    from farm.measure.comparison import Comparison
    from farm.model.specs import JobSpec

IN_TURNS = "compare the models themselves: farm compare A.onnx B.onnx --on SELECTOR"
RuntimeA = Annotated[
    str,
    typer.Option(
        help=f"The runtime of A: tvm, {', '.join(RUNTIMES)}, or a program's SPEC.toml.", rich_help_panel=RUNTIME
    ),
]
RuntimeB = Annotated[str, typer.Option(help="The runtime of B, as for A.", rich_help_panel=SIDE_B)]
RuntimeFolderB = Annotated[
    Path | None,
    typer.Option(help="The folder with the files of B's program.", show_default=False, rich_help_panel=SIDE_B),
]


@spec_options(CompareSpec, devices="all")
def compare(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A model file, a package, or the id of a bench, run or sustained run.")
    ],
    fields: dict[str, Any],
    b: Annotated[
        str | None, typer.Argument(metavar="[B]", help="As A. Left out: the model of A, built another way.")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Which phones; not for two stored results.",
            show_default=False,
            autocompletion=complete.selectors,
        ),
    ] = "",
    runtime: RuntimeA = TVM,
    runtime_b: RuntimeB = TVM,
    runtime_folder: RuntimeFolder = None,
    runtime_folder_b: RuntimeFolderB = None,
    why: work.Why = False,
    wait: work.Wait = None,
    detach: work.Detach = False,
    json: JsonFlag = False,
) -> None:
    """Time two builds in turns on the same phones, or one under two runtimes or bundles, or compare two stored results.

    Ctrl-C cancels. The answer is what B is, seen from A: faster, slower, same, or cannot tell. Exit code 0 whatever it
    is; 1 when a phone failed or computed wrong numbers, 2 for a bad model or input, 3 when no phone matches.
    """
    if b is not None and not on and not any(Path(each).exists() for each in (a, b)):
        runtimes = {"--runtime": runtime != TVM, "--runtime-b": runtime_b != TVM}
        folders = {"--runtime-folder": runtime_folder, "--runtime-folder-b": runtime_folder_b}
        _check_stored(fields, {**runtimes, **folders, "--wait": wait, "--detach": detach})
        with work.client() as farm:
            compare_results(farm, a, b, fields["min_effect"], json=json, why=why)
        return
    for each in (a, b or a):
        _check_model(each)
    if not on:
        raise UserError("no phones are named to compare them on", hint="add --on android, or another selector")
    work.refuse_host(on, "compare")
    check_quality(fields["quality"], fields["metric"], {})
    with work.client() as farm:
        check_runtime_options(runtime, **{"--set": fields["settings"], "--runtime-folder": runtime_folder})
        check_runtime_options(runtime_b, **{"--set-b": fields["settings_b"], "--runtime-folder-b": runtime_folder_b})
        if b is None and runtime == runtime_b and fields["settings"] == fields["settings_b"]:
            _check_differs(a, fields)
        programs = {
            "program": packed_runtime(runtime, runtime_folder, Path(a), fields["settings"]),
            "program_b": packed_runtime(runtime_b, runtime_folder_b, Path(b or a), fields["settings_b"]),
        }
        spec = farm.spec("compare", model=a, model_b=b, on=on, **{**fields, **programs})
        if fields["quality"] is not None:
            print_found_loss(fields["quality"], fields["metric"])
        finish = partial(_finish, spec=spec, json=json, why=why)
        work.submit_to_end(farm, spec, finish, detach=detach, wait=wait, json=json)


def _check_model(given: str) -> None:
    kind, _, rest = given.partition("-")
    if not Path(given).exists():
        if kind in KINDS.kinds and re.fullmatch("[0-9a-f]+", rest):
            raise UserError(f"{given} is a job", hint=f"name a second one, without --on: farm compare {given} JOB")
        raise UserError(f"{given} does not exist", hint="give a file, or two jobs without --on: farm compare JOB JOB")
    checked_file(Path(given))


def _check_stored(fields: Mapping[str, Any], others: Mapping[str, object]) -> None:
    """Refuse options that have no effect on stored results."""
    known = fields_of(CompareSpec)
    unlike = {flag_of(known[name]): value and value != known[name].default for name, value in fields.items()}
    allowed = {"--min-effect", *(["--devices"] if fields["devices"] == ALL else [])}
    given = {flag: value for flag, value in {**unlike, **others}.items() if flag not in allowed}
    if flag := next(filter(given.get, given), None):
        raise UserError(f"{flag} needs two builds", hint="for two stored results: farm compare JOB JOB")


def _finish(submitted: Submitted, outcomes: Sequence[Outcome], *, spec: JobSpec, json: bool, why: bool) -> NoReturn:
    """Print the outcomes and what all phones say together, and end the command."""
    document: dict[str, Any] = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
    if found := [_comparison(each.result["comparison"]) for each in outcomes if each.ok]:
        from farm.measure.comparison import together

        whole = together(found)
        document["together"] = whole.to_wire()

    def show(ended: Sequence[Outcome]) -> None:
        print_results([work.outcome_json(each) for each in ended if each.ok], why=why)
        if len(found) > 1:
            print_line(f"all {len(found)} phones: {whole.sentence}")
        work.print_failures(ended)

    work.finish(outcomes, document, json=json, show=show)


def _check_differs(model: str, fields: Mapping[str, Any]) -> None:
    """Refuse two builds of one model by TVM that are one."""
    named = ("target_b", "precision_b", "texture", "texture_b", "records", "records_b", "bundle_b")
    if not any(map(fields.get, named)):
        raise UserError(
            f"nothing differs: B would be built from {model} as A is",
            hint="name a second model, or what differs in B: "
            "--precision-b, --target-b, --texture-b, --records-b, --bundle-b, --runtime-b, --set-b",
        )


def print_results(results: Sequence[Mapping[str, Any]], *, why: bool = False) -> None:
    """A line per phone with its gravest reason for doubt; below, what would end the doubt."""
    if not results:
        return
    medians = in_one_unit([each[side]["latency"]["median_ms"] for each in results for side in "ab"])
    reasons = [reasons_of(each["comparison"]["reasons"]) for each in results]
    causes = [() if why else (each[0].cause if each else "",) for each in reasons]
    print_table(
        ("PHONE", "VERDICT", "B / A", "99 % RANGE", "A", "B", "PAIRS", *(() if why else ("WHY",))),
        [
            (
                each["device"], each["comparison"]["answer"], ratio_words(each["comparison"]["ratio"]),
                f"{ratio_words(each['comparison']['low'])} to {ratio_words(each['comparison']['high'])}",
                *medians[2 * at : 2 * at + 2], each["comparison"]["pairs"],
                *causes[at],
            )
            for at, each in enumerate(results)
        ],
        below="WHY",
    )  # fmt: skip
    print_remarks(
        (each["device"], line)
        for each in results
        for line in (
            *_bundles(each), *_runtimes(each), *(fold_reasons(each["comparison"]["reasons"], why=True) if why else ()),
            *filter(None, (left_open(each["comparison"]),)), *_quality(each),
        )
    )  # fmt: skip
    more = not why and any(len(each) > 1 or any(one.evidence for one in each) for each in reasons)
    for line in paragraph(
        (
            "B / A: median of paired runs.",
            "Every reason: --why" if more else "",
            _numbers(results),
            _between(results),
            *notes_of(results),
        )
    ):
        print_line(line)
    print_unlike(each.get("unlike", ()) for each in results)


def _numbers(results: Sequence[Mapping[str, Any]]) -> str:
    errors = {
        side: [error for each in results if (error := each[side].get("max_abs_error")) is not None] for side in "ab"
    }
    words: dict[str, list[str]] = {}  # by what the side was compared with
    for side, found in errors.items():
        if found:
            words.setdefault(checked_against(results[0][side]), []).append(f"{side.upper()} {max(found):.0e}")
    matches = ", ".join(f"{what} ({', '.join(sides)})" for what, sides in words.items())
    return f"Outputs match {matches}." if matches else ""


def _between(results: Sequence[Mapping[str, Any]]) -> str:
    """The largest difference between the outputs of two runtimes."""
    found = [each["outputs"] for each in results if each.get("outputs")]
    if not found:
        return ""
    worst = max(found, key=lambda each: math.inf if each["max_abs_error"] is None else each["max_abs_error"])
    if worst["max_abs_error"] is None:
        return "The outputs of A and B differ: there are NaN or infinities."
    return (
        f"Outputs of A and B differ by {worst['max_abs_error']:.0e} at most, of numbers up to {worst['largest']:.2g}."
    )


def _bundles(result: Mapping[str, Any]) -> list[str]:
    if "bundle" not in result["a"]:
        return []
    a, b = (result[side]["bundle"] for side in ("a", "b"))
    a_is, b_is = (f"bundle {each['name']} ({short_hash(each['hash'])})" for each in (a, b))
    return [f"A is {a_is}, B is {b_is}, TVM {a['tvm']}"]


def _runtimes(result: Mapping[str, Any]) -> list[str]:
    if "runtime" not in result["a"]:
        return []
    words = ("placement", "ran_on")
    a, b = (
        ", ".join(filter(None, (runtime_words(result[side]), *(result[side].get(each) for each in words))))
        for side in "ab"
    )
    return [f"A ran under {a}; B under {b}"]


def _quality(result: Mapping[str, Any]) -> list[str]:
    if not (quality := result.get("quality")):
        return []
    return [both_words(result["comparison"], quality), *needed_words(quality)]


def compare_results(farm: Client, a: str, b: str, min_effect: float, *, json: bool, why: bool) -> None:
    """Compare two results that are there."""
    from farm.measure.comparison import compare_stored, two_models

    outcomes = [farm.job(each, fetch_outputs=False).raise_for_error() for each in (a, b)]
    if outcomes[0].job.id == outcomes[1].job.id:
        raise UserError(f"A and B are one result, {outcomes[0].job.id}", hint="two ids of `farm history MODEL`")
    kinds = [each.job.kind for each in outcomes]
    if len(set(kinds)) > 1 and not set(kinds) <= set(MEASURING_KINDS):
        raise UserError("A is of kind {}, B of kind {}".format(*kinds), hint="compare two of one kind")
    if kinds[0] == "sustain":
        from farm.kinds.sustain.compare import compare_stored_runs

        compare_stored_runs(outcomes[0], outcomes[1], min_effect, json=json, why=why)
        return
    if kinds[0] == "run":
        compare_stored_quality(farm, outcomes[0], outcomes[1], json=json)
        return
    first, second = (_certificate(each) for each in outcomes)
    try:
        found = compare_stored(first, second, min_effect)
    except ValueError as error:
        raise UserError(str(error), hint=IN_TURNS) from error
    compared, notes = found.to_wire(), two_models(first, second)
    if json:
        print_json(
            {
                "ok": True, "a": outcomes[0].job.id, "b": outcomes[1].job.id,
                "verdicts": [each["verdict"] for each in (first, second)], "comparison": compared, "notes": notes,
            }
        )  # fmt: skip
        return
    print_line(found.sentence)
    for line in (*fold_reasons(compared["reasons"], why=why), *filter(None, (left_open(compared),)), *notes):
        print_line(f"  {line}")


def _certificate(outcome: Outcome) -> Mapping[str, Any]:
    certificate = outcome.result.get("certificate")
    if outcome.job.kind not in MEASURING_KINDS or not certificate:
        raise UserError(
            f"{outcome.job.id} is no bench with a certificate", hint="two model files, or two ids of `farm history`"
        )
    return dict(certificate)


def _comparison(wire: Mapping[str, Any]) -> Comparison:
    from farm.measure.comparison import Comparison, ComparisonAnswer
    from farm.measure.conditions import Reason

    reasons = tuple(map(Reason.from_wire, wire["reasons"]))
    known = {name: wire[name] for name in Comparison.__dataclass_fields__}
    return Comparison(**{**known, "answer": ComparisonAnswer(wire["answer"]), "reasons": reasons})


def print_job(outcome: CompareOutcome, _record_set: Mapping[str, Any] | None) -> None:
    """Print the result of one comparison, for `farm job show`."""
    if outcome.answer:
        print_results([outcome.result], why=True)
