"""docs/models.md: the commands of each tutorial, in order, on one farm of virtual phones.

What differs from the document (`adapted`): virtual phones have no GPU, so `--target adreno` becomes `--target cpu`, in
float32, as half precision takes this host's processor a minute a run. Searches are of a few trials that the random cost
model chooses. An untuned ResNet takes seconds a run: the small network stands in for those that are tuned, and the
other is timed twice on one phone (test_real_networks.py has ResNet-18 and MobileNetV2 in full size). The rest runs as
it stands.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from tests.support.pages import ROOT, section
from tests.support.tvm import environment

GUIDE = section(ROOT / "docs" / "models.md", "From the TVM tutorials")
SECTION = re.compile(r"^### (.*?)$(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = {title: CONSOLE.findall(text) for title, text in SECTION.findall(GUIDE)}
CUT = {"--trials": "4", "--repeat": "2"}
MORE = {
    "bench": ["--devices", "1", "--measure", "5"],
    "compare": ["--measure", "5"],
    "tune": ["--cost-model", "random"],
}
STAND_INS = {"resnet18": "small_cnn", "mobilenet_v2": "small_cnn"}
SAYS = {  # what only a command that worked prints
    "bench": "MEDIAN",
    "compare": "PAIRS",
    "compile": "compiled in",
    "history": "MEDIAN",
    "model": "",
    "records": "",
    "run": "",
    "tune": "speed-up",
}


def adapted(command: str) -> list[str]:
    """A line of the document as it runs here."""
    words = [STAND_INS.get(word, word) for word in shlex.split(command)]
    for option, value in CUT.items():
        if option in words:
            words[words.index(option) + 1] = value
    if "adreno" in words:
        words[words.index("adreno")] = "cpu"
        words += ["--precision", "float32"]  # the last one counts
    more = MORE.get(words[1], [])
    return words + (more[:-2] if "--repeat" in words else more)  # it and --measure exclude each other


pytestmark = pytest.mark.farm("oneplus-12", "oneplus-12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where people would type it all: later tutorials use files of earlier ones."""
    return tmp_path_factory.mktemp("tutorials")


def test_every_tutorial_has_commands():
    assert [len(blocks) for blocks in TUTORIALS.values()] == [1] * 5


@pytest.mark.parametrize("title", TUTORIALS)
def test_the_commands_of(farm, folder, title):
    for line in TUTORIALS[title][0].splitlines():
        program, *words = adapted(line.removeprefix("$ "))
        assert program == "farm"
        done = subprocess.run(
            [sys.executable, "-m", "farm", *words],
            env=environment() | {"FARM_SOCKET": str(farm.socket), "XDG_CACHE_HOME": str(folder / "cache")},
            cwd=folder, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        print(f"$ {line}\n{done.stdout}{done.stderr}")  # what people see, when it fails
        assert done.returncode == 0, line
        assert SAYS[words[0]] in done.stdout + done.stderr, line
