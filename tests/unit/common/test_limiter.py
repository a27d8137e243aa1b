"""The limiter that bounds connections, calls and memory by key and in all."""

from farm.common.limiter import Limiter
from farm.tvm_server.gate.forwarding import _why_not_wait
from farm.tvm_server.listener import MIN_OF_USER, user_limiter


def test_one_user_has_a_quarter_and_the_others_have_the_rest():
    limiter = user_limiter(400)
    for _ in range(100):
        assert limiter.fits("ann")
        limiter.take("ann")
    assert not limiter.fits("ann")
    assert "100 of ann wait" in _why_not_wait(limiter, "ann")
    assert _why_not_wait(limiter, "bob") == ""
    limiter.give_back("ann")
    assert limiter.fits("ann")


def test_all_together_have_no_more_than_there_is():
    limiter = user_limiter(4)
    assert limiter.per_key == MIN_OF_USER
    for user in "abcd":
        limiter.take(user)
    assert not limiter.fits("e")
    assert "4 wait" in _why_not_wait(limiter, "e")
    for user in "abcd":
        limiter.give_back(user)
    assert limiter.taken == 0
    assert limiter.fits("e")


def test_operators_have_no_bound_of_their_own_and_a_reserved_part():
    limiter = Limiter(10, 3, reserved=2, operators={"root"})
    for user, taken in (("ann", 3), ("bob", 3), ("eve", 2)):
        limiter.take(user, taken)
        assert limiter.fits(user) is (taken < 3 and limiter.taken < 8)
    assert not limiter.fits("cyd")
    assert limiter.fits("root", 2)
    assert not limiter.fits("root", 3)


def test_the_largest_holder_is_the_one_to_evict():
    limiter = Limiter(100)
    limiter.set("small", 10)
    limiter.set("large", 40)
    limiter.set("larger", 50)
    assert limiter.taken == limiter.total
    limiter.set("small", 20)
    assert (limiter.taken, limiter.largest) == (110, "larger")
    limiter.set("larger", 0)
    assert (limiter.taken, limiter.largest, limiter.of("larger")) == (60, "large", 0)
    limiter.set("small", 40)
    assert limiter.largest == "large"  # of equals, the one that was set first
