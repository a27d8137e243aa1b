"""Examples in help texts are lines that can be typed; summaries fit an 80-column terminal; the page is current."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from farm.cli.examples import EXAMPLES
from farm.cli.lazy import commands_of
from farm.cli.main import SECTIONS, app
from farm.cli.man import man
from farm.cli.manual import page
from farm.core.errors import HostError

ROOT = Path(__file__).parents[3]
TREE = get_command(app)
LINES = [line for lines in EXAMPLES.values() for line in lines]


def found(path):
    command = TREE
    for name in path.split():
        command = commands_of(command)[name]
    return command


@pytest.mark.parametrize("line", LINES)
def test_an_example_parses(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed = line.split("   ")[0]  # what follows is said about it
    words = shlex.split(typed.partition(" > ")[0])
    assert words.pop(0) == "farm"
    context = TREE.make_context("farm", [], resilient_parsing=True)
    command, path = TREE, []
    while words and words[0] in commands_of(command):
        path.append(words.pop(0))
        command = commands_of(command)[path[-1]]
    assert " ".join(path) in EXAMPLES
    command.make_context(path[-1], words, parent=context)


def test_examples_belong_to_commands_and_are_shown():
    for path in EXAMPLES:
        assert EXAMPLES[path][0].split("   ")[0] in (found(path).epilog or ""), path


def test_summaries_fit_a_terminal():
    for some in SECTIONS.values():
        for name, (_, about) in some.items():
            assert about[0].isupper() or about.startswith("adb"), name
            assert len(about) < 60, name


def test_the_manual_page_is_current():
    """`farm man --roff > man/farm.1` writes it."""
    assert (ROOT / "man" / "farm.1").read_text() == page(TREE, SECTIONS)


def plain(source):
    """Roff without its fonts and with its dashes as such."""
    return re.sub(r"\\f[BIR]|\\&", "", source).replace("\\-", "-")


def test_without_the_program_man_it_says_where_the_same_stands(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(HostError) as error:
        man()
    assert "farm COMMAND --help" in error.value.hint


def test_the_manual_page_tells_of_every_command():
    text = plain(page(TREE, SECTIONS))
    for name, command in commands_of(TREE).items():
        for path in ([name, each] for each in commands_of(command)) if commands_of(command) else [[name]]:
            assert f"farm {' '.join(path)}" in text, path
    assert "130" in text.partition("EXIT STATUS")[2]


def test_a_page_about_one_command_says_its_options_once():
    text = plain(page(TREE, SECTIONS, only=("bench",)))
    assert text.count("--half-width N") == 1
    assert "farm bench mobilenet.onnx --on android" in text
    with pytest.raises(KeyError):
        page(TREE, SECTIONS, only=("nothing",))


@pytest.mark.parametrize(
    "check", [["groff", "-ww", "-man", "-Tutf8", "-"], ["mandoc", "-T", "lint", "-W", "warning"]], ids=lambda c: c[0]
)
def test_formatters_have_nothing_to_say(check):
    if shutil.which(check[0]) is None:
        pytest.skip(f"{check[0]} is not installed")
    done = subprocess.run(check, input=page(TREE, SECTIONS), capture_output=True, text=True, timeout=60, check=False)
    said = done.stderr + (done.stdout if check[0] == "mandoc" else "")
    assert (done.returncode, said) == (0, "")
