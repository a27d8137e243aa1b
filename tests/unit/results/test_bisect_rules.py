"""Which commit is timed next, and which one is found."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.results.bisect_rules import bisected, next_commit
from farm.results.ci import CiAnswer


def search(commits, answer_of):
    """Time commits until none is left to time, the bad one first; the answers in order."""
    answers, commit = {}, commits[-1]
    while commit is not None:
        assert commit not in answers
        answers[commit] = answer_of(commit)
        commit = next_commit(commits, answers)
    return answers


@given(st.integers(2, 300).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count - 1))))
def test_the_first_slower_commit_is_found_by_few_builds(drawn):
    count, first_slower = drawn
    commits = [f"c{at}" for at in range(count)]
    answers = search(commits, lambda each: CiAnswer.SLOWER if int(each[1:]) >= first_slower else CiAnswer.WITHIN)
    assert bisected(commits, answers).suspects == (f"c{first_slower}",)
    assert len(answers) <= 1 + math.ceil(math.log2(count))
    assert "c0" not in answers


@given(st.data())
def test_the_first_slower_commit_is_among_the_suspects_where_commits_give_no_answer(data):
    count = data.draw(st.integers(2, 40))
    first_slower = data.draw(st.integers(1, count - 1))
    silent = data.draw(st.sets(st.integers(1, max(1, count - 2)))) - {count - 1}
    commits = [f"c{at}" for at in range(count)]

    def answer(commit):
        at = int(commit[1:])
        if at in silent:
            return CiAnswer.FAILED if at % 2 else CiAnswer.CANNOT_TELL
        return CiAnswer.SLOWER if at >= first_slower else CiAnswer.WITHIN

    suspects = bisected(commits, search(commits, answer)).suspects
    assert f"c{first_slower}" in suspects
    assert {int(each[1:]) for each in suspects[:-1]} <= silent


def test_each_comparison_costs_confidence():
    answers = {"d": CiAnswer.SLOWER, "b": CiAnswer.FAILED, "c": CiAnswer.WITHIN}
    found = bisected(["a", "b", "c", "d"], answers)
    assert (found.suspects, found.confidence) == (("d",), pytest.approx(0.98))
