"""Leases as the client holds them: over a made-up daemon's restarts, to their end."""

import asyncio
import socket
import threading
from dataclasses import replace

import pytest
from adbutils.errors import AdbConnectionError

from farm import AsyncClient
from farm.common.errors import NoPhoneError, PhoneError, UserError
from farm.model.job import JobState
from farm.model.requests import NoSuchLeaseError
from tests.support.waiting import HANG_S


def test_a_lease_is_held_for_a_block_and_given_back(daemon, client, background):
    def hold():
        with client.lease(on="android", seconds=60) as lease:
            assert lease.extend(60).year == 2026
            return lease

    work = background(hold)
    daemon.until_called("job.watch")
    daemon.grant("job-0001", "pixel")
    lease = work.result(HANG_S)
    assert (lease.device, lease.tvm_port, lease.tvm_key, lease.adb_port) == ("pixel", 9190, "secret", 5999)
    assert "secret" not in repr(lease)
    of_leases = [kind for kind in daemon.calls if kind.startswith("lease.")]  # the watch for its end asks when it comes
    assert of_leases[-2:] == ["lease.extend", "lease.release"]


def test_adb_of_a_lease_that_is_over_starts_no_adb_server(acquired, monkeypatch):
    """It would be of port 5037, and take the phones of USB."""
    monkeypatch.setattr("adbutils._adb.subprocess.run", lambda *_, **__: pytest.fail("an adb server was started"))
    with socket.socket() as bound:  # a port where nobody listens
        bound.bind(("127.0.0.1", 0))
        lease = replace(acquired(seconds=60), adb_port=bound.getsockname()[1])
        with pytest.raises(AdbConnectionError):
            lease.adb.shell("true")
    lease.release()


def test_a_lease_acquired_elsewhere_is_found_and_given_back_even_to_a_daemon_that_has_not_resumed_it(
    daemon, client, acquired
):
    lease = acquired(seconds=60)
    assert client.lease_show("pixel") == lease
    del daemon.held["job-0001"]
    lease.release()
    assert client.job("job-0001").job.state is JobState.CANCELLED
    with pytest.raises(NoSuchLeaseError):
        client.lease_show("pixel")


def test_why_a_phone_is_waited_for_is_told_and_a_grant_missed_over_a_restart_is_found(
    daemon, client, background, monkeypatch
):
    monkeypatch.setattr("farm.client.lease.IDLE_S", 0.01)
    reasons = []
    work = background(client.acquire, on="android", on_wait=reasons.append)
    daemon.until_called("job.show")
    daemon.kill()
    daemon.start()
    daemon.grant("job-0001", "pixel", tell=False)
    assert work.result(HANG_S).device == "pixel"
    assert reasons == ["pixel is held by bob for 12 s"]


def test_a_job_whose_phone_was_waited_for_too_long_says_that_and_not_that_someone_cancelled_it(client):
    with pytest.raises(NoPhoneError, match="no phone within 0s: pixel is held by bob"):
        client.acquire(on="android", wait_s=0.001)
    ended = client.job("job-0001").job
    assert (ended.state, ended.error.message) == (JobState.CANCELLED, "no phone within 0s")


def test_a_phone_that_only_an_operator_can_free_is_waited_for_only_where_that_is_asked(
    daemon, client, background, monkeypatch
):
    monkeypatch.setattr("farm.client.lease.IDLE_S", 0.01)
    daemon.operator = "farm device release pixel"
    with pytest.raises(NoPhoneError, match="only an operator can free a phone: pixel is held by bob") as raised:
        client.acquire(on="android", for_operator=False)
    assert (raised.value.exit_code, raised.value.hint.split(",")[0]) == (3, "farm device release pixel (an operator)")
    ended = client.job("job-0001").job
    assert (ended.state, ended.error.message) == (JobState.CANCELLED, raised.value.message)
    told = threading.Event()
    work = background(client.acquire, on="android", on_wait=lambda _: told.set())
    assert told.wait(HANG_S)
    daemon.grant("job-0002", "pixel")
    assert work.result(HANG_S).device == "pixel"


def test_to_wait_for_no_time_at_all_is_refused(daemon, client):
    with pytest.raises(UserError, match="wait_s=0 is no time at all"):
        client.acquire(on="android", wait_s=0)
    assert not daemon.jobs


def test_a_lease_that_soon_ends_is_noticed(daemon, client, said, background):
    noticed, leave = threading.Event(), threading.Event()
    client._client.connection.on_notice = lambda line: (said.append(line), noticed.set())

    def hold():
        with client.lease(on="android", seconds=60):
            leave.wait(HANG_S)

    work = background(hold)
    daemon.until_called("job.watch")
    daemon.grant("job-0001", "pixel")
    daemon.tell("lease.expiring", "L", job="job-0001", expires_at="2020-01-01T00:00:00+00:00")  # extended since
    daemon.tell("lease.expiring", "L", job="job-0001", expires_at="2999-01-01T00:00:00+00:00")
    assert noticed.wait(HANG_S)
    leave.set()
    work.result(HANG_S)
    [line] = said
    assert line.startswith("the lease on pixel ends in ")


def test_a_lease_that_cannot_be_had_raises_why(daemon, client, background):
    def hold():
        with client.lease(on="android"):
            raise AssertionError

    work = background(hold)
    daemon.until_called("job.watch")
    daemon.end("job-0001", error=PhoneError("the phone went away"))
    with pytest.raises(PhoneError, match="went away"):
        work.result(HANG_S)


async def test_a_lease_given_up_while_it_waits_is_cancelled(daemon):
    async with AsyncClient(daemon.socket) as client:
        async with asyncio.timeout(HANG_S):
            waiting = asyncio.ensure_future(client.lease(on="android").__aenter__())
            await asyncio.to_thread(daemon.until_called, "job.watch")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert (await client.job("job-0001")).job.state is JobState.CANCELLED
