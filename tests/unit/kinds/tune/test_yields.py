"""A tuning attempt gives its worker slot up when it is asked to, and asks only now and then."""

from types import SimpleNamespace

import pytest

from farm.jobs.attempt import YieldedError
from farm.kinds.tune.worker import ASK_S, yielding


def test_it_asks_now_and_then_and_ends_when_it_should():
    now_s, asked, answer = [0.0], [0], [False]

    def wanted():
        asked[0] += 1
        return answer[0]

    look = yielding(SimpleNamespace(yield_wanted=wanted), clock=lambda: now_s[0])
    look()
    now_s[0] = ASK_S
    look()
    look()
    assert asked == [1]
    now_s[0], answer[0] = 2 * ASK_S, True
    with pytest.raises(YieldedError):
        look()
