"""`farm poison forget` by the beginning that the list shows."""

import pytest

from farm.cli import runtimes
from farm.common.errors import UserError
from farm.common.files import SHORT_HASH

ONE, TWO = "ab" + "1" * 62, "ab" + "2" * 62


@pytest.fixture
def asked(monkeypatch):
    """What was forgotten."""
    forgotten = []

    def call(kind, **fields):
        if kind == "poison.list":
            return {"poison": [{"artifact": each} for each in (ONE, TWO)]}
        forgotten.append(fields["artifact"])
        return fields

    monkeypatch.setattr(runtimes, "call", call)
    return forgotten


def test_the_beginning_that_is_shown_is_enough(asked):
    runtimes.forget_poison(ONE[:SHORT_HASH])
    runtimes.forget_poison(TWO.upper())
    assert asked == [ONE, TWO]


@pytest.mark.parametrize(("library", "said"), [("ab", "2 libraries begin"), ("ff", "begins with 'ff'"), ("", "begins")])
def test_a_beginning_of_none_or_several_forgets_nothing(asked, library, said):
    with pytest.raises(UserError, match=said):
        runtimes.forget_poison(library)
    assert asked == []
