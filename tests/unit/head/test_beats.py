"""Which hosts are lost, by their beats and the head's own commits."""

from datetime import UTC, datetime, timedelta

import pytest

from farm.head.beats import BEAT_EVERY_S, LOST_AFTER, BeatChanges, BeatWatch

BEGAN = datetime(2026, 11, 23, tzinfo=UTC)
NOTHING = BeatChanges()


class Lab:
    """Each step is a look of the head; hosts beat at the same pace unless they are silent."""

    def __init__(self, *hosts):
        self.watch, self.now_s = BeatWatch(), 0.0
        self.beats = dict.fromkeys(hosts, BEGAN)

    def look(self, *silent, after_s=BEAT_EVERY_S):
        self.now_s += after_s
        for host in self.beats.keys() - set(silent):
            self.beats[host] += timedelta(seconds=after_s)
        return self.watch.looked(self.beats, self.now_s)


def test_a_host_is_lost_after_so_many_looks_without_a_beat_and_back_with_the_next():
    lab = Lab("one", "two")
    assert [lab.look() for _ in range(3)] == [NOTHING] * 3
    assert [lab.look("one") for _ in range(LOST_AFTER)] == [*[NOTHING] * (LOST_AFTER - 1), BeatChanges(lost=("one",))]
    assert lab.watch.lost == {"one"}
    assert lab.look("one") == NOTHING
    assert lab.look() == BeatChanges(back=("one",))
    assert not lab.watch.lost


def test_a_new_head_misses_a_host_sooner_that_was_silent_while_another_beat():
    lab = Lab("dead", "one")
    lab.beats["one"] += timedelta(seconds=BEAT_EVERY_S * LOST_AFTER)
    looks = [lab.look("dead") for _ in range(LOST_AFTER)]
    assert looks == [*[NOTHING] * (LOST_AFTER - 1), BeatChanges(lost=("dead",))]
    assert lab.look("dead") == NOTHING
    assert lab.look() == BeatChanges(back=("dead",))


def test_a_new_head_loses_no_host_that_beats_later_than_another_after_an_outage():
    lab = Lab("late", "one")
    lab.beats["one"] += timedelta(seconds=BEAT_EVERY_S * LOST_AFTER)
    assert [lab.look("late"), lab.look("late"), lab.look()] == [NOTHING] * 3
    assert [lab.look("late") for _ in range(LOST_AFTER - 1)] == [NOTHING] * (LOST_AFTER - 1)


def test_a_new_head_takes_no_host_for_lost_after_an_outage_of_the_database():
    lab = Lab("one", "two")
    lab.beats["one"] += timedelta(seconds=BEAT_EVERY_S)
    assert lab.look("one", "two", after_s=3600.0) == NOTHING


def test_a_slow_host_is_not_lost():
    lab = Lab("one")
    lab.look()
    for _ in range(5):
        assert [lab.look("one") for _ in range(LOST_AFTER - 1)] == [NOTHING] * (LOST_AFTER - 1)
        assert lab.look() == NOTHING


def test_looks_that_come_too_soon_count_no_silence():
    lab = Lab("one")
    lab.look()
    for _ in range(10):
        assert lab.look("one", after_s=BEAT_EVERY_S / 10) == NOTHING
    assert not lab.watch.lost


def test_while_the_head_can_commit_nothing_nobody_is_lost():
    lab = Lab("one")
    lab.look()
    for _ in range(3):
        for _ in range(LOST_AFTER - 1):
            assert lab.look("one") == NOTHING
        lab.now_s += 10
        lab.watch.look_failed()
    assert not lab.watch.lost


def test_who_was_lost_before_an_outage_is_lost_until_it_beats():
    lab = Lab("one")
    lab.look()
    for _ in range(LOST_AFTER):
        lab.look("one")
    lab.watch.look_failed()
    assert lab.watch.lost == {"one"}
    assert lab.look() == BeatChanges(back=("one",))


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_the_clock_of_the_database_may_be_set(step_s):
    lab = Lab("one", "two")
    lab.look()
    lab.beats = {host: beat + timedelta(seconds=step_s) for host, beat in lab.beats.items()}
    assert [lab.look("two") for _ in range(LOST_AFTER)][-2:] == [NOTHING, NOTHING]
    assert lab.look("two") == BeatChanges(lost=("two",))


def test_a_host_whose_row_was_removed_is_forgotten():
    lab = Lab("one")
    lab.look()
    for _ in range(LOST_AFTER):
        lab.look("one")
    del lab.beats["one"]
    assert lab.look() == NOTHING
    assert not lab.watch.lost
