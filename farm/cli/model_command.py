"""The command of a kind that takes one model to phones and prints a table of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from farm.cli import work
from farm.cli.connection import JsonFlag
from farm.cli.spec_options import spec_options, with_one_placement
from farm.common.errors import UserError
from farm.common.files import checked_file
from farm.kinds import KINDS
from farm.model.specs import JobSpec

if TYPE_CHECKING:
    from farm.client.model import Outcome, Submitted

TVM = "tvm"
EXIT_CODES = (
    "Exit code 1 when a phone failed or computed wrong numbers, 2 for a bad model, input or option,"
    " 3 when no phone matches."
)


def model_command(spec: type[JobSpec], about: str, *, one_placement: bool = False) -> Callable[..., None]:
    """The command of a kind, whose command.py has `print_results`, too.

    Args:
        spec: of the kind.
        about: its help.
        one_placement: whether it takes one value of --threads and --cores.
    """

    def command(
        model: Annotated[Path, typer.Argument(help="A model file, or a package (.farm.tar).")],
        fields: dict[str, Any],
        wait: work.Wait = None,
        detach: work.Detach = False,
        json: JsonFlag = False,
        runtime: Annotated[str, typer.Option(hidden=True)] = TVM,
    ) -> None:
        check_tvm(spec.kind, runtime, model)
        checked_file(model)
        work.refuse_host(fields["on"], spec.kind)
        given = with_one_placement(fields, f"farm {spec.kind}") if one_placement else fields
        submit_model(spec, model, given, wait=wait, detach=detach, json=json)

    command.__doc__ = f"{about} Ctrl-C cancels.\n\n{EXIT_CODES}"
    return spec_options(spec, devices="all")(command)


def check_tvm(kind: str, runtime: str, model: Path) -> None:
    """Refuse another runtime, or its program, in a kind that TVM alone has.

    Raises:
        UserError: it is one.
    """
    named = runtime if runtime != TVM else model.name if model.suffix == ".toml" else ""
    if named:
        raise UserError(
            f"farm {kind} measures models under TVM, not {named[:40]}",
            hint="farm bench, compare, ci bench and program run take other runtimes; their joules: `farm untethered`",
        )


def submit_model(
    spec: type[JobSpec], model: Path | None, fields: Mapping[str, Any], *, wait: str | None, detach: bool, json: bool
) -> NoReturn:
    """Submit a model's jobs of a kind, wait for them, print their results and failures, and end the command."""
    with work.client() as farm:
        given = farm.spec(spec.kind, model=model, **fields)
        finish = partial(_finish, spec=given, json=json)
        work.submit_to_end(farm, given, finish, detach=detach, wait=wait, json=json)


def _finish(submitted: Submitted, outcomes: Sequence[Outcome], *, spec: JobSpec, json: bool) -> NoReturn:
    print_results: Callable[[Sequence[Mapping[str, Any]]], None] = KINDS.kinds[spec.kind].part("command").print_results

    def show(ended: Sequence[Outcome]) -> None:
        if done := [work.outcome_json(each) for each in ended if each.ok]:
            print_results(done)
        work.print_failures(ended)

    document = {"job": submitted.array or submitted.ids[0], "spec": spec.to_wire()}
    work.finish(outcomes, document, json=json, show=show)
