"""TAB in bash and by the protocol of typer's scripts, against a daemon whose answers are made up and without one."""

import os
import subprocess
import sys

import pytest
from typer._completion_classes import BashComplete
from typer.main import get_command

from farm.cli import complete
from farm.cli.main import app

BASH_DRIVER = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_farm_completion farm
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path):
    """A PATH with `farm` in it, and the script for bash."""
    program = tmp_path / "bin" / "farm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m farm "$@"\n')
    program.chmod(0o755)
    (tmp_path / "farm.bash").write_text("\n".join(run(tmp_path, "farm", "completions", "bash")))
    return tmp_path


def run(folder, *command, socket="/nowhere/farm.sock", **environ):
    environ = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FARM_SOCKET": str(socket), **environ}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert done.stderr == ""
    return [line for line in done.stdout.split("\n") if line]


def in_bash(folder, *words, **options):
    return run(folder, "bash", "-c", BASH_DRIVER, "bash", str(folder / "farm.bash"), "farm", *words, **options)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["be"], ["bench"]),
        (["device", "dr"], ["drain"]),
        (["bench", "m.onnx", "--half"], ["--half-width"]),
        (["bench", "m.onnx", "--precision", "float16_"], ["float16_acc32"]),
        (["bench", "ne"], []),  # bash offers files then
        (["no", "such"], []),
    ],
    ids=" ".join,
)
def test_commands_options_and_choices(folder, words, wanted):
    assert in_bash(folder, *words) == wanted


def test_names_come_from_the_daemon(folder, daemon):
    assert in_bash(folder, "device", "show", "", socket=daemon.socket) == ["pixel", "galaxy"]
    assert in_bash(folder, "device", "show", "g", socket=daemon.socket) == ["galaxy"]
    assert in_bash(folder, "explain", "device", "p", socket=daemon.socket) == ["pixel"]
    assert in_bash(folder, "bench", "m.onnx", "--on", "and", socket=daemon.socket) == ["android"]


def test_without_a_daemon_no_name_is_offered_and_nothing_said(folder):
    assert in_bash(folder, "device", "show", "") == []
    assert in_bash(folder, "watch", "pix") == []


def test_a_label_is_completed_behind_its_equals_sign(folder, daemon):
    """bash begins a new word there, so it gets what stands behind."""
    for words in (["--on", "soc", "=", "s"], ["--on", "android,soc", "=", "s"]):
        assert in_bash(folder, "bench", "m.onnx", *words, socket=daemon.socket) == ["sm8650"]
    assert in_bash(folder, "bench", "m.onnx", "--on", "=", "and", socket=daemon.socket) == ["android"]


@pytest.mark.parametrize(("shell", "wanted"), [("zsh", ["pixel", "galaxy"]), ("fish", ["pixel\t", "galaxy\t"])])
def test_other_shells_are_answered(folder, daemon, shell, wanted):
    asked = {"_FARM_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "farm device show "}
    said = "\n".join(run(folder, "farm", socket=daemon.socket, _TYPER_COMPLETE_FISH_ACTION="get-args", **asked))
    assert all(name in said for name in wanted)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(folder, shell):
    assert complete.VARIABLE in "".join(run(folder, "farm", "completions", shell))


def test_names_that_a_shell_would_obey_are_not_offered(folder, daemon):
    daemon.devices = ("$(reboot)", "a b", "`id`", "pixel")
    assert in_bash(folder, "device", "show", "", socket=daemon.socket) == ["pixel"]


def test_descriptions_that_a_shell_would_obey_are_tamed(monkeypatch):
    """typer's script for zsh evaluates them."""
    rows = {"jobs": [{"id": "j1", "state": "done", "kind": "run", "name": "a\\\"$(reboot)`id`;'", "array": None}]}
    monkeypatch.setattr(complete, "_asked", lambda *_, **__: rows)
    assert complete.jobs("") == [("j1", "done run a reboot id ")]


def test_a_real_bash_completes_at_its_prompt(folder):
    """Through readline, as a person would."""
    from tests.support.terminal import Terminal

    environ = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PS1": "READY> ", "HOME": str(folder)}
    with Terminal(["bash", "--norc", "--noprofile", "-i"], environ=environ) as shell:
        shell.shows("READY> ")
        shell.type(f"source {folder}/farm.bash\n")
        shell.shows("READY> ")
        shell.type("farm reserva\t")
        shell.shows("farm reservation ")


ANSWERS = {
    "auth.list": {
        "accounts": [
            {"name": "ann", "role": "user", "revoked_at": None},
            {"name": "gone", "role": "user", "revoked_at": "2026-11-22"},
        ]
    },
    "job.list": {"jobs": [{"kind": "bench", "name": "net.onnx"}, {"kind": "shell", "name": "id"}]},
    "device.list": {"devices": [{"name": "pixel", "state": "ready", "soc": ""}]},
}


@pytest.mark.parametrize(
    ("words", "typed", "wanted"),
    [
        (["auth", "revoke"], "", ["ann"]),
        (["history"], "", ["net.onnx"]),
        (["tune", "net.onnx", "--target"], "adreno-", ["adreno-texture", "adreno-clml"]),
        (["demo", "--phones"], "oneplus-12,galaxy-a", ["oneplus-12,galaxy-a55"]),
        (["demo", "fault"], "p", ["pixel"]),
        (["demo", "fault", "pixel"], "full_", ["full_disk"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_every_argument_that_names_something_is_completed(words, typed, wanted, monkeypatch):
    monkeypatch.setattr(complete, "_asked", lambda kind, **_: ANSWERS[kind])
    shell = BashComplete(get_command(app), {}, "farm", complete.VARIABLE)
    assert [item.value for item in shell.get_completions(words, typed)] == wanted
