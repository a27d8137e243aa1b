"""Examples in help texts are lines that can be typed; summaries fit an 80-column terminal; the page is current."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

import farm
from farm.cli.main import EXAMPLES, SECTIONS, app, with_wait_values
from farm.head.planning import JOB_ID_BYTES
from farm.kinds import KINDS
from tests.support.needs import need

TREE = get_command(app)
CONTEXT = TREE.make_context("farm", [], resilient_parsing=True)


def commands_of(command):
    """A group's commands by name; none of a command that is no group."""
    if not hasattr(command, "list_commands"):
        return {}
    return {name: command.get_command(CONTEXT, name) for name in command.list_commands(CONTEXT)}


PAGE = (Path(farm.__file__).parents[1] / "man/farm.1").read_text(encoding="utf-8")
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
    words = shlex.split(re.split(r" [>|] ", typed)[0])
    assert words.pop(0) == "farm"
    context = TREE.make_context("farm", [], resilient_parsing=True)
    command, path = TREE, []
    while words and words[0] in commands_of(command):
        path.append(words.pop(0))
        command = commands_of(command)[path[-1]]
    assert " ".join(path) in EXAMPLES
    command.make_context(path[-1], with_wait_values([*path, *words])[len(path) :], parent=context)


def test_examples_belong_to_commands_and_are_shown():
    for path in EXAMPLES:
        assert EXAMPLES[path][0].split("   ")[0] in (found(path).epilog or ""), path


def test_summaries_fit_a_terminal():
    for some in SECTIONS.values():
        for name, (_, about) in some.items():
            assert about[0].isupper() or about.startswith("adb"), name
            assert len(about) < 60, name


def plain(source):
    """Roff without its fonts and with its dashes as such."""
    return re.sub(r"\\f[BIRP]|\\&|\\%|\\:", "", source).replace("\\-", "-")


def test_the_manual_page_is_current():
    """It names every command, option and example; `make man` writes it."""
    page = plain(PAGE)
    sections = {
        title.strip(): text for title, text in re.findall(r"^\.SH (.*)\n((?:(?!\.SH ).*\n)*)", page, re.MULTILINE)
    }
    for name, command in commands_of(TREE).items():
        below = commands_of(command)
        for path, each in ((f"{name} {verb}", each) for verb, each in below.items()) if below else ((name, command),):
            text = sections[f"FARM {path.upper()}"]
            options = [option for part in each.params if not getattr(part, "hidden", False) for option in part.opts]
            assert not [option for option in options if option.startswith("--") and option not in text], path
    assert not [line for line in LINES if line not in page]
    assert "130" in page.partition("EXIT STATUS")[2]


def test_groff_has_nothing_to_say():
    need("groff")
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-"], input=PAGE, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_ids_of_jobs_in_examples_look_like_real_ones():
    shown = re.findall(r"farm (?:watch|logs(?: -f)?|explain job|job (?:cancel|output)) (?!-)([\w-]+)", "\n".join(LINES))
    assert len(shown) > 5
    for each in shown:
        kind, _, number = each.rpartition("-")
        assert kind in KINDS
        assert len(number) in (4, 2 * JOB_ID_BYTES)  # whole, or a beginning
        int(number, 16)
