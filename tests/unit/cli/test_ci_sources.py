"""Branch and commit of a CI run: variables of GitHub and GitLab, git."""

from __future__ import annotations

import subprocess

import pytest

from farm.cli.ci_sources import SourceState, source_of_folder, source_of_variables
from farm.common.errors import UserError
from tests.support.needs import needs

pytestmark = needs("git")
GITHUB = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": "abc"}
GITLAB = {"GITLAB_CI": "true", "CI_COMMIT_SHA": "abc", "CI_DEFAULT_BRANCH": "trunk"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({**GITHUB, "GITHUB_REF_NAME": "main", "GITHUB_BASE_REF": ""}, SourceState("main", "abc", "main")),
        (
            {**GITHUB, "GITHUB_REF_NAME": "7/merge", "GITHUB_HEAD_REF": "main", "GITHUB_BASE_REF": "release"},
            SourceState("7/merge", "abc", "release"),
        ),
        ({**GITLAB, "CI_COMMIT_REF_NAME": "topic"}, SourceState("topic", "abc", "trunk")),
        (
            {
                **GITLAB, "CI_COMMIT_REF_NAME": "main", "CI_MERGE_REQUEST_IID": "7",
                "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
            },
            SourceState("7/merge", "abc", "main"),
        ),
    ],
)  # fmt: skip
def test_variables_of_ci_systems(variables, expected):
    assert source_of_variables(variables) == expected


def git(folder, *arguments):
    identity = ("-c", "user.name=ann", "-c", "user.email=ann@example.com")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q", "-b", "topic")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_git_says_branch_and_commit(repository):
    commit = git(repository, "rev-parse", "HEAD")
    assert source_of_folder(repository) == SourceState("topic", commit, "main")
    (repository / "other").write_text("not in git")
    assert source_of_folder(repository).commit == commit
    (repository / "file").write_text("2")
    assert source_of_folder(repository).commit == f"{commit}-dirty"


def test_a_commit_that_is_checked_out_by_itself_has_no_branch(repository):
    git(repository, "checkout", "-q", "--detach")
    assert source_of_folder(repository).branch == ""


def test_a_folder_outside_of_git_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UserError) as refused:
        source_of_folder(tmp_path)
    assert "--branch" in refused.value.hint
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="git is not installed"):
        source_of_folder(tmp_path)
