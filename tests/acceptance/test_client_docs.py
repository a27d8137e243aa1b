"""docs/scripts.md: each of its programs runs as it stands, and has types."""

import subprocess
import sys

import pytest

from farm.zoo import small_cnn as build
from tests.support.pages import ROOT, blocks
from tests.support.tvm import environment

PAGE, TITLE = ROOT / "docs" / "scripts.md", "From Python"
PROGRAMS = blocks(PAGE, "python", title=TITLE)
FILES = blocks(PAGE, "toml", title=TITLE)
SAYS = {  # what only a program that worked prints
    "farm.tune(": "8 trials",
    "farm.bench(": " ms ",
    "farm.run(": "class ",
    "farm.compare(": "of A's time",
    "farm.lease(": "[1. 1. 1.]",
    "farm.outcomes(": " MB",
    "farm.submit_file(": "8 jobs",
    "AsyncClient": "job.done",
}

pytestmark = pytest.mark.farm("oneplus-12", "galaxy-s9")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the programs run: every file they name is here."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("mobilenet.onnx", "small.onnx"):
        (folder / name).write_bytes(build().SerializeToString(deterministic=True))
    (folder / "labels.txt").write_text("".join(f"class {n}\n" for n in range(10)))
    for text in FILES:
        (folder / text.splitlines()[0].removeprefix("# ")).write_text(text)
    return folder


def title(program):
    return next(mark for mark in SAYS if mark in program)


def test_there_is_a_program_for_each_way_to_use_the_farm():
    assert sorted(map(title, PROGRAMS)) == sorted(SAYS)


@pytest.mark.parametrize("program", PROGRAMS, ids=title)
def test_a_program_runs_as_it_stands(farm, folder, program):
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program],
        env=environment() | {"FARM_SOCKET": str(farm.socket)},
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    assert SAYS[title(program)] in done.stdout, done
    assert "failed" not in done.stdout, done


def test_a_program_has_types(tmp_path):
    """As its author checks it: against the installed package, strictly. What `make lint` has read is not read again."""
    names = []
    for number, program in enumerate(PROGRAMS):
        names.append(f"program_{number}.py")
        (tmp_path / names[-1]).write_text(program)
    (tmp_path / "wrong.py").write_text("from farm import Client\nClient().bench('m', on='x', repaet=5)\n")
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"),
            "--cache-dir", str(ROOT / ".mypy_cache"), *names, "wrong.py",
        ],
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done
    assert "wrong.py:2" in errors[0]
    assert "repaet" in errors[0]
