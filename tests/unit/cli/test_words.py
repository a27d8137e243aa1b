"""Words of other users on a terminal: names, notes, commands and reasons are shown, and steer nothing."""

import io
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.cli import job, status
from farm.cli.output import colours, escaped, print_error, print_line, print_note, print_table, table, write_file
from farm.common.errors import UserError

EVIL = "a\n\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\u200fb\ud800"
TAME = r"a\n\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\u200fb\ud800"


@pytest.mark.parametrize("text", ["", "größe\t漢字 🙂", "c:\\new"])
def test_plain_words_stay_as_they_are(text):
    assert escaped(text) == text


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


DEAF = [("job-1", "team", "ann", "the phone does not answer any more")]
FAILED = [("job-1", "failed", "no answer yet, try a power-cycle"), ("job-2", "done", "-")]


@pytest.mark.parametrize(
    ("titles", "rows", "options", "lines"),
    [
        ("JOB ARRAY USER WHY", DEAF, {"width": 32, "spare": ("ARRAY", "USER")},
         ["JOB    WHY", "job-1  the phone does not…"]),
        ("JOB ARRAY USER WHY", DEAF, {},
         ["JOB    ARRAY  USER  WHY", "job-1  team   ann   the phone does not answer any more"]),
        ("JOB STATE WHY", FAILED, {"width": 30, "below": "WHY"},
         ["JOB    STATE", "job-1  failed", "  no answer yet, try a", "  power-cycle", "job-2  done"]),
        ("JOB STATE WHY", FAILED, {"width": 80, "below": "WHY"},
         ["JOB    STATE   WHY", "job-1  failed  no answer yet, try a power-cycle", "job-2  done    -"]),
    ],
)  # fmt: skip
def test_a_table_fits_its_terminal_and_is_whole_elsewhere(titles, rows, options, lines):
    assert list(table(titles.split(), rows, **options)) == lines


class Output(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.mark.parametrize(
    ("environ", "terminal", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False), ({}, False, False)],
)
def test_states_have_colours_only_where_a_terminal_shows_them(environ, terminal, coloured):
    assert colours(Output(terminal), environ) is coloured
    (_, line) = table(("JOB", "STATE"), [("failed", "failed")], width=80)
    assert (line, line.painted) == ("failed  failed", "failed  \x1b[31mfailed\x1b[0m")


@pytest.mark.parametrize(("terminal", "said"), [(True, r"\x1b[2J"), (False, "\x1b[2J")])
def test_logs_are_tame_on_a_terminal_and_whole_elsewhere(monkeypatch, terminal, said):
    line = SimpleNamespace(at=datetime.now(UTC), source="stdout", level="info", text="\x1b[2J")
    farm = SimpleNamespace(logs=lambda *_, **__: [line])
    monkeypatch.setattr(job.work, "client", lambda: nullcontext(farm))
    monkeypatch.setattr(sys, "stdout", output := Output(terminal))
    job.logs("j1")
    assert output.getvalue().endswith(f"stdout: {said}\n")


def test_every_command_prints_through_these():
    """`typer.echo` writes what it is given: only for farm's own words."""
    folder = Path(status.__file__).parent
    direct = {each.name for each in folder.glob("*.py") if "typer.echo(" in each.read_text()}
    assert direct == {"demo.py", "demo_hosts.py", "main.py"}


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="No such file or directory") as caught:
        write_file(tmp_path / "absent" / "screen.png", b"")
    assert caught.value.hint
    write_file(tmp_path / "screen.png", b"png")
    assert (tmp_path / "screen.png").read_bytes() == b"png"
