"""The pytest plugin: what tests with its fixtures do, with an imitated client, and that it costs nothing unused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np  # noqa: F401 (loaded once a process, and pytester forgets what its runs import)
import pytest

pytest_plugins = ["pytester"]

# What `farm.Client` is to the tests inside: comparisons with the ratio that stands in the model's name.
CLIENT = """
from contextlib import contextmanager
from types import SimpleNamespace

import farm
from farm import NoPhoneError, PhoneError

class Client:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        print("closed")

    @contextmanager
    def lease(self, on, note):
        if on == "none":
            raise NoPhoneError("no phone matches none", hint="farm device list")
        yield SimpleNamespace(device="pixel", environment={"ANDROID_SERIAL": on, "NOTE": note})

    def compare(self, baseline, model, *, on, **fields):
        assert fields in ({}, {"measure_s": 1.0})
        if "broken" in model:
            return [SimpleNamespace(ok=False, device="pixel", error=PhoneError("the phone left"), result={})]
        ratio = float(model)
        found = {"answer": "slower", "ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "pairs": 80}
        return [SimpleNamespace(ok=True, device="pixel", error=None, result={"comparison": found})]

farm.Client = Client
"""
TESTS = """
def test_phone(farm_phone):
    assert farm_phone.environment == {"ANDROID_SERIAL": "android", "NOTE": "test_phone"}

def test_same(assert_not_slower):
    (case,) = assert_not_slower("1.0", "0", measure_s=1.0)
    assert (case.answer, case.device) == ("within", "pixel")

def test_unsure(assert_not_slower):
    (case,) = assert_not_slower("1.025", "0")
    assert case.answer == "cannot tell"

def test_slower(assert_not_slower):
    assert_not_slower("1.1", "0")

def test_worse(assert_not_slower):
    assert_not_slower("1.2", "0", fail_if="worse by 2 %")

def test_allowed(assert_not_slower):
    assert_not_slower("1.1", "0", fail_if="slower by 20 %")

def test_broken(assert_not_slower):
    assert_not_slower("broken", "0")

def test_condition(assert_not_slower):
    assert_not_slower("1.0", "0", fail_if="faster")

def test_both(farm_phone, assert_not_slower):
    pass
"""


@pytest.fixture
def run(pytester):
    pytester.makeconftest(CLIENT)
    pytester.makepyfile(TESTS)
    return lambda *options: pytester.runpytest("-p", "farm.pytest_plugin", "-p", "no:asyncio", *options)


def test_answers_fail_tests_only_where_they_are_sure(run):
    done = run("--farm-on", "android", "--junit-xml", "out.xml")
    done.assert_outcomes(passed=4, failed=4, errors=1)
    done.stdout.fnmatch_lines(
        [
            "*farm_phone holds the phone*",
            "*1.1 on pixel: slower, +10.0% (+9.0% .. +11.0%) (0, in 80 pairs)*",
            "*1.2 on pixel: worse, +20.0% (+19.0% .. +21.0%) (0, in 80 pairs)*",
            "*broken on pixel: failed, - (the phone left)*",
            "*hint: --fail-if*",
        ]
    )
    for word in ("Traceback", "another exception"):
        assert word not in done.stdout.str()


def test_answers_are_in_the_junit_file(run, pytester):
    run("--farm-on", "android", "-k", "test_same", "--junit-xml", "out.xml")
    assert "1.0 on pixel: within" in (pytester.path / "out.xml").read_text()


def test_without_phones_named_tests_are_skipped(run):
    run("-k", "not both").assert_outcomes(skipped=8)


def test_a_farm_without_a_phone_is_a_failure_with_its_hint(run):
    done = run("--farm-on", "none", "-k", "test_phone")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*no phone matches none*", "*hint: farm device list*"])


def test_it_imports_nothing_of_the_farm_until_a_test_asks():
    code = "import sys; import farm.pytest_plugin; print(sorted(each for each in sys.modules if each[:5] == 'farm.'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['farm.pytest_plugin']"
