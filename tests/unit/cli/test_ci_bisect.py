"""`farm ci bisect` on a repository: what it builds and times, and what it refuses. Comparisons are imitated."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager

import pytest

from farm.cli import ci_bisect
from farm.common.errors import UserError
from farm.results.ci import CiAnswer, CiCase, FailLimit
from tests.support.needs import needs

pytestmark = needs("git")
FIELDS = {"on": "android", "measure_s": 1.0}
BUILD = ["sh", "-c", "test -s speed && cp speed net.onnx"]


def git(folder, *arguments):
    identity = ("-c", "user.name=ann", "-c", "user.email=ann@example.com")
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Seven commits; the model of the fifth and later ones is slower, the third does not build."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number, speed in enumerate(("fast", "fast 2", "", "fast 3", "slow", "slow 2", "slow 3"), 1):
        (folder / "speed").write_text(speed)
        (folder / "build").unlink(missing_ok=True)
        if "fast " not in speed:
            (folder / "build").write_text("#!/bin/sh\ntest -s speed && cp speed net.onnx\n")
            (folder / "build").chmod(0o755)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"number {number}")
        git(folder, "tag", f"v{number}")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def bisect(repository, monkeypatch, capsys):
    def timing(_farm, first, fields, _limit, *, wait, json):
        def time(built, _commit):
            times = [2.0 if "slow" in path.read_text() else 1.0 for path in (first, built)]
            ratio = times[1] / times[0]
            answer = CiAnswer.SLOWER if ratio > 1.02 else CiAnswer.WITHIN
            return CiCase("net.onnx", "pixel", answer, "in turns", ratio, ratio - 0.01, ratio + 0.01)

        return time

    @contextmanager
    def client():
        yield None

    monkeypatch.setattr(ci_bisect, "_timing", timing)
    monkeypatch.setattr(ci_bisect.work, "client", client)

    def bisect(good, bad, command=BUILD, model="net.onnx"):
        ci_bisect.bisect(good=good, bad=bad, command=command, on="android", model=ci_bisect.Path(model))
        return capsys.readouterr()

    yield bisect
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_the_first_slower_commit_is_named_with_its_confidence(bisect, repository):
    shown = bisect("v1", "main")
    head, commit = shown.out.splitlines()
    assert head == "the first slower commit: +100.0% (+99.0% .. +101.0%) against v1 on pixel, confidence 97%"
    assert commit.split() == [git(repository, "rev-parse", "v5")[:12], "number", "5"]
    assert len(shown.err.splitlines()) == 3


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "test -s speed && ! grep 'fast [23]' speed && cp speed net.onnx"],  # fails at three
        ["sh", "-c", "test ! -s speed || grep 'fast [23]' speed || cp speed net.onnx"],  # leaves no model at three
        ["./build"],  # is not there at two
    ],
)
def test_commits_that_do_not_build_are_among_the_suspects(bisect, command):
    shown = bisect("v1", "v7", command)
    assert shown.out.splitlines()[0].startswith("the first slower commit is one of 4: ")


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("v1", "v4", "v4 is not slower by 2 %"),
        ("v5", "v7", "v7 is not slower by 2 %"),
        ("v7", "v1", "v7 is not before v1"),
        ("v1", "v1", "v1 is not before v1"),
        ("v3", "v7", "the command fails: exit code 1"),
        ("v1", "v3", "v3: the command fails: exit code 1"),
        ("nosuch", "v7", "Needed a single revision"),
        ("--all", "v7", "git rev-parse"),
    ],
)
def test_ends_that_cannot_be_searched_between_are_said_at_once(bisect, good, bad, said):
    with pytest.raises(UserError) as refused:
        bisect(good, bad)
    assert said in refused.value.message
    assert refused.value.hint


def test_a_bad_commit_with_the_file_of_the_good_one_is_said_to_have_it(tmp_path):
    model = tmp_path / "net.onnx"
    model.write_text("a model")
    limit = FailLimit.parse("slower by 2 %")
    case = ci_bisect._timing(None, model, {"on": "android"}, limit, wait=None, json=False)(model, "v3")
    with pytest.raises(UserError, match="v3 is not slower by 2 %: its model is the same file as that of v1"):
        ci_bisect._check_bad("v1", "v3", limit, case)


@pytest.mark.parametrize(
    ("command", "model", "said"),
    [
        (["true"], "net.onnx", "left no file net.onnx"),
        (["/no/such/program"], "net.onnx", "cannot start /no/such/program"),
        (BUILD, "../net.onnx", "outside of the worktree"),
    ],
)
def test_commands_that_build_no_model_are_refused(bisect, command, model, said):
    with pytest.raises(UserError) as refused:
        bisect("v1", "v7", command, model)
    assert said in refused.value.message


def test_a_folder_outside_of_git_and_a_name_of_no_commit_have_a_way_out(bisect, tmp_path, monkeypatch):
    with pytest.raises(UserError) as caught:
        bisect("v1", "v99")
    assert caught.value.hint.startswith("is v99 a commit")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="not a git repository") as caught:
        bisect("v1", "v7")
    assert caught.value.hint == "run it inside the model's git repository"
