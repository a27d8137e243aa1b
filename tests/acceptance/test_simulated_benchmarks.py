"""Each case of the benchmarks of simulated runs still runs on the code it measures; its rate is theirs to tell."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rates
from benchmarks.harness import names

FOLDER = Path(rates.__file__).parent
SIMULATED = [name for name in names() if "benchmarks.rates" in (FOLDER / f"bench_{name}.py").read_text("utf-8")]
CASES = [(name, case) for name in SIMULATED for case in import_module(f"benchmarks.bench_{name}")._cases()]


def test_they_are_found():
    assert {"ci", "energy", "quality", "runtimes", "statistics", "sustain"} <= {name for name, _ in CASES}


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{name}: {case.name}") for name, case in CASES])
def test_one_run_says_whether_the_property_held(case):
    assert case.trial(np.random.default_rng(1)) in (True, False, None)
