"""Reasons for waiting: news, and no news."""

from farm.client.streams import Reasons


def test_a_running_clock_is_no_news_but_another_holder_is():
    reasons = Reasons()
    assert reasons.is_news("job", "pixel-8: held by root for 6 s")
    assert not reasons.is_news("job", "pixel-8: held by root for 8.5 s")
    assert reasons.is_news("other", "pixel-8: held by root for 8 s")
    assert reasons.is_news("job", "pixel-9: held by root for 8 s")
    assert not reasons.is_news("job", "pixel-9: held by root for 68 s")
    assert not reasons.is_news("job", "")
