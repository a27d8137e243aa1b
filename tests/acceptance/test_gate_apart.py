"""The gate as a process of its own: stock sessions through every way in which daemon and gate may end."""

import tempfile
from pathlib import Path

import pytest

from tests.support.gate_process import running_gate
from tests.support.tvm import free_port
from tests.support.whole_farm import Story, answer, phones, running_farm, until, until_ready, until_status

# Computes, waits, computes again in the same session, waits, closes.
TWICE = """
session = connect().request({key!r})
tell(add_one(session)); wait(); tell(outcome(add_one, session)); wait(); close(session); tell("closed")
"""
# The same in a leased phone's session, opened with the lease's own key.
LEASED = """
from tvm import rpc
session = rpc.connect(host, port, key={key!r})
tell(add_one(session)); wait(); tell(outcome(add_one, session)); wait(); close(session); tell("closed")
"""
ONCE = "tell('asks'); session = connect().request('android'); tell(add_one(session)); close(session)"


@pytest.fixture(scope="module")
def gate():
    with tempfile.TemporaryDirectory(prefix="gate-") as folder, running_gate(Path(folder), port=free_port()) as gate:
        yield gate


@pytest.fixture(scope="module")
def whole(gate):
    with running_farm("oneplus-12", "galaxy-a55", gate=gate.socket) as farm:
        yield farm


def servers(phone):
    """Its RPC server, without what sessions have forked."""
    return set(phone.programs())


def leases(farm):
    return {row["device"]: row for row in farm.client.call("lease.list")["leases"]}


def told(story, kind):
    return [event for event in story.events if event["kind"] == kind]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_sessions_compute_through_a_restart_of_the_daemon_and_newcomers_wait(farm, gate, clients, end):
    phone, other = phones(farm)
    held = answer(farm.farm("lease", "acquire", "--on", other.name, "--for", "10m", "--json"))
    with (
        clients.running(TWICE.format(key=phone.name)) as client,
        clients.running(LEASED.format(key=held["tvm_key"])) as person,
    ):
        assert client.hear() is person.hear() is True
        before, running = leases(farm), [servers(each) for each in (phone, other)]
        story = Story(farm)
        getattr(farm.daemon, end)()
        until(lambda: "new clients wait" in gate.log_text)
        client.go()
        assert client.hear() == ""  # computed with no daemon there
        with clients_while_away(farm, gate, clients) as new_request:
            assert new_request.hear() == "asks"
            farm.daemon.start().close()
            until_status(farm, lambda status: {row["life"] for row in status["devices"]} == {"ready"})
            after = leases(farm)
            assert {name: (row["id"], row["user"], row["session"]) for name, row in after.items()} == {
                name: (row["id"], row["user"], row["session"]) for name, row in before.items()
            }
            assert [servers(each) for each in (phone, other)] == running
            person.go()
            assert person.hear() == ""
            client.go()
            assert client.hear() == "closed"
            assert new_request.hear() is True  # it had asked while nobody was there
        person.go()
        assert person.hear() == "closed"
    assert farm.farm("lease", "release", held["lease"]).returncode == 0
    story.until("lease.released", subject=held["lease"])
    ended = [event["data"] for event in told(story, "session.ended")]
    for row in before.values():
        [end_of] = [data for data in ended if data["session"] == row["session"]]
        assert end_of["outcome"] == "closed"
        assert end_of["bytes_up"] > 0
    ours = story.kinds(phone.name)
    assert "device.checking" not in ours[: ours.index("session.ended")]  # nothing was done to it under its session


def clients_while_away(farm, gate, clients):
    """A client that comes while the daemon is away; where the farm is, it knows."""
    port = int(gate.log_text.rsplit("127.0.0.1 port ", 1)[1].split(";")[0])
    return clients.at("127.0.0.1", port, ONCE)


def test_a_killed_gate_ends_its_sessions_and_the_farm_goes_on(farm, gate, clients):
    phone, _ = phones(farm)
    story = Story(farm)
    with clients.running(TWICE.format(key=phone.name)) as client:
        assert client.hear() is True
        gate.kill()
        assert story.until("session.ended", device=phone.name)["data"]["outcome"] == "cut"
        client.go()
        assert client.hear() != ""
    until(lambda: any("gate" in line for line in farm.status()["problems"]))
    gate.start()
    story.until("gate.back")
    story.order("gate.lost", "gate.back")
    until_ready(farm)
    assert clients.result("tell(add_one(connect().request('android')))") is True
    assert farm.status()["problems"] == []
