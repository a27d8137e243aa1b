"""The daemon's log: what phones say cannot colour a terminal or look like a record of its own."""

import io
import logging

import pytest

from farm.common.phone_text import MAX_RECORD_CHARACTERS, PlainFormatter


@pytest.fixture
def log():
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(PlainFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("farm.test_log_format")
    logger.propagate = False
    logger.addHandler(handler)
    yield logger, out
    logger.removeHandler(handler)


def test_control_characters_are_spelled_out(log):
    logger, out = log
    logger.warning("device.finding what=%s", "level=\x1b[31m\x07")
    assert out.getvalue() == "WARNING device.finding what=level=\\x1b[31m\\x07\n"


def test_a_phone_cannot_write_a_record_of_its_own(log):
    logger, out = log
    logger.warning("it said: %s", "x\nERROR all is lost\r\nERROR again")
    first, *others = out.getvalue().splitlines()
    assert first == "WARNING it said: x"
    assert others == ["    ERROR all is lost\\r", "    ERROR again"]


def test_tracebacks_stay_readable(log):
    logger, out = log
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logger.exception("a bug")
    assert "\n    Traceback (most recent call last):\n" in out.getvalue()
    assert "ValueError: \\x1b[2J\n" in out.getvalue()


def test_a_record_is_bounded(log):
    logger, out = log
    logger.warning("%s", "x" * 1_000_000)
    assert len(out.getvalue()) < MAX_RECORD_CHARACTERS + 100
    assert "1000008 characters" in out.getvalue()
