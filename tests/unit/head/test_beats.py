"""Which hosts are lost, by their beats and the head's own commits."""

from datetime import UTC, datetime, timedelta

import pytest

from farm.head.beats import BEAT_EVERY_S, LOST_AFTER, BeatChanges, BeatWatch

BEGAN = datetime(2026, 11, 23, tzinfo=UTC)
NOTHING = BeatChanges()


class Looks:
    """Each step is a look of the head; hosts beat at the same pace unless they are silent."""

    def __init__(self, *hosts, ahead_s=0.0):
        """`ahead_s`: of the beat of the last host, when a new head begins to look."""
        self.watch, self.now_s = BeatWatch(), 0.0
        self.beats = dict.fromkeys(hosts, BEGAN)
        self.beats[hosts[-1]] += timedelta(seconds=ahead_s)
        if not ahead_s:
            assert self.look() == NOTHING

    def look(self, *silent, after_s=BEAT_EVERY_S):
        self.now_s += after_s
        for host in self.beats.keys() - set(silent):
            self.beats[host] += timedelta(seconds=after_s)
        return self.watch.observe(self.beats, self.now_s)

    def looks(self, count, *silent, **options):
        """What so many looks say, but those that say nothing."""
        return [said for _ in range(count) if (said := self.look(*silent, **options)) != NOTHING]

    def lose(self, host):
        assert self.looks(LOST_AFTER - 1, host) == []
        assert self.look(host) == BeatChanges(lost=(host,))


def test_a_host_is_lost_after_so_many_looks_without_a_beat_and_back_with_the_next():
    lab = Looks("one", "two")
    lab.lose("one")
    assert lab.watch.lost == {"one"}
    lab.watch.look_failed()  # an outage of the database changes nothing
    assert lab.watch.lost == {"one"}
    assert lab.look("one") == NOTHING
    assert lab.look() == BeatChanges(back=("one",))
    assert not lab.watch.lost


def test_a_new_head_misses_a_host_sooner_that_was_silent_while_another_beat():
    lab = Looks("dead", "one", ahead_s=BEAT_EVERY_S * LOST_AFTER)
    lab.lose("dead")
    assert lab.look("dead") == NOTHING
    assert lab.look() == BeatChanges(back=("dead",))


def test_a_new_head_loses_no_host_that_beats_later_than_another_after_an_outage():
    lab = Looks("late", "one", ahead_s=BEAT_EVERY_S * LOST_AFTER)
    assert [lab.look("late"), lab.look("late"), lab.look()] == [NOTHING] * 3
    assert lab.looks(LOST_AFTER - 1, "late") == []


def test_a_new_head_takes_no_host_for_lost_after_an_outage_of_the_database():
    assert Looks("two", "one", ahead_s=BEAT_EVERY_S).look("one", "two", after_s=3600.0) == NOTHING


def test_a_slow_host_is_not_lost_and_looks_that_come_too_soon_count_no_silence():
    lab = Looks("one")
    for _ in range(5):
        assert lab.looks(LOST_AFTER - 1, "one") == []
        assert lab.look() == NOTHING
    assert lab.looks(10, "one", after_s=BEAT_EVERY_S / 10) == []
    assert not lab.watch.lost


def test_while_the_head_can_commit_nothing_nobody_is_lost():
    lab = Looks("one")
    for _ in range(3):
        assert lab.looks(LOST_AFTER - 1, "one") == []
        lab.now_s += 10
        lab.watch.look_failed()
    assert not lab.watch.lost


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_the_clock_of_the_database_may_be_set(step_s):
    lab = Looks("one", "two")
    lab.beats = {host: beat + timedelta(seconds=step_s) for host, beat in lab.beats.items()}
    assert lab.look("two") == NOTHING
    lab.lose("two")


def test_a_host_whose_row_was_removed_is_forgotten():
    lab = Looks("one")
    lab.lose("one")
    del lab.beats["one"]
    assert lab.look() == NOTHING
    assert not lab.watch.lost
