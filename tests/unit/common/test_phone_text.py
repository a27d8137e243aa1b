"""A phone's words where people get them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.phone_text import escaped, plain


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("skin-therm", "skin-therm"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\r\n", "two\\nlines\\r\\n"),
        ("a\tb", "a\\tb"),
        ("über 40 °C", "über 40 °C"),
        ("c1\x9b31m", "c1\\x9b31m"),
        ("\u202eturned", "\\u202eturned"),
        ("half \ud83d", "half \\ud83d"),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 19 + "…"),
        ("\x1b" * 60_000, "\\x1b\\x1b\\x1b\\x1b\\x1b"[:19] + "…"),
    ],
)
def test_one_bounded_line(said, shown):
    assert plain(said, 20) == shown


@given(st.text(st.characters()), st.integers(1, 300))
def test_any_text_is_one_printable_line(said, most):
    shown = plain(said, most)
    assert len(shown) <= most
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")


def test_logs_keep_their_lines():
    assert escaped("Traceback:\n\tline\x1b[2J") == "Traceback:\n\tline\\x1b[2J"
