"""Tokens of builders: what one says, and that a part of one is refused."""

import pytest

from farm.builders.membership import FACTS, BuilderToken, membership
from farm.common.errors import UserError

TOKEN = BuilderToken("ci-3", "lab.example", 9193, "host's", "token's", "key")


def test_a_token_says_who_where_and_whom():
    assert BuilderToken.parse(f"  {TOKEN.text()}\n") == TOKEN


MANGLED = [TOKEN.text()[:-1], TOKEN.text()[1:], TOKEN.text().replace("e", "f")]


@pytest.mark.parametrize("mangled", ["", "farm-builder-", "hello", "farm-builder-é", *MANGLED])
def test_a_mangled_token_is_refused_with_one_line(mangled):
    with pytest.raises(UserError, match="this is no builder token, or not all of it") as raised:
        BuilderToken.parse(mangled)
    assert "copy the whole line" in raised.value.hint


def test_what_an_earlier_release_has_stored_is_no_membership(tmp_path):
    (tmp_path / FACTS).write_text('{"name": "ci-3", "scheduler": "tls://lab.example:9193"}')
    with pytest.raises(UserError, match="has no membership of a farm") as raised:
        membership(tmp_path)
    assert "farm builder join" in raised.value.hint
