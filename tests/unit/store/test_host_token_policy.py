"""Tokens of hosts: what one says, and why one is refused."""

import pytest

from farm.common.errors import NotAllowedError, UserError
from farm.store.host_token_policy import HostToken, check_host_name, role_of

TOKEN = HostToken("00ab" * 4, "lab2", "postgresql://farm_00ab00ab_lab2@db/farm", "secret", "1.0", 1, 1000.5)


def test_a_token_says_everything_that_joining_needs():
    assert HostToken.parse(f"  {TOKEN.text()}\n") == TOKEN


@pytest.mark.parametrize(
    "mangled", ["", "farm-host-", "hello", TOKEN.text()[:-1], TOKEN.text()[1:], "farm-builder-" + TOKEN.text()[10:]]
)
def test_a_mangled_token_is_refused_with_one_line(mangled):
    with pytest.raises(UserError, match="this is no host token, or not all of it"):
        HostToken.parse(mangled)


def test_a_token_is_good_for_its_time_and_its_release():
    TOKEN.check_time(1000.0)
    with pytest.raises(NotAllowedError, match="expired"):
        TOKEN.check_time(1000.5)
    TOKEN.check_release("1.0", 1)
    for release, protocol in (("1.1", 1), ("1.0", 2)):
        with pytest.raises(UserError, match="nothing was changed"):
            TOKEN.check_release(release, protocol)


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", 'a"', "a" * 41])
def test_a_name_that_no_role_can_have_is_refused_and_postgresql_takes_the_longest_whole(name):
    with pytest.raises(UserError, match="cannot be the name of a host"):
        check_host_name(name)
    check_host_name("a" * 40)
    assert len(role_of(TOKEN.lab, "a" * 40)) <= 63
