"""Tokens: what one says, and why one is refused."""

import pytest

from farm.builders.token_policy import LIFE_S, BuilderToken, TokenRecord, check_name
from farm.common.errors import NotAllowedError, UserError

TOKEN = BuilderToken("lab.example", 9194, "ab" * 32, "secret")


def test_a_token_says_where_whom_and_what():
    assert BuilderToken.parse(f"  {TOKEN.text()}\n") == TOKEN


MANGLED = [TOKEN.text()[:-1], TOKEN.text()[1:], TOKEN.text().replace("e", "f")]


@pytest.mark.parametrize("mangled", ["", "farm-builder-", "hello", "farm-builder-é", *MANGLED])
def test_a_mangled_token_is_refused_with_one_line(mangled):
    with pytest.raises(UserError, match="this is no builder token, or not all of it") as raised:
        BuilderToken.parse(mangled)
    assert "copy the whole line" in raised.value.hint


def test_a_token_is_good_once_and_for_a_day():
    TokenRecord(0.0).check(LIFE_S - 1)
    with pytest.raises(NotAllowedError, match="expired"):
        TokenRecord(0.0).check(LIFE_S)
    with pytest.raises(NotAllowedError, match="used already, by ci-3"):
        TokenRecord(0.0, "ci-3").check(1.0)


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", "a b", "a" * 64])
def test_a_name_that_could_mislead_is_refused(name):
    with pytest.raises(UserError, match="cannot be a builder's name"):
        check_name(name)
    check_name("ci-3.example")
