"""One head after the other and two hosts, joined by mailboxes that lose nothing and deliver when the machine says.

A device has at most one lease that is held, its fences grow, a lease that its host has not armed was never held, each
lease ends once, and who asks gets one lease, also of the other host's device.
"""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farm.common.events import EventLog
from farm.common.selector import Selector
from farm.head import wire
from farm.head.messages import HostBegan, LeaseGranted, LeaseRestored, LeaseUnwanted, SlotWanted
from farm.head.model import LeasePolicy
from farm.head.request_queue import RequestQueue
from farm.head.waiting_requests import JobRequester
from farm.head.write_queue import LeaseWriteQueue
from farm.leasing.leases import Leasing
from farm.leasing.remote_head import RemoteHead
from farm.model.device import Life
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from farm.store.mailbox import Letter
from tests.support.memory_post import MemoryPost, TermTable
from tests.support.tvm import FakeDevices

HOSTS = ("a", "b")
PHONES = ("a1", "a2", "b1")
hosts = st.sampled_from(HOSTS)
few = st.integers(1, 3)


class AnyJob(JobRequester):
    """Takes what it gets, and waits on."""

    def granted(self, job, lease, *, claimed):
        pass

    def claim(self, job, lease):
        return None

    def grant_cancelled(self, job, avoid):
        return True


class Host:
    def __init__(self, name, post):
        self.name = name
        self.devices = FakeDevices()
        for phone in PHONES:
            if phone[0] == name:
                self.devices.add(phone, f"of-{name}", "any")
        events = EventLog()
        writes = LeaseWriteQueue(events)
        self.head = RemoteHead(name, 1, post, post, writes, lambda _: None)
        self.leasing = Leasing(self.devices, events, ord(name), post, head=self.head, writes=writes)
        self.got = Counter()
        self.asked = []

    def ask(self, selector):
        key = f"{self.name}{len(self.asked)}"
        request = LeaseRequest(Selector.parse(selector), "alice", LeaseSource.TVM, match_sha256=key)
        name = self.leasing.ask(request, lambda _: self.got.update([name]))
        self.asked.append(name)


class LabMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.loop = asyncio.new_event_loop()
        self.post = MemoryPost()
        self.term = 0
        self.withdrawn = set()
        self.run(self._begin)

    def run(self, what):
        async def steps():
            what()
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(steps())

    def _begin(self):
        self.hosts = {name: Host(name, self.post) for name in HOSTS}
        self._new_head()

    def _new_head(self):
        """As a takeover does, in one transaction."""
        self.term += 1
        term = self.term
        self.post.to_head.clear()
        for row in self.post.open():
            if row.id not in self.post.armed:
                self.post._change(row.id, (), None, ended_at=datetime.now(UTC), reason="of an earlier head")
        self.requests = RequestQueue(
            LeaseWriteQueue(EventLog()),
            TermTable(self.post, lambda: term == self.term),
            term,
            LeasePolicy(),
            time.monotonic,
            lambda: datetime.now(UTC),
        )
        self.requests.connect(lambda message: self._send(term, message))
        for letter in (*self.post.states.values(),):
            self._receive(letter)
        for row in self.post.open():
            request = LeaseRequest(Selector.parse(row.selector), row.user, row.source, key=row.key)
            lease = Lease(row.id, row.device, row.fence, request, time.monotonic())
            self.requests.receive(LeaseRestored(lease))
        for letter in self.post.requests.values():
            self._receive(letter)

    def _send(self, term, message):
        if term != self.term:
            return  # that head has gone
        match message:
            case LeaseGranted():
                device = message.lease.device
            case LeaseUnwanted(lease) | SlotWanted(lease):
                device = self.post.rows[lease].device
            case _:
                device = message.device
        self.post.to_host.append(Letter(device[0], wire.encode(message, time.monotonic())))

    def _receive(self, letter):
        message = wire.to_head(letter.body, time.monotonic())
        if not isinstance(message, HostBegan):
            self.requests.receive(message)

    # --- what happens ---

    @rule(name=hosts, selector=st.sampled_from(("of-a", "of-b", "any")))
    def ask(self, name, selector):
        self.run(lambda: self.hosts[name].ask(selector))

    @rule(name=hosts)
    def withdraw(self, name):
        host = self.hosts[name]
        waiting = [each for each in host.asked if not host.got[each] and each not in self.withdrawn]
        if waiting:
            self.withdrawn.add(waiting[0])
            self.run(lambda: host.leasing.withdraw(waiting[0]))

    @rule(name=hosts)
    def a_job_asks_at_the_head(self, name):
        request = LeaseRequest(Selector.parse(f"of-{name}"), "bob", LeaseSource.JOB, job="j")
        self.run(lambda: self.requests.ask(request, AnyJob()))

    @rule(phone=st.sampled_from(PHONES), life=st.sampled_from((Life.READY, Life.OFFLINE, Life.GONE)))
    def a_phone_changes(self, phone, life):
        self.run(lambda: self.hosts[phone[0]].devices.become(phone, life))

    @rule(phone=st.sampled_from(PHONES))
    def a_holder_gives_it_back(self, phone):
        leasing = self.hosts[phone[0]].leasing
        if lease := leasing.lease_of(phone):
            self.run(lambda: leasing.release(lease))

    @rule(name=hosts, most=few)
    def the_head_takes(self, name, most):
        self.run(lambda: [self._receive(each) for each in self.post.taken_by_head(name, most)])

    @rule(name=hosts, most=few)
    def a_host_takes(self, name, most):
        self.post.let_through = {name: most}
        self.run(lambda: asyncio.ensure_future(self.hosts[name].head.take()))

    @precondition(lambda self: self.term < 5)
    @rule()
    def another_head_takes_over(self):
        self.run(self._new_head)

    @rule(writable=st.booleans())
    def the_database_is_away_for_hosts(self, writable):
        if writable:
            self.post.gate.set()
        else:
            self.post.gate.clear()
        self.run(lambda: None)

    # --- what holds ---

    @invariant()
    def a_held_device_is_held_under_the_lease_that_its_host_armed(self):
        if not hasattr(self, "hosts"):
            return
        held = self.post.held()
        open_rows = Counter(row.device for row in self.post.open())
        assert all(count == 1 for count in open_rows.values())
        for host in self.hosts.values():
            for device, active in host.leasing.active.by_device.items():
                assert held.get(device) == active.lease.id

    def teardown(self):
        """When everybody continues, each request that was not withdrawn has had one lease, and nothing is left."""
        if not hasattr(self, "hosts"):
            return
        self.post.gate.set()
        self.post.let_through = {}
        self.run(lambda: None)
        for phone in PHONES:
            self.a_phone_changes(phone, Life.READY)
        for _ in range(200):
            for name in HOSTS:
                self.run(lambda name=name: [self._receive(each) for each in self.post.taken_by_head(name, 1000)])
                self.run(lambda name=name: asyncio.ensure_future(self.hosts[name].head.take()))
            if not (self.post.to_head or self.post.to_host or self.post.open() or self.requests.waiting()):
                break
            for phone in PHONES:
                self.a_holder_gives_it_back(phone)
        assert self.post.open() == ()
        assert not self.requests.waiting()
        for host in self.hosts.values():
            expected = {each: 1 for each in host.asked if each not in self.withdrawn}
            assert {each: host.got[each] for each in expected} == expected
        left = asyncio.all_tasks(self.loop)  # of heads that are gone
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left))
        self.loop.close()


LabMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
test_lab = LabMachine.TestCase
