"""Where candidates are built: both sides have work, what is late is built here too, nothing is placed twice."""

from farm.tuning.placement_rules import MEDIANS, MIN_WAIT_S, Place, Placement


def waiting(numbers, **slots):
    placement = Placement(**slots)
    placement.waiting.extend(range(numbers))
    return placement


def test_without_builders_all_go_to_the_hosts_own_queue_at_once():
    assert waiting(5, local_slots=2).place(0.0) == [Place(number, remote=False) for number in range(5)]


def test_builders_come_first_the_host_takes_what_it_has_cores_for_and_the_rest_waits():
    placement = waiting(6, local_slots=2, remote_slots=3)
    assert [each.remote for each in placement.place(0.0)] == [True, True, True, False, False]
    assert placement.place(1.0) == []
    assert placement.ended(4) is False
    assert placement.place(1.0) == [Place(5, remote=False)]


def test_what_is_late_is_built_here_too_and_once():
    placement = waiting(1, local_slots=1, remote_slots=1)
    placement.place(0.0)
    assert placement.place(MIN_WAIT_S - 0.1) == []
    assert placement.place(MIN_WAIT_S) == [Place(0, remote=False)]
    assert placement.place(2 * MIN_WAIT_S) == []
    assert placement.not_built(0) == []  # the builder's word comes later still
    assert placement.ended(0) is False


def test_slow_builders_are_waited_for_four_times_their_median():
    placement = waiting(3, local_slots=1, remote_slots=3)
    placement.place(0.0)
    for number, took_s in enumerate((2.0, 3.0, 40.0)):
        placement.answered(number, took_s)
    assert placement.limit_s == MEDIANS * 3.0
    placement.took_s.clear()
    placement.took_s.append(0.1)
    assert placement.limit_s == MIN_WAIT_S


def test_what_builders_do_not_build_is_built_here_at_once():
    placement = waiting(2, local_slots=0, remote_slots=2)
    placement.place(0.0)
    assert placement.not_built(1) == [Place(1, remote=False)]
    assert placement.not_built(1) == []
    assert placement.ended(0) is True  # a builder still works at it


def test_when_the_last_builder_goes_nothing_waits():
    placement = waiting(4, local_slots=1, remote_slots=1)
    placement.place(0.0)
    assert placement.grant(0) == [Place(0, remote=False)]
    assert placement.place(0.1) == [Place(2, remote=False), Place(3, remote=False)]
