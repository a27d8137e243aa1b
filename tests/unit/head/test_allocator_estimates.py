"""What an estimate is worth: exact where the order cannot change, and where it can, no promise."""

from hypothesis import given
from hypothesis import strategies as st

from farm.head.allocator.allocator import Allocator
from tests.support.allocator import Lab

lengths = st.integers(1, 1000).map(float)


def served_at(lab):
    """When each who waits is served, if every holder keeps its device for as long as it may and nobody comes."""
    at_s = {}
    while lab.allocator.held:
        device, holding = min(lab.allocator.held.items(), key=lambda item: item[1].ends_s)
        while (look_s := lab.allocator.next_check_s()) is not None and look_s < holding.ends_s:
            lab.now_s = look_s
            at_s |= {grant.request_id: lab.now_s for grant in lab.decide(Allocator.clock_advanced)}
        lab.now_s = holding.ends_s
        if request := lab.end(device):
            at_s[request] = lab.now_s
    return at_s


@given(phones=st.integers(1, 4), holds=st.lists(lengths, min_size=4, max_size=4), waits=st.lists(lengths, max_size=12))
def test_it_is_exact_for_one_user_who_wants_the_same_again_and_again(phones, holds, waits):
    lab = Lab(*"abcd"[:phones])
    for number, longest_s in enumerate([*holds[:phones], *waits]):
        lab.want(f"r{number}", longest_s=longest_s)
    waiting = [name for name, _ in lab.allocator.waiting()]
    estimated = {name: lab.now_s + lab.allocator.estimate_s(name, lab.now_s) for name in waiting}
    assert len(estimated) == len(waits)
    assert served_at(lab) == estimated


def test_it_is_no_promise_others_overtake_once_one_of_ones_own_was_served():
    lab = Lab("a")
    lab.want("held", user="cleo", longest_s=10.0)
    for name in ("first", "second"):
        lab.want(name, user="ann", longest_s=100.0)
    lab.want("bob's", user="bob", longest_s=1000.0)
    estimate_s = lab.allocator.estimate_s("second", lab.now_s)
    assert estimate_s == 110.0
    began_s = lab.now_s
    assert served_at(lab)["second"] - began_s == 1110.0
