"""Sessions end by themselves, make room, and go with their account."""

from farm.web import page as module
from farm.web.page import SignIns


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_ends_when_it_is_not_used() -> None:
    clock = Clock()
    sign_ins = SignIns(clock)
    sign_in = sign_ins.begin("ann")
    clock.now = module.IDLE_S
    assert sign_ins.get(sign_in.id) is sign_in
    clock.now += module.IDLE_S + 1
    assert sign_ins.get(sign_in.id) is None
    assert len(sign_ins) == 0


def test_a_session_ends_however_much_it_is_used() -> None:
    clock = Clock()
    sign_ins = SignIns(clock)
    sign_in = sign_ins.begin("ann")
    while clock.now <= module.LONGEST_S:
        assert sign_ins.get(sign_in.id) is sign_in
        clock.now += module.IDLE_S / 2
    assert sign_ins.get(sign_in.id) is None


def test_the_one_unused_for_longest_is_dropped() -> None:
    sign_ins = SignIns(Clock())
    first, second = sign_ins.begin("ann"), sign_ins.begin("bob")
    for _ in range(module.MOST_SIGN_INS - 2):
        sign_ins.begin("many")
    sign_ins.get(first.id)
    sign_ins.begin("one more")
    assert len(sign_ins) == module.MOST_SIGN_INS
    assert sign_ins.get(first.id) is first
    assert sign_ins.get(second.id) is None


def test_sessions_go_with_their_account() -> None:
    sign_ins = SignIns(Clock())
    gone, also, stays = sign_ins.begin("ann"), sign_ins.begin("ann"), sign_ins.begin("bob")
    sign_ins.end_of("ann")
    assert [sign_ins.get(each.id) for each in (gone, also, stays)] == [None, None, stays]


def test_nothing_of_a_session_can_be_guessed_from_another() -> None:
    sign_ins = SignIns(Clock())
    known = {text for _ in range(50) for sign_in in [sign_ins.begin("ann")] for text in (sign_in.id, sign_in.csrf)}
    assert len(known) == 100
    assert min(map(len, known)) >= 43  # 32 random bytes
