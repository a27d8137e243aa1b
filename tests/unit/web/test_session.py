"""Sessions end by themselves, make room, and go with their account."""

from farm.web import page as module
from farm.web.page import Sessions


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_when_it_is_not_used() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    session = sessions.begin("ann")
    clock.now = module.IDLE_S
    assert sessions.get(session.id) is session
    clock.now += module.IDLE_S + 1
    assert sessions.get(session.id) is None
    assert len(sessions) == 0


def test_a_session_ends_however_much_it_is_used() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    session = sessions.begin("ann")
    while clock.now <= module.LONGEST_S:
        assert sessions.get(session.id) is session
        clock.now += module.IDLE_S / 2
    assert sessions.get(session.id) is None


def test_the_one_unused_for_longest_is_dropped() -> None:
    sessions = Sessions(Clock())
    first, second = sessions.begin("ann"), sessions.begin("bob")
    for _ in range(module.MOST_SESSIONS - 2):
        sessions.begin("many")
    sessions.get(first.id)
    sessions.begin("one more")
    assert len(sessions) == module.MOST_SESSIONS
    assert sessions.get(first.id) is first
    assert sessions.get(second.id) is None


def test_sessions_go_with_their_account() -> None:
    sessions = Sessions(Clock())
    gone, also, stays = sessions.begin("ann"), sessions.begin("ann"), sessions.begin("bob")
    sessions.end_of("ann")
    assert [sessions.get(each.id) for each in (gone, also, stays)] == [None, None, stays]


def test_nothing_of_a_session_can_be_guessed_from_another() -> None:
    sessions = Sessions(Clock())
    known = {text for _ in range(50) for session in [sessions.begin("ann")] for text in (session.id, session.csrf)}
    assert len(known) == 100
    assert min(map(len, known)) >= 43  # 32 random bytes
