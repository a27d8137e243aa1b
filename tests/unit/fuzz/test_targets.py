"""Every format that farm reads from outside, under any bytes and under good ones with a few changes."""

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS

MUTATIONS = 150


@pytest.mark.parametrize("name", TARGETS)
def test_good_bytes_are_read(name):
    for seed in TARGETS[name].seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_bytes_are_read_or_refused_in_words(name, data):
    target = TARGETS[name]
    seed = data.draw(st.sampled_from((b"", *target.seeds)))
    TARGETS[name].run(seed + data.draw(st.binary(max_size=200)))


@pytest.mark.parametrize("name", TARGETS)
def test_good_bytes_with_changes_are_read_or_refused_in_words(name):
    target, chance = TARGETS[name], random.Random(name)
    for _ in range(MUTATIONS):
        target.run(mutated(chance.choice(target.seeds), chance, target.seeds))


def test_the_same_targets_run_by_hand(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "selector", "--seconds", "0.1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "none broke it" in done.stdout


def test_what_is_libfuzzers_is_not_read_as_ours():
    """atheris is no requirement: without it that is said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "selector", "--atheris", "--", "-runs=1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 or (done.returncode, "atheris is not installed" in done.stdout) == (2, True), done
