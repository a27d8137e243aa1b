"""The runners refuse numbers that are none, before they load anything."""

import subprocess
from pathlib import Path

import pytest

from farm.runtime import server
from tests.support.needs import needs
from tests.support.waiting import HANG_S

SOURCES = Path(server.__file__).with_name("runners")
pytestmark = needs("gcc")
WORDS = {"ort": ("library", "model", "5", "1", "output"), "litert": ("library", "model", "5", "output")}


@pytest.mark.parametrize(
    ("name", "place", "given", "said"),
    [
        ("ort", 2, "0", "RUNS must be a whole number of 1 or more"),
        ("ort", 2, "5x", "RUNS must be a whole number of 1 or more"),
        ("ort", 3, "x", "THREADS must be a whole number of 0 or more"),
        ("ort", 3, "-5", "THREADS must be a whole number of 0 or more"),
        ("litert", 2, "", "RUNS must be a whole number of 1 or more"),
    ],
)
def test_a_number_that_is_none_is_refused(tmp_path, name, place, given, said):
    program = tmp_path / "runner"
    subprocess.run(["gcc", "-o", program, SOURCES / f"{name}_runner.c", "-ldl"], check=True, timeout=60)
    words = list(WORDS[name])
    words[place] = given
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (1, f"{said}\n")
