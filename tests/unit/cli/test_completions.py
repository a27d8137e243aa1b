"""TAB in real shells, against a daemon whose answers are made up, and without one."""

import os
import shutil
import subprocess
import sys

import pytest

from farm.cli.complete import DEBUG, answer, offered
from farm.cli.completions import SCRIPTS, Shell

BASH_DRIVER = """
source "$1"
COMP_LINE=$2
COMP_POINT=${#2}
COMP_WORDS=(farm)
COMP_CWORD=0
compopt() { printf '(%s)\\n' "$*"; }
_farm
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def folder(tmp_path):
    """A PATH with `farm` in it, and the scripts."""
    program = tmp_path / "bin" / "farm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m farm "$@"\n')
    program.chmod(0o755)
    for shell, script in SCRIPTS.items():
        (tmp_path / f"farm.{shell}").write_text(script)
    return tmp_path


def run(folder, *command, socket="/nowhere/farm.sock", typed=""):
    environ = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FARM_SOCKET": str(socket)}
    environ |= {"HOME": str(folder), "ZDOTDIR": str(folder), "LANG": "C.UTF-8", "TERM": "dumb"}
    done = subprocess.run(
        command, env=environ, input=typed, capture_output=True, text=True, timeout=60, check=False, cwd=folder
    )
    return done.stdout.split("\n")[:-1], done.stderr


def in_bash(folder, line, **options):
    lines, said = run(folder, "bash", "-c", BASH_DRIVER, "bash", str(folder / "farm.bash"), line, **options)
    assert said == ""
    return [line for line in lines if line]


def in_fish(folder, line, **options):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = f"source {folder}/farm.fish; complete -C '{line}'"
    lines, said = run(folder, "fish", "--no-config", "-c", script, **options)
    assert said == ""
    return [line.partition("\t")[0] for line in lines]


def in_zsh(folder, line, **options):
    """What the script hands to zsh's `_describe`, which draws it."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script = (
        f"source {folder}/farm.zsh; _describe() {{ print -l -- ${{(P)3}} }}; _files() {{ print -- '(files)' }};"
        "words=(farm ${=1}); [[ $1 == *' ' ]] && words+=(''); CURRENT=$#words; _farm"
    )
    lines, said = run(folder, "zsh", "-f", "-c", script, "zsh", line.removeprefix("farm "), **options)
    assert said == ""
    return [each.replace("\\:", "\0").partition(":")[0].replace("\0", ":") for each in lines]


SHELLS = {Shell.BASH: in_bash, Shell.FISH: in_fish, Shell.ZSH: in_zsh}
every_shell = pytest.mark.parametrize("shell", list(SHELLS), ids=str)


@every_shell
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("farm be", ["bench"]),
        ("farm device dr", ["drain"]),
        ("farm bench m.onnx --half", ["--half-width"]),
        ("farm bench m.onnx --precision float16_", ["float16_acc32"]),
    ],
)
def test_commands_options_and_choices(folder, shell, line, wanted):
    assert SHELLS[shell](folder, line) == wanted


@every_shell
def test_names_come_from_the_daemon(folder, daemon, shell):
    assert SHELLS[shell](folder, "farm device show ", socket=daemon.socket) == ["pixel", "galaxy"]
    assert SHELLS[shell](folder, "farm device show g", socket=daemon.socket) == ["galaxy"]
    assert SHELLS[shell](folder, "farm explain device p", socket=daemon.socket) == ["pixel"]
    assert SHELLS[shell](folder, "farm bench m.onnx --on and", socket=daemon.socket) == ["android"]


@every_shell
def test_without_a_daemon_nothing_is_offered_and_nothing_said(folder, shell):
    (folder / "pixel.onnx").touch()
    assert SHELLS[shell](folder, "farm device show ") == []
    assert SHELLS[shell](folder, "farm watch pix") == []


def test_files_are_the_shells_matter(folder):
    (folder / "net.onnx").touch()
    assert in_bash(folder, "farm bench ne") == ["(-o default)"]
    assert "net.onnx" in in_fish(folder, "farm bench ne")
    assert in_zsh(folder, "farm bench ne") == ["(files)"]


def test_a_label_is_completed_behind_its_equals_sign(folder, daemon):
    """bash begins a new word there, so it gets what stands behind; fish gets the whole word."""
    assert in_bash(folder, "farm bench m.onnx --on soc=s", socket=daemon.socket) == ["sm8650"]
    assert in_bash(folder, "farm bench m.onnx --on=and", socket=daemon.socket) == ["android"]
    assert in_fish(folder, "farm bench m.onnx --on soc=s", socket=daemon.socket) == ["soc=sm8650"]
    assert in_bash(folder, "farm bench m.onnx --on android,soc=s", socket=daemon.socket) == ["sm8650"]


def test_names_that_a_shell_would_obey_are_not_offered(folder, daemon):
    daemon.devices = ("$(reboot)", "a b", "`id`", "pixel")
    assert in_bash(folder, "farm device show ", socket=daemon.socket) == ["pixel"]


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


def test_lines_that_are_half_typed_are_understood():
    assert offered(["job"], "li")[0].values[0][0] == "list"
    assert offered(["no", "such"], "x")[0].values == ()
    assert offered(["bench"], "--on=")[1] == "--on="


ANSWERS = {
    "auth.list": {
        "accounts": [
            {"name": "ann", "role": "user", "revoked_at": None},
            {"name": "gone", "role": "user", "revoked_at": "2026-11-22"},
        ]
    },
    "job.list": {"jobs": [{"kind": "bench", "name": "net.onnx"}, {"kind": "shell", "name": "id"}]},
    "status": {"devices": [{"name": "pixel", "state": "ready", "soc": ""}]},
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
    monkeypatch.setattr("farm.cli.complete._asked", lambda kind, **_: ANSWERS[kind])
    assert [value for value, _ in offered(words, typed)[0].values] == wanted


def test_a_mistake_of_farm_is_kept_out_of_the_line_but_not_from_tests(monkeypatch, capsys):
    monkeypatch.setattr("farm.cli.complete.offered", lambda *_: 1 / 0)
    answer(["bash", "farm be"])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv(DEBUG, "1")
    with pytest.raises(ZeroDivisionError):
        answer(["bash", "farm be"])
