"""The gate that a daemon starts for itself: sessions are in a process of their own, which comes and goes with it."""

import socket

import psutil
import pytest

from tests.support.whole_farm import Story, running_farm, until, until_ready

ONCE = "session = connect().request('android'); tell(add_one(session)); close(session)"
HELD = "session = connect().request('android'); tell(add_one(session)); wait(); tell(outcome(add_one, session))"


@pytest.fixture(scope="module")
def whole():
    with running_farm("oneplus-12") as farm:
        yield farm


def gate_of(farm):
    return psutil.Process(farm.status()["tracker"]["pid"])


def ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE  # an orphan, until init looks


def test_sessions_are_not_in_the_daemons_process(farm, clients):
    assert gate_of(farm).ppid() == farm.status()["pid"]
    with clients.running(ONCE) as client:
        assert client.hear() is True


def test_a_gate_that_dies_is_started_again_on_the_same_port(farm, clients):
    port, gate = farm.tracker()[1], gate_of(farm)
    story = Story(farm)
    with clients.running(HELD) as client:
        assert client.hear() is True
        gate.kill()
        with socket.create_connection(("127.0.0.1", port), 10):  # waits for the next gate, is not refused
            story.until("gate.lost")
            story.until("gate.back")
        client.go()
        assert client.hear() != ""
    assert (farm.tracker()[1], farm.status()["problems"]) == (port, [])
    until_ready(farm)
    with clients.running(ONCE) as client:
        assert client.hear() is True


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_the_gate_and_its_sessions_end_with_the_daemon(farm, clients, end):
    gate = gate_of(farm)
    with clients.running(HELD) as client:
        assert client.hear() is True
        getattr(farm.daemon, end)()
        until(lambda: ended(gate))
        assert "continue at the gate" not in farm.daemon.log.read_text()
        client.go()
        assert client.hear() != ""
    farm.daemon.start().close()
    farm.client.close()
    until_ready(farm)
    with clients.running(ONCE) as client:
        assert client.hear() is True
