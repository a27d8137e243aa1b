"""The documents: they build without a warning, and the quickstart and the steps from the tutorials do what they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import farm as farm_package
from farm.model.event_kinds import KINDS
from tests.support.pages import ROOT, Shown, blocks, missing, shown
from tests.support.tvm import environment

TUTORIAL = ROOT / "docs" / "quickstart.md"
MIGRATION = ROOT / "docs" / "leases.md"
DEMO, *COMMANDS = shown(TUTORIAL)
EXPORT = re.compile(r"^ *export (\w+)=(\S+)", re.MULTILINE)
PORT = re.compile(r"TVM_TRACKER_PORT=(\d+)")
UP = "farm demo fault "  # of the demo's last line
QUIET = {"PYTHONWARNINGS": "ignore"}  # of programs' own dependencies


@dataclass
class Farm:
    """The demo that the tutorial starts."""

    folder: Path
    said: str
    variables: dict[str, str]
    port: str

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """A line in the reader's second terminal; a farm of one's own has the port 9190."""
        line = command.replace("9190", self.port)
        return subprocess.run(
            ["bash", "-c", line], env=environment() | self.variables | QUIET, cwd=self.folder,
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("reader")
    programs = folder / "bin"
    programs.mkdir()
    for name, module in (("farm", "-m farm"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (programs / name).chmod(0o755)
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    demo = subprocess.Popen(
        ["bash", "-c", f"exec {DEMO.command}"], env=environment() | path | QUIET, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert demo.stdout is not None
    said = ""
    try:
        for line in demo.stdout:
            said += line
            if UP in line:
                break
        port = PORT.search(said)
        assert port, said
        yield Farm(folder, said, path | dict(EXPORT.findall(said)), port[1])
    finally:
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=60)
        assert "Traceback" not in rest, rest
        assert demo.returncode == 0, rest


def test_the_tutorials_farm_starts_as_it_says(farm: Farm) -> None:
    assert not missing(DEMO, farm.said), farm.said


@pytest.mark.parametrize("step", [*COMMANDS, *shown(MIGRATION)], ids=lambda step: step.command)
def test_a_command_does_what_the_page_says(farm: Farm, step: Shown) -> None:
    done = farm.type(step.command)
    assert done.returncode == 0, done
    said = done.stdout + done.stderr
    assert not missing(step, said), (missing(step, said), said)


def test_a_stock_script_of_the_migration_page_runs_as_it_stands(farm: Farm) -> None:
    scripts = blocks(MIGRATION, "python")
    assert len(scripts) == 2
    for script in scripts:
        (farm.folder / "script.py").write_text(script.replace("9190", farm.port))
        done = farm.type("python script.py")
        assert (done.returncode, done.stderr) == (0, ""), done
        assert "right" in done.stdout, done


def test_every_event_of_that_farm_is_in_the_list_with_its_data(farm: Farm) -> None:
    from farm.control.client import ControlClient

    with ControlClient(Path(farm.variables["FARM_SOCKET"])) as client:
        told = [each for each in client.stream("events", since=0, follow=False) if "kind" in each]
    assert {each["kind"] for each in told} >= {"device.ready", "job.done", "lease.granted", "session.ended"}
    assert {each["kind"] for each in told} <= set(KINDS)
    lacks = [(each["kind"], name) for each in told for name in KINDS[each["kind"]].data if name not in each["data"]]
    assert not lacks


def public_names() -> Iterator[str]:
    """What programs may use of farm: each class of `farm.__all__`, and its public methods."""
    for name in set(farm_package.__all__) - {"__version__"}:
        cls = getattr(farm_package, name)
        home = f"{cls.__module__}.{cls.__qualname__}"
        yield home
        yield from (f"{home}.{each}" for each, value in vars(cls).items() if callable(value) and each[0] != "_")


def test_the_documents_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path / "html")],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "html" / "index.html").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or f'href="{page.stem}.html"' in index, page
    python = (tmp_path / "html" / "scripts.html").read_text("utf-8")
    assert [name for name in public_names() if f'id="{name}"' not in python] == []
    asks = re.compile(r"<(script|link|img)[^>]*https?:")
    fetched = [page for page in (tmp_path / "html").glob("*.html") if asks.search(page.read_text("utf-8"))]
    assert not fetched
