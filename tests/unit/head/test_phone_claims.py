"""Which host's device of one phone is handed out."""

from dataclasses import replace

import pytest

from farm.head.phone_claims import PhoneClaims
from farm.model.device import DeviceState, Life
from farm.model.identity import DeviceIdentity

PHONE = DeviceIdentity(hardware_serial="R3CN30ABCDE", vendor="acme", model="one", abi="arm64-v8a")


def device(name, host, identity=PHONE, life=Life.READY):
    return DeviceState(name, name, life, identity=identity, host=host)


def claims_of(*devices):
    claims = PhoneClaims()
    for each in devices:
        claims.changed(each)
    return claims


def test_the_first_host_has_the_phone():
    claims = claims_of(device("a", "one"), device("b", "two"))
    assert claims.why_not("a", ()) == ""
    assert claims.why_not("b", ()) == "host one has the same phone, as a: let one of them have it"
    assert claims.rivals("a") == {"b"}
    claims.changed(device("a", "one"))  # it has not come again
    assert claims.why_not("a", ()) == ""


@pytest.mark.parametrize("gone", ["gone", "forgotten", "lost"])
def test_the_other_host_has_it_once_it_is_not_there_any_more(gone):
    claims = claims_of(device("a", "one"), device("b", "two"))
    if gone == "gone":
        claims.changed(device("a", "one", life=Life.GONE))
    elif gone == "forgotten":
        claims.forget("a")
    assert claims.why_not("b", ("one",) if gone == "lost" else ()) == ""
    if gone == "gone":  # it comes back, behind the other
        claims.changed(device("a", "one"))
        assert claims.why_not("a", ()).startswith("host two has the same phone")


BOARD = replace(PHONE, hardware_serial="0123456789ABCDEF")  # a maker's default number


@pytest.mark.parametrize(
    ("one", "other", "rivals"),
    [
        (PHONE, device("b", "one"), {"a"}),  # the host itself tells two of its devices apart
        (PHONE, device("b", "two", replace(PHONE, model="two")), {"a"}),
        (PHONE, device("b", "two", replace(PHONE, hardware_serial="another")), set()),
        (PHONE, device("b", "two", None), set()),
        (BOARD, device("b", "two", BOARD), set()),
    ],
)
def test_other_phones_are_handed_out(one, other, rivals):
    claims = claims_of(device("a", "one", one), other)
    assert (claims.why_not("b", ()), claims.rivals("b")) == ("", rivals)
