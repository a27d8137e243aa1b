from farm.core.events import EventLog


def test_a_reader_of_an_earlier_daemon_gets_all_of_the_new_ones_events():
    before, after = EventLog(1), EventLog(2)
    for _ in range(500):
        newest = before.publish("device.ready", "a")
    event = after.publish("device.gone", "a")
    assert list(after.since(newest.seq)) == [event]
    assert list(after.since(event.seq)) == []
    assert after.seq == event.seq
