"""What becomes of a candidate whose try went wrong."""

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

MOST_TRIES = MAX_UNTOUCHED + MAX_STARVED + MAX_DEATHS + MAX_LOSSES
ENDS = st.lists(
    st.sampled_from([TryEnd.UNTOUCHED, TryEnd.STARVED, TryEnd.DIED, TryEnd.LOST]), min_size=1, max_size=2 * MOST_TRIES
)


def test_an_end_that_says_something_is_an_answer():
    assert after_try(CandidateTries(), TryEnd.MEASURED, "", 10) == Decision()
    assert after_try(CandidateTries(), TryEnd.REFUSED, "no memory", 10) == Decision(
        error="the phone could not run it: no memory"
    )
    assert after_try(CandidateTries(), TryEnd.TIMEOUT, "", 2.5).error == "timeout: no result after 2.5 s"


def test_a_first_death_is_followed_by_a_try_alone():
    verdict = after_try(CandidateTries(), TryEnd.DIED, "", 10)
    assert verdict == Decision(again=CandidateTries(deaths=1))
    assert verdict.again.alone
    assert not CandidateTries().alone


def test_dying_alone_after_that_is_poison():
    verdict = after_try(CandidateTries(deaths=1), TryEnd.DIED, "kShutdown", 10)
    assert verdict.poison
    assert verdict.again is None
    assert "kShutdown" in verdict.error


def test_a_phone_that_is_gone_costs_no_candidate():
    assert after_try(CandidateTries(), TryEnd.UNTOUCHED, "", 10) == Decision(again=CandidateTries(untouched=1))
    assert not CandidateTries(untouched=1).alone
    assert after_try(CandidateTries(deaths=1), TryEnd.LOST, "", 10) == Decision(
        again=CandidateTries(deaths=1, losses=1)
    )


def test_what_loses_phone_after_phone_alone_is_poison():
    assert after_try(CandidateTries(deaths=1, losses=MAX_LOSSES - 1), TryEnd.LOST, "", 10).poison


def test_what_finds_no_memory_a_second_time_alone_fails_and_is_no_poison():
    verdict = after_try(CandidateTries(), TryEnd.STARVED, "8e+04 MB wanted", 10)
    assert verdict.again.alone
    verdict = after_try(verdict.again, TryEnd.STARVED, "8e+04 MB wanted; closed", 10)
    assert (verdict.again, verdict.poison) == (None, False)
    assert verdict.error.startswith("out of memory")
    assert "8e+04 MB" in verdict.error


def test_what_no_phone_can_take_is_answered_with_the_phones_reason():
    verdict = after_try(CandidateTries(untouched=MAX_UNTOUCHED - 1), TryEnd.UNTOUCHED, "no session: refused", 10)
    assert verdict == Decision(error=f"no phone could take it, {MAX_UNTOUCHED} times: no session: refused")


@given(ENDS)
def test_every_candidate_is_answered_after_a_bounded_number_of_tries(ends):
    tries = CandidateTries()
    for number, end in enumerate(ends, 1):
        assert number <= MOST_TRIES
        verdict = after_try(tries, end, "why", 10)
        if verdict.again is None:
            assert verdict.poison is (end in (TryEnd.DIED, TryEnd.LOST))
            assert verdict.error
            return
        tries = verdict.again
    assert len(ends) < MOST_TRIES
