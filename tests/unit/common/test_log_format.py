"""The daemon's log: what phones say cannot colour a terminal or look like a record of its own."""

import io
import logging
import os

import pytest

from farm.cli.output import print_error
from farm.common.errors import UserError
from farm.common.phone_text import MAX_RECORD_CHARACTERS, PlainFormatter
from farm.common.systemd import JournalFormatter, journal_reads


@pytest.fixture
def logged():
    """What a logger writes when it is used so."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("farm.test_log_format")
    logger.propagate = False
    logger.addHandler(handler)

    def logged(*arguments, **options):
        logger.warning(*arguments, **options)
        return out.getvalue()

    yield logged
    logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("level=\x1b[31m\x07", "WARNING it said: level=\\x1b[31m\\x07\n"),
        ("x\nERROR all is lost\r\nERROR again", "WARNING it said: x\n    ERROR all is lost\\r\n    ERROR again\n"),
    ],
)
def test_what_a_phone_says_is_one_plain_record(logged, said, written):
    assert logged("it said: %s", said) == written


def test_tracebacks_stay_readable(logged):
    try:
        raise ValueError("\x1b[2J")
    except ValueError as error:
        out = logged("a bug", exc_info=error)
    assert "\n    Traceback (most recent call last):\n" in out
    assert "ValueError: \\x1b[2J\n" in out


def test_a_record_is_bounded(logged):
    out = logged("%s", "x" * 1_000_000)
    assert len(out) < MAX_RECORD_CHARACTERS + 100
    assert "1000008 characters" in out


@pytest.mark.parametrize(("level", "priority"), [("DEBUG", 7), ("INFO", 6), ("WARNING", 4), ("ERROR", 3)])
def test_the_journal_gets_a_priority_with_each_line(level, priority):
    record = logging.LogRecord("farm", logging.getLevelName(level), "", 0, "one\ntwo", (), None)
    assert JournalFormatter("%(message)s").format(record) == f"<{priority}>one\n<{priority}>    two"


def test_the_journal_reads_what_goes_to_its_own_stream(tmp_path, monkeypatch):
    with (tmp_path / "stderr").open("w") as stream:
        there = os.fstat(stream.fileno())
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("JOURNAL_STREAM", "1:2")
        assert not journal_reads()
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
        assert journal_reads()
        print_error(UserError("no", evidence="why", hint="do"))
    assert (tmp_path / "stderr").read_text() == "<3>error: no\n<3>  evidence: why\n<3>  hint: do\n"
