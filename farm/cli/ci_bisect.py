"""`farm ci bisect GOOD BAD -- COMMAND`: the first commit that made a model slower."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farm.cli import work
from farm.cli.ci import FailIf, compared_case
from farm.cli.ci_sources import git
from farm.cli.connection import JsonFlag
from farm.cli.output import emit, print_note
from farm.cli.output.terminal import interruptible
from farm.cli.spec_options import spec_options
from farm.common.errors import Code, ExitCode, UserError
from farm.common.files import hash_file
from farm.kinds.compare.spec import CompareSpec

if TYPE_CHECKING:
    from farm.client import Client
    from farm.results.ci import CiCase, FailLimit

NOT_ASKED = (
    "hold", "devices", "deadline_s", "after", "target_b", "precision_b", "texture_b", "records_b", "bundle", "bundle_b",
    "texture", "records", "settings", "settings_b",
)  # fmt: skip
SAME_FILE = "the same file"
SHORT = 12  # characters of a commit in messages
MODEL_HINT = "the command makes it anew in each commit; name it as the command does, from the repository's top folder"


@spec_options(CompareSpec, leave_out=NOT_ASKED)
def bisect(
    good: Annotated[str, typer.Argument(help="A commit whose model is fast.")],
    bad: Annotated[str, typer.Argument(help="A later one whose model is slower.")],
    command: Annotated[list[str], typer.Argument(help="What builds the model, after --.")],
    fields: dict[str, Any],
    model: Annotated[Path, typer.Option(metavar="FILE", help="The model or package that the command makes.")],
    fail_if: FailIf = "slower by 2 %",
    wait: work.Wait = None,
    json: JsonFlag = False,
) -> None:
    """Find the first commit whose model is slower, by building commits and timing each in turns with the good one.

    Commits are checked out in a temporary worktree, in whose top folder the command runs; your own folder stays as it
    is. The first phone that is free times all of them. A commit that does not build, or whose answer is not sure, is
    passed over.

    Exit code 0 when the first slower commit, or the few that it is among, is found; 1 when BAD is not slower for sure.
    """
    from farm.results.bisect_rules import bisected
    from farm.results.ci import FailLimit

    limit = FailLimit.parse(fail_if)
    work.refuse_host(fields["on"], "ci bisect")
    if model.is_absolute() or ".." in model.parts:
        raise UserError(f"--model {model} is outside of the worktree", hint=MODEL_HINT)
    top = Path(git(Path.cwd(), "rev-parse", "--show-toplevel"))
    commits = _commits(top, good, bad)
    try:
        with interruptible(), work.client() as farm, _worktree(top, commits[0]) as (tree, builds):
            build = partial(_build, tree, command, model, builds)
            time = _timing(farm, build(commits[0]), fields, limit, wait=wait, json=json)
            cases = _search(commits, build, time, partial(_check_bad, good, bad, limit))
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    found = bisected(commits, {commit: case.answer for commit, case in cases.items()})
    slower = cases[found.suspects[-1]]
    subjects = {each: git(top, "show", "--no-patch", "--format=%s", each) for each in found.suspects}
    what = "the first slower commit" + (f" is one of {len(subjects)}" if len(subjects) > 1 else "")
    about = f"{slower.change} against {good} on {slower.device}, confidence {found.confidence:.0%}"
    document = {
        "ok": True, "suspects": subjects, "confidence": found.confidence, "fail_if": limit.text,
        "cases": {commit: case.to_wire() for commit, case in cases.items()},
    }  # fmt: skip
    lines = (f"  {each[:SHORT]} {subject}" for each, subject in subjects.items())
    emit(document, [f"{what}: {about}", *lines], json=json)


def _search(
    commits: Sequence[str],
    build: Callable[[str], Path],
    time: Callable[[Path, str], CiCase],
    check_bad: Callable[[CiCase], None],
) -> dict[str, CiCase]:
    """Build and time commits, the bad one first, until none could say more; by commit."""
    from farm.results.bisect_rules import next_commit
    from farm.results.ci import CiAnswer, CiCase

    cases: dict[str, CiCase] = {}
    commit: str | None = commits[-1]
    while commit is not None:
        try:
            built = build(commit)
        except UserError as error:
            case = CiCase("", "", CiAnswer.FAILED, error.message)
        else:
            case = time(built, commit)
        print_note(f"{commit[:SHORT]}: {case.answer}, {case.about if case.answer is CiAnswer.FAILED else case.change}")
        if commit == commits[-1]:
            check_bad(case)
        cases[commit] = case
        commit = next_commit(commits, {each: found.answer for each, found in cases.items()})
    return cases


def _commits(top: Path, good: str, bad: str) -> list[str]:
    """The commits from the good to the bad one along first parents.

    Raises:
        UserError: a name is no commit, or good is not before bad.
    """
    hint = "is {} a commit, tag or branch of this repository? git log --oneline"
    first, last = (
        git(top, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}", hint=hint.format(name))
        for name in (good, bad)
    )
    found = git(top, "rev-list", "--reverse", "--first-parent", "--ancestry-path", f"{first}..{last}").split()
    if not found:
        raise UserError(f"{good} is not before {bad}", hint="the good commit comes first, and BAD descends from it")
    return [first, *found]


@contextmanager
def _worktree(top: Path, commit: str) -> Iterator[tuple[Path, Path]]:
    """A worktree and a folder for builds, both gone in the end."""
    folder = Path(tempfile.mkdtemp(prefix="farm-bisect-"))
    tree, builds = folder / "tree", folder / "builds"
    builds.mkdir()
    try:
        git(top, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        yield tree, builds
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        git(top, "worktree", "prune")


def _build(tree: Path, command: Sequence[str], model: Path, builds: Path, commit: str) -> Path:
    """The model of a commit.

    Raises:
        UserError: the command cannot be started there, fails, or leaves no such file.
    """
    made = tree / model
    made.unlink(missing_ok=True)  # an earlier commit's must not pass for this one's
    git(tree, "checkout", "--quiet", "--force", "--detach", commit)
    try:
        done = subprocess.run(command, cwd=tree, stdout=2, check=False)
    except OSError as error:
        raise UserError(f"cannot start {command[0]}: {error.strerror}", hint="scripts begin with #!/bin/sh") from error
    if done.returncode:
        raise UserError(f"the command fails: exit code {done.returncode}", hint="GOOD must build; its output is above")
    if not made.is_file():
        raise UserError(f"the command left no file {model}", hint=MODEL_HINT)
    kept = builds / commit / model.name
    kept.parent.mkdir(exist_ok=True)
    return Path(shutil.copyfile(made, kept))


def _timing(
    farm: Client, first: Path, fields: dict[str, Any], limit: FailLimit, *, wait: str | None, json: bool
) -> Callable[[Path, str], CiCase]:
    """Times a build in turns with the good commit's, each on the phone of the first one."""
    from farm.results.ci import CiAnswer, CiCase

    phone = ""

    def time(built: Path, commit: str) -> CiCase:
        nonlocal phone
        if hash_file(built) == hash_file(first):
            return CiCase(built.name, phone, CiAnswer.WITHIN, SAME_FILE, 1.0, 1.0, 1.0)
        spec = farm.spec("compare", model=first, model_b=built, **{**fields, "on": phone or fields["on"]})
        _, (outcome,) = work.submit_and_wait(farm, spec, detach=False, wait=wait, json=json)
        phone = outcome.device if outcome.ok else phone
        return compared_case(outcome, "the good commit", f"{built.name} at {commit[:SHORT]}", limit)

    return time


def _check_bad(good: str, bad: str, limit: FailLimit, case: CiCase) -> None:
    """Refuse to search where the bad commit is not slower.

    Raises:
        UserError: it failed, is not slower, or that is not sure.
    """
    from farm.results.ci import CiAnswer

    if case.answer is CiAnswer.SLOWER:
        return
    if case.answer is CiAnswer.FAILED:
        raise UserError(f"{bad}: {case.about}", hint="name a bad commit whose model runs")
    if case.high is not None and case.high < 1:
        raise UserError(f"{good} is the slower one: {bad} is {case.change}", Code.NOT_SLOWER, hint="swap the two")
    known = "not" if case.answer is CiAnswer.WITHIN else "not for sure"
    why, hint = case.change, "a smaller --fail-if, or --measure longer"
    if case.about == SAME_FILE:
        why, hint = f"its model is the same file as that of {good}", "name commits whose models differ"
    raise UserError(f"{bad} is {known} {limit.text}: {why}", Code.NOT_SLOWER, hint=hint)
