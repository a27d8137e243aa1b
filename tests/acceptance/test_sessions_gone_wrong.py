"""However a session or a request for one ends, the phone comes back, and events say in which order."""

import pytest

from tests.support.whole_farm import Story, refused, until, until_ready

CONFIG = """
[lease]
unused_s = 5.0
"""
HOLD = "session = connect().request('android'); tell(add_one(session)); wait(); close(session); tell(0)"
SPIN = """
session = connect().request("android", session_timeout={timeout})
tell("open"); wait()
tell(outcome(add_one, session))
"""
RECOVERED = ("device.recovering", "device.checking", "device.ready")

pytestmark = pytest.mark.farm("galaxy-s9", config=CONFIG)


def waiting(farm):
    return len(farm.client.call("lease.list")["waiting"])


def test_a_requester_that_dies_while_it_waits_is_forgotten(farm, phone, clients):
    story = Story(farm)
    with clients.running(HOLD) as holder:
        assert holder.hear() is True
        with clients.running("tell(0); connect().request('android')") as waiter:
            assert waiter.hear() == 0
            until(lambda: waiting(farm) == 1)
            waiter.kill()
        until(lambda: waiting(farm) == 0)
        [row] = [row for row in farm.status()["keys"] if row["key"] == "android"]
        assert (row["free"], row["pending"]) == (0, 0)
        holder.go()
        assert holder.hear() == 0
    story.until("lease.released")
    assert clients.result(HOLD) is True
    story.until("lease.granted")
    assert story.kinds().count("lease.granted") == 2
    assert story.kinds(phone.name, rooms="device") == []


def test_a_grant_that_nobody_uses_is_taken_back(farm, clients):
    ask = """
        from tvm.rpc import base
        tracker = connect()
        base.sendjson(tracker._sock, [base.TrackerCode.REQUEST, "android", "", 1])
        code, (address, at, key) = base.recvjson(tracker._sock)
        tell(code); wait()
        from tvm import rpc
        tell(outcome(rpc.connect, address, at, key))
    """
    story = Story(farm)
    with clients.running(ask) as client:
        assert client.hear() == 0
        released = story.until("lease.released")
        assert "not used" in released["data"]["reason"]
        assert story.kinds() == ["lease.granted", "lease.released"]
        client.go()
        assert "match" in client.hear()  # its key is worth nothing any more
    assert clients.result(HOLD) is True


def spinning(farm, phone, client):
    """Let `client` start a kernel that never ends and ignores SIGTERM; later kernels are good again."""
    farm.lab.ignore_sigterm(phone.nickname)
    client.go()
    until(phone.spins)
    farm.lab.good_kernels(phone.nickname)


def test_a_session_past_its_timeout_is_cut_though_its_kernel_ignores_sigterm(farm, phone, clients):
    story, before = Story(farm), phone.server()
    with clients.running(SPIN.format(timeout=8)) as client:
        assert client.hear() == "open"
        spinning(farm, phone, client)
        cut = story.until("session.cut")
        assert "8 s" in cut["data"]["reason"]
        assert client.hear()
        story.until("device.ready")
    story.order("lease.granted", "session.opened", "session.cut", "session.ended", *RECOVERED, device=phone.name)
    story.order("session.ended", "lease.released", "device.ready", device=phone.name)
    assert phone.server() == before  # the same server, and no process of the session
    assert clients.result(HOLD) is True


def test_a_hung_session_is_cut_by_an_operator(farm, phone, clients):
    story, before = Story(farm), phone.server()
    with clients.running(SPIN.format(timeout=0)) as client:
        assert client.hear() == "open"
        spinning(farm, phone, client)
        kicked = farm.farm("lease", "kick", phone.name)
        assert kicked.returncode == 0, kicked
        assert client.hear()
        story.until("device.ready")
    story.order("session.opened", "lease.revoked", "session.cut", "session.ended", *RECOVERED, device=phone.name)
    assert phone.server() == before


def test_a_client_that_dies_in_a_kernel_leaves_nothing_on_the_phone(farm, phone, clients):
    story, before = Story(farm), phone.server()
    with clients.running(SPIN.format(timeout=0)) as client:
        assert client.hear() == "open"
        spinning(farm, phone, client)
        client.kill()
        story.until("device.ready")
    story.order("session.opened", "session.ended", *RECOVERED, device=phone.name)
    assert phone.server() == before


def test_a_kernel_that_crashes_ends_its_session_only(farm, phone, clients):
    story, before = Story(farm), phone.server()
    with clients.running(SPIN.format(timeout=0)) as client:
        assert client.hear() == "open"
        farm.lab.fault(phone.nickname, "segfault")
        client.go()
        assert "RPC" in client.hear()
        farm.lab.good_kernels(phone.nickname)
        story.until("lease.released")
    until_ready(farm)
    story.order("session.opened", "session.ended", "lease.released", device=phone.name)
    assert phone.server() == before
    assert clients.result(HOLD) is True


def test_the_next_client_waits_until_the_phone_is_clean(farm, phone, clients):
    story = Story(farm)
    with clients.running(SPIN.format(timeout=0)) as hung:
        assert hung.hear() == "open"
        with clients.running(HOLD) as patient:
            until(lambda: waiting(farm) == 1)
            spinning(farm, phone, hung)
            farm.farm("lease", "kick", phone.name)
            assert patient.hear() is True
    story.until("device.ready")
    story.until("lease.granted")
    story.order("session.cut", *RECOVERED, "lease.granted", device=phone.name)


def test_kicking_nobody_is_refused(farm, phone):
    refused(farm.farm("lease", "kick", phone.name), 2, "is not leased")
    refused(farm.farm("lease", "kick", "lease-1-77"), 2, "lease-1-77")
