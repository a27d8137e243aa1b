"""What becomes of a candidate whose try went wrong."""

from hypothesis import given
from hypothesis import strategies as st

from farm.tuning.candidate import MAX_DEATHS, MAX_LOSSES, MAX_STARVED, MAX_UNTOUCHED, Decision, End, Tries, judge

MOST_TRIES = MAX_UNTOUCHED + MAX_STARVED + MAX_DEATHS + MAX_LOSSES
ENDS = st.lists(st.sampled_from([End.UNTOUCHED, End.STARVED, End.DIED, End.LOST]), min_size=1, max_size=2 * MOST_TRIES)


def test_an_end_that_says_something_is_an_answer():
    assert judge(Tries(), End.MEASURED, "", 10) == Decision()
    assert judge(Tries(), End.REFUSED, "no memory", 10) == Decision(error="the phone could not run it: no memory")
    assert judge(Tries(), End.TIMEOUT, "", 2.5).error == "timeout: no result after 2.5 s"


def test_a_first_death_is_followed_by_a_try_alone():
    verdict = judge(Tries(), End.DIED, "", 10)
    assert verdict == Decision(again=Tries(deaths=1))
    assert verdict.again.alone
    assert not Tries().alone


def test_dying_alone_after_that_is_poison():
    verdict = judge(Tries(deaths=1), End.DIED, "kShutdown", 10)
    assert verdict.poison
    assert verdict.again is None
    assert "kShutdown" in verdict.error


def test_a_phone_that_is_gone_costs_no_candidate():
    assert judge(Tries(), End.UNTOUCHED, "", 10) == Decision(again=Tries(untouched=1))
    assert not Tries(untouched=1).alone
    assert judge(Tries(deaths=1), End.LOST, "", 10) == Decision(again=Tries(deaths=1, losses=1))


def test_what_loses_phone_after_phone_alone_is_poison():
    assert judge(Tries(deaths=1, losses=MAX_LOSSES - 1), End.LOST, "", 10).poison


def test_what_finds_no_memory_a_second_time_alone_fails_and_is_no_poison():
    verdict = judge(Tries(), End.STARVED, "8e+04 MB wanted", 10)
    assert verdict.again.alone
    verdict = judge(verdict.again, End.STARVED, "8e+04 MB wanted; closed", 10)
    assert (verdict.again, verdict.poison) == (None, False)
    assert verdict.error.startswith("out of memory")
    assert "8e+04 MB" in verdict.error


def test_what_no_phone_can_take_is_answered_with_the_phones_reason():
    verdict = judge(Tries(untouched=MAX_UNTOUCHED - 1), End.UNTOUCHED, "no session: refused", 10)
    assert verdict == Decision(error=f"no phone could take it, {MAX_UNTOUCHED} times: no session: refused")


@given(ENDS)
def test_every_candidate_is_answered_after_a_bounded_number_of_tries(ends):
    tries = Tries()
    for number, end in enumerate(ends, 1):
        assert number <= MOST_TRIES
        verdict = judge(tries, end, "why", 10)
        if verdict.again is None:
            assert verdict.poison is (end in (End.DIED, End.LOST))
            assert verdict.error
            return
        tries = verdict.again
    assert len(ends) < MOST_TRIES
