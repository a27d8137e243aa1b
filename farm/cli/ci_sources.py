"""From which branch and commit a CI run builds its model: variables of GitHub or GitLab, else git in this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.common.errors import UserError
from farm.results.ci import DIRTY

GIT_LIMIT_S = 30.0
BASELINE = "main"
IN_REPOSITORY = "run it inside the model's git repository"


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a model was built from."""

    branch: str
    commit: str
    baseline: str  # the branch to compare with, unless another is named


def source_of_variables(variables: Mapping[str, str]) -> SourceState | None:
    """What the variables of GitHub or GitLab say; None outside of them.

    A pull request is a branch of its own name ("42/merge"): one from a fork may call its branch main.
    """
    if variables.get("GITHUB_ACTIONS") == "true":
        base = variables.get("GITHUB_BASE_REF") or BASELINE
        return SourceState(variables.get("GITHUB_REF_NAME", ""), variables.get("GITHUB_SHA", ""), base)
    if variables.get("GITLAB_CI") == "true":
        default = variables.get("CI_DEFAULT_BRANCH") or BASELINE
        request = variables.get("CI_MERGE_REQUEST_IID")
        branch = f"{request}/merge" if request else variables.get("CI_COMMIT_REF_NAME", "")
        base = variables.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME") or default
        return SourceState(branch, variables.get("CI_COMMIT_SHA", ""), base)
    return None


def source_of_folder(folder: Path) -> SourceState:
    """What git says of a folder; a commit with changes that are not committed ends in "-dirty".

    Raises:
        UserError: there is no git, or the folder is not in a repository with a commit.
    """
    commit = git(folder, "rev-parse", "--verify", "HEAD", hint=f"{IN_REPOSITORY}, or give --branch and --commit")
    branch = git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    changed = git(folder, "status", "--porcelain", "--untracked-files=no")
    return SourceState("" if branch == "HEAD" else branch, commit + (DIRTY if changed else ""), BASELINE)


def git(folder: Path, *arguments: str, hint: str = IN_REPOSITORY) -> str:
    """What a git command prints, stripped; `hint`: what to do when it fails.

    Raises:
        UserError: it failed.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, errors="replace", timeout=GIT_LIMIT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise UserError("git is not installed", hint="install it: apt install git") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"git {arguments[0]} did not end within {GIT_LIMIT_S:g} s") from None
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), "no message").removeprefix("fatal: ")
        raise UserError(f"git {arguments[0]}: {said}", hint=hint)
    return done.stdout.strip()
