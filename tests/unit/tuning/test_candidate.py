"""What becomes of a candidate whose try went wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.tuning.candidate import (
    MAX_DEATHS,
    MAX_LOSSES,
    MAX_STARVED,
    MAX_UNTOUCHED,
    CandidateTries,
    Decision,
    TryEnd,
    after_try,
)

MAX_TRIES = MAX_UNTOUCHED + MAX_STARVED + MAX_DEATHS + MAX_LOSSES
ENDS = st.lists(
    st.sampled_from([TryEnd.UNTOUCHED, TryEnd.STARVED, TryEnd.DIED, TryEnd.LOST]), min_size=1, max_size=2 * MAX_TRIES
)


@pytest.mark.parametrize(
    ("before", "end", "why", "answer"),
    [
        ({}, TryEnd.MEASURED, "", ""),
        ({}, TryEnd.REFUSED, "no memory", "the phone could not run it: no memory"),
        ({}, TryEnd.TIMEOUT, "", "timeout: no result after 2.5 s"),
        (
            {"untouched": MAX_UNTOUCHED - 1},
            TryEnd.UNTOUCHED,
            "no",
            f"no phone could take it, {MAX_UNTOUCHED} times: no",
        ),
    ],
)
def test_an_end_that_says_something_is_an_answer(before, end, why, answer):
    assert after_try(CandidateTries(**before), end, why, 2.5) == Decision(error=answer)


@pytest.mark.parametrize(
    ("before", "end", "then", "alone"),
    [
        ({}, TryEnd.DIED, {"deaths": 1}, True),
        ({}, TryEnd.UNTOUCHED, {"untouched": 1}, False),  # a phone that is gone costs no candidate
        ({"deaths": 1}, TryEnd.LOST, {"deaths": 1, "losses": 1}, True),
    ],
)
def test_a_candidate_is_tried_again_after_a_death_alone(before, end, then, alone):
    found = after_try(CandidateTries(**before), end, "", 10)
    assert found == Decision(again=CandidateTries(**then))
    assert found.again.alone is alone


@pytest.mark.parametrize(
    ("losses", "end", "told"), [(0, TryEnd.DIED, "kShutdown"), (MAX_LOSSES - 1, TryEnd.LOST, "were lost")]
)
def test_what_dies_or_loses_its_phone_alone_after_that_is_poison(losses, end, told):
    found = after_try(CandidateTries(deaths=1, losses=losses), end, "kShutdown", 10)
    assert (found.poison, found.again) == (True, None)
    assert told in found.error


def test_what_finds_no_memory_a_second_time_alone_fails_and_is_no_poison():
    verdict = after_try(CandidateTries(), TryEnd.STARVED, "8e+04 MB wanted", 10)
    assert verdict.again.alone
    verdict = after_try(verdict.again, TryEnd.STARVED, "8e+04 MB wanted; closed", 10)
    assert (verdict.again, verdict.poison) == (None, False)
    assert verdict.error.startswith("out of memory")
    assert "8e+04 MB" in verdict.error


@given(ENDS)
def test_every_candidate_is_answered_after_a_bounded_number_of_tries(ends):
    tries = CandidateTries()
    for number, end in enumerate(ends, 1):
        assert number <= MAX_TRIES
        verdict = after_try(tries, end, "why", 10)
        if verdict.again is None:
            assert verdict.poison is (end in (TryEnd.DIED, TryEnd.LOST))
            assert verdict.error
            return
        tries = verdict.again
    assert len(ends) < MAX_TRIES
