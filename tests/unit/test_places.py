"""Places that users share."""

from farm.tracker.places import FEWEST, Places, why_not_wait


def test_one_user_has_a_quarter_and_the_others_have_the_rest():
    places = Places(400)
    for _ in range(100):
        assert not places.used_up("ann")
        places.take("ann")
    assert places.used_up("ann")
    assert "100 of ann wait" in why_not_wait(places, "ann")
    assert why_not_wait(places, "bob") == ""
    places.leave("ann")
    assert not places.used_up("ann")


def test_all_together_have_no_more_than_there_are():
    places = Places(4)
    assert places.share == FEWEST
    for user in "abcd":
        places.take(user)
    assert places.full
    assert "4 wait" in why_not_wait(places, "e")
    for user in "abcd":
        places.leave(user)
    assert (len(places), places.full) == (0, False)
