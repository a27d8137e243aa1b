import pytest

from farm.common.events import EventLog


def test_a_reader_of_an_earlier_daemon_gets_all_of_the_new_ones_events():
    before, after = EventLog(1), EventLog(2)
    for _ in range(500):
        newest = before.publish("device.ready", "a")
    event = after.publish("device.gone", "a")
    assert list(after.since(newest.seq)) == [event]
    assert list(after.since(event.seq)) == []
    assert after.seq == event.seq


@pytest.fixture
def log():
    return EventLog(1)


@pytest.fixture
def heard(log):
    told = []
    log.subscribe(lambda event: told.append(event.kind))
    return told


def draft(*kinds):
    return [(kind, "x", {}) for kind in kinds]


def test_drafts_are_numbered_at_once_and_told_after_their_commit(log, heard):
    with log.drafted(*draft("a", "b")) as drafts:
        assert [event.kind for event in drafts] == ["a", "b"]
        assert [event.seq - log.seq for event in drafts] == [1, 2]
        assert heard == log.since() == []
    assert heard == ["a", "b"]
    assert log.since() == list(drafts)
    assert log.seq == drafts[-1].seq
    assert all(event.drafted for event in log.since())


def test_what_is_published_later_is_told_later(log, heard):
    first, second = log.drafted(*draft("a")), log.drafted(*draft("c"))
    first.__enter__()
    published = log.publish("b", "x")
    second.__enter__()
    second.__exit__(None, None, None)
    assert heard == []
    assert log.seq < published.seq
    first.__exit__(None, None, None)
    assert heard == ["a", "b", "c"]
    assert [event.kind for event in log.since(published.seq)] == ["c"]


def test_the_newest_are_known_while_a_draft_before_them_is_being_written(log, heard):
    def newest():
        return [event.kind for event in log.newest(lambda _: True, 10)]

    log.publish("a", "x")
    with log.drafted(*draft("b")) as drafts:
        log.publish("c", "x")
        assert newest() == ["c", "a"]
        assert heard == ["a"]
        drafts.settle(committed=True)
    assert newest() == ["c", "b", "a"]


@pytest.mark.parametrize("how", ["raises", "dropped", "refused"])
def test_dropped_drafts_leave_a_gap(log, heard, how):
    before = log.publish("before", "x")
    if how == "raises":
        with pytest.raises(ZeroDivisionError), log.drafted(*draft("a", "b")):
            raise ZeroDivisionError
    else:
        with log.drafted(*draft("a", "b")) as drafts:
            drafts.drop() if how == "dropped" else drafts.settle(committed=False)
    after = log.publish("after", "x")
    assert heard == ["before", "after"]
    assert after.seq == before.seq + 3


def test_what_is_committed_is_told_in_order_whatever_happens_after(log, heard):
    log.subscribe(lambda event: event.kind == "a" and log.publish("because of a", "x"))

    def commits_and_fails():
        with log.drafted(*draft("a", "b")) as drafts:
            drafts.settle(committed=True)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        commits_and_fails()
    assert heard == ["a", "b", "because of a"]


def test_a_listener_that_fails_harms_neither_publisher_nor_others(log, heard, caplog):
    def fail(event):
        if event.kind != "b":
            raise ZeroDivisionError

    log._listeners.insert(0, fail)
    log.publish("a", "x")
    log.publish("b", "x")
    with log.drafted(*draft("c", "d")):
        pass
    assert heard == ["a", "b", "c", "d"]
    assert [event.kind for event in log.since()] == ["a", "b", "c", "d"]
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [("ERROR", f"a listener failed at event {kind} of x") for kind in "acd"]


def test_events_of_a_lab_name_their_host():
    log = EventLog()
    log.host_of = lambda data: {"a": "one"}.get(data.get("device"), "")
    with log.drafted(("lease.granted", "l1", {"device": "a"}), ("lease.granted", "l2", {"device": "b"})) as drafts:
        drafts.settle(committed=True)
    assert [event.data.get("host") for event in log.since()] == ["one", None]


def test_memory_is_bounded(log):
    from farm.common import events

    for _ in range(events.KEPT_EVENTS + 5):
        newest = log.publish("a", "x")
    assert len(log.since()) == events.KEPT_EVENTS
    assert log.oldest == newest.seq - events.KEPT_EVENTS + 1
    assert EventLog().oldest == 1


def test_memory_is_bounded_whatever_is_in_an_event(log):
    """A worker that reported its progress in a loop took gigabytes: 20,000 events of half a megabyte."""
    from farm.common import events

    large = [1.5] * 50_000
    for _ in range(100):
        newest = log.publish("job.progress", "j1", points=large)
    kept = log.since()
    assert kept[-1] == newest
    assert 1 <= len(kept) <= events.KEPT_BYTES // (56 * len(large))
    assert log.oldest == kept[0].seq
    log.publish("job.progress", "j1", step="x" * 2 * events.KEPT_BYTES)
    assert len(log.since()) == 1
