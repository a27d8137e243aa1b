"""Reasons for waiting: news, and no news."""

from farm.client.streams import REPEAT_S, Reasons


def test_a_running_clock_is_no_news_but_another_holder_is_and_after_a_minute_it_is_said_again():
    now = [0.0]
    reasons = Reasons(lambda: now[0])
    assert reasons.is_news("job", "pixel-8 is held by root for 6 s, 53 s more at most")
    now[0] = 2.0
    assert not reasons.is_news("job", "pixel-8 is held by root for 8.5 s, 51 s more at most")
    assert reasons.is_news("other", "pixel-8 is held by root for 8 s, 51 s more at most")
    assert reasons.is_news("job", "pixel-9 is held by root for 8 s, 51 s more at most")
    now[0] = 2.0 + REPEAT_S
    assert reasons.is_news("job", "pixel-9 is held by root for 68 s")
    assert not reasons.is_news("job", "")
