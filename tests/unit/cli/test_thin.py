"""The CLI's promises: cheap to start, one line per mistake, documented exit codes."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.forked_commands import run_farm

HEAVY = {"tvm", "sqlalchemy", "adbutils", "pydantic", "numpy", "fastapi"}
# What only other commands need.
OTHERS = {
    "farm.client",
    "farm.config",
    "farm.simulation.virtual_farm",
    "farm.kinds.tune.command",
    "farm.kinds.lease.spec",
    "tomllib",
    "rich",
    "textual",
}

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


def farm(*arguments, tmp_path, code="", **environ):
    environment = {**os.environ, "FARM_SOCKET": str(tmp_path / "absent.sock"), **environ}
    command = [sys.executable, "-c", code, *arguments] if code else [sys.executable, "-m", "farm", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "command", [["status"], ["job", "list"], ["job", "cancel", "x"], ["lease", "list"]], ids=" ".join
)
def test_looking_imports_nothing_heavy(tmp_path, command):
    done = farm(*command, tmp_path=tmp_path, code=PROBE)
    code, *modules = done.stdout.split()
    assert code == "4"
    assert not (HEAVY | OTHERS) & set(modules)


@pytest.mark.parametrize(
    ("words", "offered"), [("farm bench net.onnx --half", "--half-width"), ("farm run a --on ", "")]
)
def test_tab_imports_nothing_heavy(tmp_path, words, offered):
    given = words.split(" ")
    typed = {"_FARM_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(given), "COMP_CWORD": str(len(given) - 1)}
    done = farm(tmp_path=tmp_path, code=PROBE, **typed)
    answer, _, probed = done.stdout.rpartition("\n0 ")
    assert answer == offered
    modules = probed.split()
    assert "farm.model.specs" in modules
    assert not (HEAVY | OTHERS) & set(modules)


def test_the_gate_imports_nothing_heavy(tmp_path):
    taken = tmp_path / "gate.sock"
    taken.mkdir()  # so that it ends before it serves
    done = farm("gate", "--socket", str(taken), tmp_path=tmp_path, code=PROBE)
    code, *modules = done.stdout.split()
    assert code == "1"
    assert "farm.tvm_server.gate.process" in modules
    assert not (HEAVY | OTHERS | {"farm.daemon", "farm.leasing", "farm.devices", "farm.store", "zmq"}) & set(modules)


def test_a_mistake_in_the_configuration_is_reported_before_the_daemon_is_imported(tmp_path):
    done = farm("serve", "--config", "/absent.toml", tmp_path=tmp_path, code=PROBE)
    code, *modules = done.stdout.split()
    assert code == "2"
    assert not {"farm.daemon", "farm.store", "sqlalchemy", "fastapi"} & set(modules)


def test_the_package_itself_imports_nothing_and_its_names_are_there(tmp_path):
    probe = (
        "import sys, farm; before = {name for name in sys.modules if name.startswith('farm')};"
        "assert all(getattr(farm, name) for name in farm.__all__); assert not hasattr(farm, 'Cleint');"
        "assert {*farm.__all__} <= {*dir(farm)}; print(*before)"
    )
    done = farm(tmp_path=tmp_path, code=probe)
    assert (done.stdout, done.stderr) == ("farm\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status"], 4, "no farm daemon listens"),
        (["device", "list"], 4, "no farm daemon listens"),
        (["bench", "absent.onnx", "--on", "android"], 2, "absent.onnx does not exist"),
        (["bench", __file__, "--on", "android", "--repeat", "0"], 2, "--repeat"),
        (["run", "absent.onnx", "--on", "android"], 2, "absent.onnx does not exist"),
        (["run", __file__, "--on", "android", "--fill", "sevens"], 2, "sevens"),
        (["shell", "--on", "android", "--", ""], 2, "the line is empty"),
        (["shell", "--on", "android", "--", "id"], 4, "no farm daemon listens"),
        (["submit", "absent.toml"], 2, "absent.toml does not exist"),
        (["watch", "job-1"], 4, "no farm daemon listens"),
        (["logs", "job-1"], 4, "no farm daemon listens"),
        (["device", "set", "pixel"], 2, "give --name, --pool or --label"),
        (["uninstall"], 2, "add --yes"),
        (["statsu"], 2, "statsu"),
        (["explain", "weather", "x"], 2, "weather"),
        (["demo", "--phones", "nokia-3310"], 2, "nokia-3310"),
        (["serve", "--config", "/absent.toml"], 2, "/absent.toml"),
    ],
)
def test_a_mistake_is_one_clear_message_and_its_exit_code(tmp_path, arguments, code, said):
    done = run_farm(*arguments, environ={**os.environ, "FARM_SOCKET": str(tmp_path / "absent.sock")})
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status"], 4, "FARM_SOCKET names {}/run/control.sock, and no farm is there"),
        (["doctor"], 2, "FARM_CONFIG names {}/farm.toml, which does not exist"),
        (["serve"], 2, "FARM_CONFIG names {}/farm.toml, which does not exist"),
    ],
)
def test_exports_of_a_demo_that_has_ended_are_named(tmp_path, arguments, code, said):
    gone = tmp_path / "farm-ab12"
    exports = {"FARM_SOCKET": str(gone / "run/control.sock"), "FARM_CONFIG": str(gone / "farm.toml")}
    done = run_farm(*arguments, environ={**os.environ, **exports})
    assert (done.returncode, done.stdout) == (code, "")
    assert said.format(gone) in done.stderr
    assert "unset FARM_SOCKET FARM_CONFIG " in done.stderr.replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize("start", [("-m", "farm"), ("-c", "from {} import {}; {}()")], ids=["module", "script"])
@pytest.mark.parametrize(
    "moment", ["signal", "farm.cli.main", "typer", "farm.cli.output", "farm.cli.status", "zmq", "exit"]
)
def test_an_interrupt_at_any_moment_is_silent(tmp_path, moment, start):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT.format(moment=moment))
    module, _, function = PYPROJECT["project"]["scripts"]["farm"].partition(":")
    command = [
        sys.executable,
        *(each.format(module, function, function) for each in start),
        "--socket",
        "none",
        "status",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if moment == "exit":
        assert done.returncode == -signal.SIGINT  # as shells have it, 130
        assert "Traceback" not in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_every_command_says_what_it_does(tmp_path):
    done = farm("--help", tmp_path=tmp_path)
    assert done.returncode == 0
    for command in (
        "serve",
        "demo",
        "status",
        "device",
        "bench",
        "run",
        "shell",
        "submit",
        "job",
        "logs",
        "watch",
        "doctor",
    ):
        assert command in done.stdout
