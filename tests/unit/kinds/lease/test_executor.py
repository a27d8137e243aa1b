"""The executor of leases over a leased adb without a phone: time, release, what is told, kept and taken up again."""

import asyncio
import contextlib
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from farm.adb.client import AdbClient
from farm.common.errors import ExitCode, FarmError, NotAllowedError, UserError
from farm.common.events import EventLog
from farm.common.limits import MAX_LEASE_S
from farm.common.selector import Selector
from farm.jobs.executor import AttemptContext
from farm.kinds.lease import LeaseSpec
from farm.kinds.lease.executor import GRANTED, WARNED_BEFORE_S, LeaseExecutor
from farm.leasing.sessions import digest
from farm.model.device import DeviceView, Life
from farm.model.job import Attempt, Job
from farm.model.requests import Lease, LeaseRequest, LeaseSource, NoSuchLeaseError
from tests.support.waiting import HANG_S

KEY = "phone:" + "0" * 32


class Leases:
    """Leasing as far as the executor knows it."""

    def __init__(self, seconds):
        self.wall = lambda: datetime.now(UTC)
        self.adopted, self.made = [], 0
        self.expires_at = lambda _: self.end
        self.adopt_match_key = lambda _, sha256: self.adopted.append(sha256)
        self._ends_in(seconds)

    def _ends_in(self, seconds):
        self.end = datetime.now(UTC) + timedelta(seconds=seconds)
        return self.end

    def new_match_key(self, lease_id, *, single_use):
        assert not single_use
        self.made += 1
        return KEY if self.made == 1 else f"{KEY[:-1]}{self.made}"

    async def extend(self, lease_id, longest_s):
        return self._ends_in(longest_s)


class Phones:
    """The fleet as far as the executor knows it."""

    views = tuple

    def __init__(self):
        self.noted, self.in_hands = [], []
        self.still_in_hands = self.in_hands.append
        self.subscribe = lambda _: lambda: None
        self.server_port = lambda _: 0

    async def note_before_lease(self, name):
        self.noted.append(name)


class World:
    """One lease and everything around it."""

    def __init__(self, seconds, facts=None):
        self.leases, self.phones, self.events = Leases(seconds), Phones(), EventLog()
        self.user = ""  # whose every loopback connection is
        self.facts, self.progress, self.lines = facts or {}, [], []
        self.saved = asyncio.Event()
        self.executor = LeaseExecutor(
            SimpleNamespace(
                leasing=self.leases, fleet=self.phones, client=AdbClient("localfilesystem:/nonexistent/adb"),
                gate=lambda: ("127.0.0.1", 9190), events=self.events, user_of=self.user_of,
                own_ports=tuple,
            )
        )  # fmt: skip
        spec = LeaseSpec(on="phone", seconds=seconds)
        request = LeaseRequest(Selector.of_alias("phone"), "alice", LeaseSource.JOB, longest_s=seconds, job="lease-1")
        now = datetime.now(UTC)
        self.running = AttemptContext(
            job=Job("lease-1", "lease", "alice", spec.to_wire(), "phone", now),
            spec=spec,
            attempt=Attempt("lease-1.1", "lease-1", 1, "phone", "L1", 7, now, facts=self.facts),
            lease=Lease("L1", "phone", 7, request, asyncio.get_running_loop().time()),
            view=DeviceView("phone", "SERIAL", Life.READY, adopted=True),
            progress=lambda step, **told: self.progress.append((step, told)),
            log=lambda text, level="info", *, source="farm": self.lines.append((level, text)),
            save_facts=self.save,
            yield_wanted=lambda: False,
        )

    async def user_of(self, _):
        if self.user is None:
            raise NotAllowedError("a phone's reverse")
        return self.user

    async def save(self, facts):
        self.facts = dict(facts)
        self.saved.set()

    @contextlib.asynccontextmanager
    async def under_way(self, *, resumed=False):
        begin = self.executor.resume if resumed else self.executor.run
        task = asyncio.create_task(begin(self.running))
        try:
            async with asyncio.timeout(HANG_S):
                await self.saved.wait()
                yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def said(self):
        """What a client of the leased adb hears to a question that needs no real server."""
        with socket.create_connection(("127.0.0.1", self.facts["adb_port"]), timeout=HANG_S) as client:
            client.sendall(b"0009host:kill")
            client.shutdown(socket.SHUT_WR)
            heard = b""
            while more := client.recv(4096):
                heard += more
            return heard.decode()


async def test_what_is_told_and_kept_holds_no_key():
    world = World(600)
    async with world.under_way() as task:
        assert world.phones.noted == ["phone"]
        (step, told), shown = world.progress[0], await world.executor.show("phone")
        assert step == GRANTED
        assert shown == {**told, "user": "alice", "tvm_key": KEY, "yield_wanted": False}
        assert (told["device"], told["serial"], told["tvm_port"]) == ("phone", "SERIAL", 9190)
        assert told["adb_port"] == world.facts["adb_port"] > 0
        assert KEY not in str((world.facts, world.progress, world.lines))
        assert world.facts["key_sha256"] == (digest(KEY),)
        assert "farm lease" in await asyncio.to_thread(world.said)
        with pytest.raises(NoSuchLeaseError) as unknown:
            world.executor.holder("phnoe")
        assert (unknown.value.exit_code, unknown.value.hint) == (ExitCode.USAGE, "did you mean phone?")
        assert world.executor.holder("lease-") == world.executor.holder("L1")
        with pytest.raises(NoSuchLeaseError):
            world.executor.holder("")
        assert world.executor.release("L1", "released") == "lease-1"
        result = await task
    assert (result["device"], result["ended"]) == ("phone", "released")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(world.said)
    for order in (lambda: world.executor.release("L1", "again"), lambda: world.executor.holder("phone")):
        with pytest.raises(NoSuchLeaseError):
            order()


async def test_only_its_user_is_let_in():
    world = World(600)
    async with world.under_way():
        for user, let_in in (("alice", True), ("", True), ("bob", False), (None, False)):
            world.user = user
            assert ("another user" not in await asyncio.to_thread(world.said)) is let_in


async def test_time_ends_it_after_one_warning():
    world = World(0.3)
    async with world.under_way() as task:
        result = await task
    assert result["ended"] == "its time is over"
    assert [(event.kind, event.subject) for event in world.events.since()] == [("lease.expiring", "L1")]


async def test_a_moved_end_warns_again_and_has_a_limit():
    world = World(WARNED_BEFORE_S - 1)
    warned = asyncio.Event()
    world.events.subscribe(lambda _: warned.set())
    async with world.under_way() as task:
        await warned.wait()
        with pytest.raises(UserError, match="7 days"):
            await world.executor.extend("L1", MAX_LEASE_S)
        assert await world.executor.extend("lease-1", 600) == world.leases.end
        assert world.facts["expires_at"] == world.leases.end.isoformat()
        assert not task.done()
        assert len(list(world.events.since())) == 1


async def test_it_goes_on_after_a_restart_with_its_port_and_key():
    before = World(600)
    async with before.under_way():
        facts = before.facts
    after = World(600, facts)
    async with after.under_way(resumed=True) as task:
        assert after.phones.in_hands == ["phone"]
        assert after.phones.noted == []
        assert after.leases.adopted == [digest(KEY)]
        assert after.facts["adb_port"] == facts["adb_port"]
        after.leases.made = 1  # the first was made by the daemon before
        shown = await after.executor.show("L1")
        assert after.facts["key_sha256"] == (digest(KEY), digest(shown["tvm_key"]))
        assert await after.executor.show("L1") == shown
        assert not task.done()


async def test_a_port_that_is_taken_by_then_is_replaced_and_told():
    before = World(600)
    async with before.under_way():
        facts = before.facts
    with socket.create_server(("127.0.0.1", facts["adb_port"])):
        after = World(600, facts)
        async with after.under_way(resumed=True):
            assert after.facts["adb_port"] != facts["adb_port"]
            assert [level for level, _ in after.lines] == ["warning", "info"]


async def test_facts_of_another_release_are_farms_fault():
    world = World(600, {"version": "x"})
    with pytest.raises(FarmError, match="cannot be read"):
        await world.executor.resume(replace(world.running, attempt=world.running.attempt))
