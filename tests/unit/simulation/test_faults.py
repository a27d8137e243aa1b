import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import UserError
from farm.simulation.faults import FAULTS, parse_fault
from farm.simulation.lab_faults import FaultInjector
from farm.simulation.link import LinkPace


def test_every_fault_is_performed_and_nothing_else_is():
    performed = {name.removeprefix("_do_") for name in dir(FaultInjector) if name.startswith("_do_")}
    assert performed == set(FAULTS)


def test_defaults_are_filled_in():
    assert parse_fault("slow", {"bytes_per_s": 1000}) == {"bytes_per_s": 1000.0, "latency_s": 0.0}
    assert parse_fault("reboot", {}) == {"down_s": None}
    assert parse_fault("unplug", {}) == {}


@pytest.mark.parametrize(
    ("name", "arguments", "words", "hint"),
    [
        ("unplugg", {}, "no such fault: unplugg", "did you mean unplug?"),
        ("unplug", {"hard": True}, "no argument 'hard'", ""),
        ("slow", {}, "needs bytes_per_s", ""),
        ("slow", {"bytes_per_s": "fast"}, "must be a number", ""),
        ("slow", {"bytes_per_s": math.nan}, "cannot be nan", ""),
        ("battery", {"level": 3.5}, "cannot be 3.5", ""),
        ("battery", {"level": 3, "charging": 1}, "must be true or false", ""),
        ("full_disk", {"free_bytes": -1}, "cannot be negative", ""),
        ("offline", {"mode": "dead"}, "no such offline mode: dead", ""),
        ("charge", {}, "charge needs mode", "give mode=, start or stop or suspend"),
    ],
)
def test_what_makes_no_sense(name, arguments, words, hint):
    with pytest.raises(UserError, match=words) as caught:
        parse_fault(name, arguments)
    assert hint in caught.value.hint


@given(
    st.sampled_from([*FAULTS, "x"]),
    st.dictionaries(
        st.sampled_from(["level", "mode", "bytes_per_s", "skin_c", "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    ),
)
def test_arguments_or_user_error_and_nothing_else(name, given_arguments):
    with contextlib.suppress(UserError):
        assert set(parse_fault(name, given_arguments)) == set(FAULTS[name].arguments)


@pytest.mark.parametrize(("rate", "latency"), [(0, 0), (-5, 0), (10, -1)])
def test_impossible_paces(rate, latency):
    with pytest.raises(UserError):
        LinkPace(rate, latency)
