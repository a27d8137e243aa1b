"""docs/interfaces.md lists the commands there are: no more, no fewer."""

import re
from pathlib import Path

import typer

from farm.cli.main import app

DOCS = Path(__file__).parents[3] / "docs"


def test_a_word_has_one_meaning():
    rows = [line for line in (DOCS / "glossary.md").read_text().splitlines() if line.startswith("| **")]
    words = [word for row in rows for word in re.findall(r"\*\*([^*]+)\*\*", row.split("|")[1])]
    assert [word for word in words if words.count(word) > 1] == []


def test_every_command_is_in_the_document_and_nothing_else():
    text = (DOCS / "interfaces.md").read_text()
    section = text.partition("## Command line\n")[2].partition("\n## ")[0]
    listed = section.partition("Verbs alone:")[0]
    groups = {
        group: set(verbs.split("|")) for group, verbs in re.findall(r"`farm ([a-z-]+) ([a-z-]+(?:\|[a-z-]+)*)`", listed)
    }
    alone = set(re.search(r"Verbs alone: `([^`]+)`", section)[1].split())
    commands = typer.main.get_command(app).commands
    assert groups == {name: set(each.commands) for name, each in commands.items() if hasattr(each, "commands")}
    assert alone == {name for name, each in commands.items() if not hasattr(each, "commands")}
