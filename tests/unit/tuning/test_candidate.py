"""What becomes of a candidate whose try went wrong."""

from hypothesis import given
from hypothesis import strategies as st

from farm.tuning.candidate import MAX_DEATHS, MAX_LOSSES, End, Tries, Verdict, judge

ENDS = st.lists(st.sampled_from([End.UNTOUCHED, End.DIED, End.LOST]), min_size=1, max_size=40)


def test_an_end_that_says_something_is_an_answer():
    assert judge(Tries(), End.MEASURED, "", 10) == Verdict()
    assert judge(Tries(), End.REFUSED, "no memory", 10) == Verdict(error="the phone could not run it: no memory")
    assert judge(Tries(), End.TIMEOUT, "", 2.5).error == "timeout: no result after 2.5 s"


def test_a_first_death_is_followed_by_a_try_alone():
    verdict = judge(Tries(), End.DIED, "", 10)
    assert verdict == Verdict(again=Tries(deaths=1))
    assert verdict.again.alone
    assert not Tries().alone


def test_dying_alone_after_that_is_poison():
    verdict = judge(Tries(deaths=1), End.DIED, "kShutdown", 10)
    assert verdict.poison
    assert verdict.again is None
    assert "kShutdown" in verdict.error


def test_a_phone_that_is_gone_costs_no_candidate():
    assert judge(Tries(), End.UNTOUCHED, "", 10) == Verdict(again=Tries())
    assert judge(Tries(deaths=1), End.LOST, "", 10) == Verdict(again=Tries(deaths=1, losses=1))


def test_what_loses_phone_after_phone_alone_is_poison():
    assert judge(Tries(deaths=1, losses=MAX_LOSSES - 1), End.LOST, "", 10).poison


@given(ENDS)
def test_every_candidate_is_answered_after_a_bounded_number_of_harmful_tries(ends):
    """Only tries that never reached a phone may repeat for ever."""
    tries, harmed = Tries(), 0
    for end in ends:
        verdict = judge(tries, end, "", 10)
        harmed += end is not End.UNTOUCHED
        if verdict.again is None:
            assert verdict.poison
            assert harmed <= MAX_DEATHS + MAX_LOSSES
            return
        tries = verdict.again
    assert harmed < MAX_DEATHS + MAX_LOSSES
