"""A build of farm tells its commit: from a checkout without the program git, from the name of an installed wheel."""

import os
import shutil
import subprocess
import sys

import pytest

import farm
from farm import RELEASE
from tests.support.tvm import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BUILD = f"{RELEASE}+g{COMMIT[:8]}"


@pytest.fixture
def copied(tmp_path):
    """A folder with farm in it: its __init__ alone, which tells the version."""
    (tmp_path / "farm").mkdir()
    shutil.copy(farm.__file__, tmp_path / "farm")
    return tmp_path


def version(folder):
    """Of the farm in this folder, where no program is found."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import farm; print(farm.__version__)"],
        env=os.environ | {"PYTHONPATH": str(folder), "PATH": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_folder_without_git_has_the_release(copied):
    assert version(copied) == RELEASE


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack-refs\n{COMMIT} refs/heads/main\n"},
    ],
    ids=["detached", "branch", "packed"],
)
def test_a_checkout_has_its_commit_without_git(copied, files):
    for name, text in files.items():
        (copied / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
        (copied / ".git" / name).write_text(text)
    assert version(copied) == BUILD
    (copied / ".git" / "HEAD").write_text("ref: refs/heads/absent\n")
    assert version(copied) == RELEASE


def test_a_work_tree_has_its_commit(copied):
    (copied / "main/.git/worktrees/w").mkdir(parents=True)
    (copied / "main/.git/worktrees/w/HEAD").write_text("ref: refs/heads/w\n")
    (copied / "main/.git/worktrees/w/commondir").write_text("../..\n")
    (copied / "main/.git/packed-refs").write_text(f"{COMMIT} refs/heads/w\n")
    (copied / ".git").write_text(f"gitdir: {copied}/main/.git/worktrees/w\n")
    assert version(copied) == BUILD


def test_an_installed_wheel_has_the_commit_that_it_was_built_of(copied):
    (copied / f"tvm_phone_farm-{BUILD}.dist-info").mkdir()
    assert version(copied) == BUILD


@pytest.mark.skipif(not shutil.which("git") or not (ROOT / ".git").exists(), reason="no git, or no checkout")
def test_it_is_what_git_says():
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert version(ROOT) == f"{RELEASE}+g{done.stdout[:8]}"
