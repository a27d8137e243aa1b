"""Under which names the page answers, and whose requests it takes."""

import pytest

from farm.web.guard import allowed_names, cross_site, host_name, is_loopback
from tests.support.golden import rows


@pytest.mark.parametrize(("header", "name"), rows(__file__, "host_headers"))
def test_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


def test_names_are_loopback_the_bound_address_and_those_allowed() -> None:
    loopback = {"localhost", "127.0.0.1", "[::1]"}
    assert allowed_names("127.0.0.1", ()) == loopback
    assert allowed_names("10.0.0.7", ("Farm.lab",)) == loopback | {"10.0.0.7", "farm.lab"}
    assert allowed_names("fd00::7", ()) == loopback | {"[fd00::7]"}
    for everywhere in ("0.0.0.0", "::"):
        assert allowed_names(everywhere, ()) == loopback


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),
        ({"sec-fetch-site": "same-origin", "origin": "http://farm:1", "host": "farm:1"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"origin": "https://farm.lab", "host": "farm.lab"}, False),  # TLS ends at a proxy
        ({"origin": "http://evil.example", "host": "farm.lab"}, True),
        ({"origin": "http://farm.lab:8080", "host": "farm.lab"}, True),
        ({"origin": "null", "host": "farm.lab"}, True),
        ({"origin": "http://[", "host": "farm.lab"}, True),
    ],
)
def test_requests_of_other_sites(headers: dict[str, str], refused: bool) -> None:
    assert cross_site(headers) is refused


def test_loopback_addresses() -> None:
    assert [is_loopback(address) for address in ("127.0.0.1", "127.9.9.9", "::1")] == [True] * 3
    assert [is_loopback(address) for address in ("10.0.0.7", "fd00::1", "nowhere", "")] == [False] * 4
