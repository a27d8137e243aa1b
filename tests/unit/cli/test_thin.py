"""The CLI's promises: cheap to start, silent when it is interrupted, and a demo that has ended is named."""

import ast
import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from farm.common.install import extra_of
from tests.support.forked_commands import run_farm

HEAVY = {"tvm", "sqlalchemy", "adbutils", "pydantic", "numpy", "fastapi"}
OTHERS = {  # what only other commands need
    "farm.client", "farm.config", "farm.simulation.virtual_farm", "farm.kinds.tune.command", "farm.kinds.lease",
    "tomllib", "rich",
}  # fmt: skip

PROBE = """
import sys
from farm.cli.main import main
try:
    main()
except SystemExit as end:
    print(end.code, *sorted({*sys.modules, *(name.partition(".")[0] for name in sys.modules)}))
"""

# An interrupt as a module is about to be imported, or as the interpreter ends.
INTERRUPT = """
import atexit, os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{moment}":
            os.kill(os.getpid(), 2)

sys.modules.pop("{moment}", None)
sys.meta_path.insert(0, Finder())
if "{moment}" == "exit":
    atexit.register(os.kill, os.getpid(), 2)
"""
PYPROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())


def run(*command, **environ):
    environment = {**os.environ, **environ}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def probed(tmp_path):
    """The words that a command printed before its end, its exit code, and the modules that it had imported."""

    def probed(*arguments, **environ):
        done = run(sys.executable, "-c", PROBE, *arguments, FARM_SOCKET=str(tmp_path / "absent.sock"), **environ)
        *said, end = done.stdout.strip().split("\n")
        code, *modules = end.split()
        return "\n".join(said), code, set(modules)

    return probed


def test_what_no_extra_brings_is_installed_with_farm():
    """The error of an import names the extra that brings it; without one, farm itself has to."""
    own = {each.partition(">=")[0] for each in PYPROJECT["project"]["dependencies"]}
    nodes = [node for path in Path("farm").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imported = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    brought = {top: {each.lower().replace("_", "-") for each in by} for top, by in packages_distributions().items()}
    tops = {each.partition(".")[0] for each in imported if not extra_of(each)} - sys.stdlib_module_names
    assert {top for top in tops if not brought.get(top, set()) & own} == {"farm", "pytest"}  # pytest loads the plugin


@pytest.mark.parametrize("command", ["status", "job list", "job cancel x", "lease list"])
def test_looking_imports_nothing_heavy(probed, command):
    _, code, modules = probed(*command.split())
    assert (code, (HEAVY | OTHERS) & modules) == ("4", set())


@pytest.mark.parametrize(
    ("words", "offered"), [("farm bench net.onnx --half", "--half-width"), ("farm run a --on ", "")]
)
def test_tab_imports_nothing_heavy(probed, words, offered):
    given = words.split(" ")
    typed = {"_FARM_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(given), "COMP_CWORD": str(len(given) - 1)}
    said, code, modules = probed(**typed)
    assert (said, code, (HEAVY | OTHERS) & modules) == (offered, "0", set())
    assert "farm.model.specs" in modules


def test_the_gate_imports_nothing_heavy(probed, tmp_path):
    (tmp_path / "gate.sock").mkdir()  # so that it ends before it serves
    _, code, modules = probed("gate", "--socket", str(tmp_path / "gate.sock"))
    assert (code, "farm.tvm_server.gate.process" in modules) == ("1", True)
    assert not (HEAVY | OTHERS | {"farm.daemon", "farm.leasing", "farm.devices", "farm.store", "zmq"}) & modules


def test_a_mistake_in_the_configuration_is_reported_before_the_daemon_is_imported(probed):
    _, code, modules = probed("serve", "--config", "/absent.toml")
    assert (code, {"farm.daemon", "farm.store", "sqlalchemy", "fastapi"} & modules) == ("2", set())


def test_the_package_itself_imports_nothing_and_its_names_are_there():
    probe = (
        "import sys, farm; before = {name for name in sys.modules if name.startswith('farm')};"
        "assert all(getattr(farm, name) for name in farm.__all__); assert not hasattr(farm, 'Cleint');"
        "assert {*farm.__all__} <= {*dir(farm)}; print(*before)"
    )
    done = run(sys.executable, "-c", probe)
    assert (done.stdout, done.stderr) == ("farm\n", "")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("status", 4, "FARM_SOCKET names {}/run/control.sock, and no farm is there"),
        ("doctor", 2, "FARM_CONFIG names {}/farm.toml, which does not exist"),
        ("serve", 2, "FARM_CONFIG names {}/farm.toml, which does not exist"),
    ],
)
def test_exports_of_a_demo_that_has_ended_are_named(tmp_path, command, code, said):
    gone = tmp_path / "farm-ab12"
    exports = {"FARM_SOCKET": str(gone / "run/control.sock"), "FARM_CONFIG": str(gone / "farm.toml")}
    done = run_farm(command, environ={**os.environ, **exports})
    assert (done.returncode, done.stdout, said.format(gone) in done.stderr) == (code, "", True)
    assert "unset FARM_SOCKET FARM_CONFIG " in done.stderr.replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize("start", [("-m", "farm"), ("-c", "from {} import {}; {}()")], ids=["module", "script"])
@pytest.mark.parametrize(
    "moment", ["signal", "farm.cli.main", "typer", "farm.cli.output", "farm.cli.status", "zmq", "exit"]
)
def test_an_interrupt_at_any_moment_is_silent(tmp_path, moment, start):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT.format(moment=moment))
    module, _, function = PYPROJECT["project"]["scripts"]["farm"].partition(":")
    script = [each.format(module, function, function) for each in start]
    done = run(sys.executable, *script, "--socket", "none", "status", PYTHONPATH=str(tmp_path))
    if moment == "exit":
        assert done.returncode == -signal.SIGINT  # as shells have it, 130
        assert "Traceback" not in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
