"""Words of other users on a terminal: names, notes, commands and reasons are shown, and steer nothing."""

import io
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.cli import job, status
from farm.cli.output import colours, escaped, print_error, print_line, print_note, print_table, table
from farm.common.errors import UserError

EVIL = "a\n\x1b[2J\x1b]0;title\x07\r\x9b31m\u202eb\ud800"
TAME = r"a\n\x1b[2J\x1b]0;title\x07\r\x9b31m\u202eb\ud800"


def test_plain_words_stay_as_they_are():
    for text in ("", "größe\t漢字 🙂", "c:\\new"):
        assert escaped(text) == text
    assert escaped(EVIL) == TAME


@pytest.mark.parametrize("write", [print_line, print_note])
def test_lines_are_one_line(write, capsys):
    write(EVIL)
    assert "".join(capsys.readouterr()) == TAME + "\n"


def test_tables_and_errors(capsys):
    print_table(("USER", "NOTE"), [("bob", EVIL), ("alice", "-")])
    print_error(UserError(EVIL, hint=EVIL, evidence="\x1b[3J"))
    out, err = capsys.readouterr()
    assert out == f"USER   NOTE\nbob    {TAME}\nalice  -\n"
    assert err == f"error: {TAME}\n  evidence: \\x1b[3J\n  hint: {TAME}\n"


def test_a_table_fits_its_terminal_and_is_whole_elsewhere():
    rows = [("job-1", "team", "ann", "the phone does not answer any more")]
    cut = list(table(("JOB", "ARRAY", "USER", "WHY"), rows, width=32, spare=("ARRAY", "USER")))
    assert cut == ["JOB    WHY", "job-1  the phone does not…"]
    assert (
        list(table(("JOB", "ARRAY", "USER", "WHY"), rows))[1]
        == "job-1  team   ann   the phone does not answer any more"
    )


def test_a_column_that_has_no_room_stands_below_the_rows_that_have_a_word_in_it():
    rows = [("job-1", "failed", "no answer yet, try a power-cycle"), ("job-2", "done", "-")]
    lines = list(table(("JOB", "STATE", "WHY"), rows, width=30, below="WHY"))
    assert lines == [
        "JOB    STATE", "job-1  failed", "  no answer yet, try a", "  power-cycle", "job-2  done",
    ]  # fmt: skip
    assert next(table(("JOB", "STATE", "WHY"), rows, width=80, below="WHY")) == "JOB    STATE   WHY"


@pytest.mark.parametrize(
    ("environ", "terminal", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False), ({}, False, False)],
)
def test_states_have_colours_only_where_a_terminal_shows_them(monkeypatch, environ, terminal, coloured):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    assert colours(stream, environ) is coloured
    (_, line) = table(("JOB", "STATE"), [("failed", "failed")], width=80)
    assert (line, line.painted) == ("failed  failed", "failed  \x1b[31mfailed\x1b[0m")


def test_a_command_that_prints_what_others_wrote(monkeypatch, capsys):
    monkeypatch.setattr(status, "call", lambda *_, **__: {"lines": [f"waits for {EVIL}"]})
    status.explain("job", "j1")
    assert capsys.readouterr().out == f"waits for {TAME}\n"


class Output(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self._terminal = terminal

    def isatty(self):
        return self._terminal


@pytest.mark.parametrize(("terminal", "said"), [(True, r"\x1b[2J"), (False, "\x1b[2J")])
def test_logs_are_tame_on_a_terminal_and_whole_elsewhere(monkeypatch, terminal, said):
    line = SimpleNamespace(at=datetime.now(UTC), source="stdout", level="info", text="\x1b[2J")

    class Farm:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def logs(self, *_, **__):
            return [line]

    monkeypatch.setattr(job.work, "client", Farm)
    monkeypatch.setattr(sys, "stdout", output := Output(terminal))
    job.logs("j1")
    assert output.getvalue().endswith(f"stdout: {said}\n")


def test_every_command_prints_through_these():
    """`typer.echo` writes what it is given: only for farm's own words."""
    folder = Path(status.__file__).parent
    direct = {each.name for each in folder.glob("*.py") if "typer.echo(" in each.read_text()}
    assert direct == {"demo.py", "demo_hosts.py", "main.py"}
