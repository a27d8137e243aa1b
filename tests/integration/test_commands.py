"""Every command that only looks prints text for people, and one JSON document with `--json`."""

import json
import subprocess
import sys

import pytest

from tests.support.tvm import environment
from tests.support.whole_farm import phones, running_farm

LOOKING = [
    ("status",),
    ("device", "list"),
    ("device", "show", "{}"),
    ("bundle", "list"),
    ("bundle", "show", "virtual"),
    ("bundle", "verify", "virtual"),
    ("alias", "list"),
    ("job", "list"),
    ("lease", "list"),
    ("forward", "list"),
    ("explain", "device", "{}"),
    ("explain", "key", "android"),
    ("usage", "--since", "1h"),
    ("usage", "--by", "device"),
    ("reservation", "list"),
    ("doctor",),
]


@pytest.fixture(scope="module")
def farm():
    with running_farm("galaxy-s9") as farm:
        yield farm


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_it_is_told_in_text_and_as_json(farm, command):
    words = [word.format(phones(farm)[0].name) for word in command]
    text, document = farm.farm(*words), farm.farm(*words, "--json")
    assert (text.returncode, document.returncode) == (0, 0), (text, document)
    assert text.stdout.strip() or text.stderr.strip()  # "no jobs" is no data
    assert json.loads(document.stdout) is not None


def test_words_are_completed():
    done = subprocess.run(
        [sys.executable, "-m", "farm"],
        env=environment() | {"_FARM_COMPLETE": "complete_bash", "COMP_WORDS": "farm device mai", "COMP_CWORD": "2"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["maintain"]
