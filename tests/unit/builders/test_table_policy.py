"""Who builds a candidate, whose answer is believed, and who is to candidate_error."""

import hashlib

import pytest

from farm.builders.table_policy import (
    MAX_FAULTS,
    SILENT_S,
    Builder,
    BuilderTable,
    candidate_error,
    checked,
    must_be_alone,
)
from farm.bundle.model import Abi

OURS, OTHER = "a" * 64, "b" * 64
KEY = "c" * 64
# An ELF header of a shared library for arm64: 64 bits, little-endian, e_type 3, e_machine 183.
LIBRARY = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + b"code"


def builder(name, slots=4, identity=OURS):
    return Builder(name, f"tls://{name}:1", slots, frozenset({identity}), {}, seen_s=0.0)


def table(*builders):
    found = BuilderTable()
    found.builders.update({each.address: each for each in builders})
    return found


def test_only_builders_of_the_same_identity_get_a_candidate():
    both = table(builder("other", 8, OTHER), builder("ours", 2))
    assert both.grant(OURS, [OURS], 0.0) == 3
    assert both.choose(OURS, 0.0, alone=False).name == "ours"
    assert both.choose("d" * 64, 0.0, alone=False) is None


def test_the_builder_with_the_least_to_do_for_its_slots_is_next():
    small, large = builder("small", 2), builder("large", 8)
    small.running, large.running = {"x"}, {"a", "b", "c"}
    assert table(small, large).choose(OURS, 0.0, alone=False) is large


def test_a_silent_builder_and_one_that_is_excluded_get_nothing():
    silent, faulty = builder("silent"), builder("faulty")
    faulty.seen_s = SILENT_S
    for _ in range(MAX_FAULTS - 1):
        assert not faulty.failed("garbage")
    faulty.succeeded()
    assert [faulty.failed("garbage") for _ in range(MAX_FAULTS)] == [False, False, True]
    assert table(silent, faulty).grant(OURS, [OURS], SILENT_S) == 0
    assert silent.state(SILENT_S, frozenset()) == "silent for 10 s"
    assert faulty.state(SILENT_S, frozenset()) == "excluded: 3 faults in a row, the last: garbage"


def test_a_builder_without_a_wanted_identity_says_so():
    assert builder("x").state(0.0, frozenset()) == builder("x").state(0.0, frozenset({OURS})) == "ready"
    assert builder("x", 1, OTHER).state(0.0, frozenset({OURS})).startswith("no match: another TVM")


def test_who_must_be_alone_has_a_builder_for_itself():
    only = builder("only")
    found = table(only)
    assert found.choose(OURS, 0.0, alone=True) is only
    assert found.choose(OURS, 0.0, alone=False) is None
    only.reserved = False
    assert found.choose(OURS, 0.0, alone=False) is only


def test_three_builders_that_die_of_a_candidate_blame_it_the_last_one_alone():
    assert [must_be_alone(["x"] * killed) for killed in range(3)] == [False, False, True]
    assert candidate_error(["x", "y"]) == ""
    assert candidate_error(["x", "y", "z"]) == "it killed 3 builders, the last one alone: x, y, z"


def test_runs_share_the_slots_and_each_slot_has_a_little_to_come():
    assert table(builder("x", 8)).grant(OURS, [OURS], 0.0) == 10
    assert table(builder("x", 8)).grant(OURS, [OURS] * 3, 0.0) == 4
    assert table().grant(OURS, [OURS] * 2, 0.0) == 0


def test_runs_of_two_identities_share_a_builder_that_has_both():
    """Each had all of its slots: every candidate took twice as long, and was built by the host once more."""
    both = builder("both", 8)
    both.identities = frozenset({OURS, OTHER})
    found = table(both, builder("ours", 4))
    assert found.grant(OURS, [OURS, OTHER], 0.0) == 10  # half of both's, and all of the other one's
    assert found.grant(OTHER, [OURS, OTHER], 0.0) == 5


def answer(**changed):
    return {"key": KEY, "library": LIBRARY, "sha256": hashlib.sha256(LIBRARY).hexdigest()} | changed


def test_a_library_with_its_key_and_hash_is_believed_and_one_for_another_machine_is_none():
    assert checked(answer(), KEY, Abi.ARM64) == (LIBRARY, "")
    assert checked(answer(), KEY, Abi.X86_64) == (b"", "its library is none for x86_64")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "garbage"),
        (b"\x80\x04", "garbage"),
        ({}, "another candidate"),
        (answer(key=OTHER), "another candidate"),
        (answer(library=b""), "nothing"),
        (answer(library="text"), "nothing"),
        (answer(library=LIBRARY + b"!"), "not what its hash says"),
        (answer(library=b"text", sha256=hashlib.sha256(b"text").hexdigest()), "none for arm64-v8a"),
    ],
)
def test_whatever_else_a_builder_sends_is_its_own_fault(given, why):
    library, fault = checked(given, KEY, Abi.ARM64)
    assert library == b""
    assert why in fault


@pytest.mark.parametrize("host_fault", [True, False])
def test_a_build_that_failed_is_the_builders_fault_only_when_its_host_lacks_something(host_fault):
    given = {"key": KEY, "error": "no", "host_fault": host_fault}
    assert checked(given, KEY, Abi.ARM64) == (b"", "no" if host_fault else "")
