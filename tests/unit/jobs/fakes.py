"""A farm without phones for the dispatcher's tests: leasing that grants what is free, a fleet of views, an executor."""

import asyncio
from datetime import UTC, datetime

from farm.head.waiting_requests import JobRequester
from farm.jobs.executor import Executor
from farm.model.device import DeviceView, Life
from farm.model.requests import Lease
from farm.store.leases import LeaseRecord


def phone(name, life=Life.READY, **facts):
    labels = {"name": name, "gpu": "adreno-740"}
    return DeviceView(name, f"serial-{name}", life, adopted=True, labels=labels, aliases=("android", name), **facts)


class FakeDevices:
    """The fleet as jobs see it."""

    def __init__(self, *names):
        self._views = {name: phone(name) for name in names}
        self._callbacks = []

    def views(self):
        return tuple(self._views.values())

    def subscribe(self, callback):
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def change(self, view, *, forget=False):
        if forget:
            del self._views[view.name]
        else:
            self._views[view.name] = view
        for callback in tuple(self._callbacks):
            callback(view)


class FakeLeases:
    """First come, first served; a grant is committed before it is told, like the real one's."""

    def __init__(self, store, devices, fence=0):
        self.store = store
        self.devices = devices
        self.fence = fence
        self.waiting = {}
        self.held = {}
        self.taken = {}
        self.restored = []
        self.released = []
        self.slots = []  # worker slots kept beyond their leases
        self.standing = {}  # hosts on which no worker continues, and why
        self.yielding = set()  # leases asked to give their phones back
        self._granting = set()

    def views(self):
        return self.devices.views()

    def host_of(self, device):
        return next((each.host for each in self.views() if each.name == device), "")

    def subscribe(self, callback):
        return self.devices.subscribe(callback)

    def ask(self, request, granted, place_s=None):
        """`granted`: a job's requester at the head, or what a pool's host calls."""
        self.fence += 1
        request_id = f"request-{self.fence}"
        again = [other for other, _ in self.waiting.values() if other.job == request.job]
        assert not again or request.only is not None, "nothing asks twice, but a pool"
        self.waiting[request_id] = (request, granted)
        asyncio.get_running_loop().call_soon(self.look)
        return request_id

    ask_anywhere = ask  # there is no other host

    def withdraw(self, request_id):
        self.waiting.pop(request_id)

    def look(self):
        for request_id, (request, _) in tuple(self.waiting.items()):
            free = (view.name for view in self.devices.views() if view.leasable and view.name not in self.held)
            only = {view.name for view in self.devices.views()} if request.only is None else request.only
            suits = (name for name in free if request.device in ("", name) and name in only)
            fits = (name for name in suits if name not in request.avoid)
            device = next(fits, None)
            if device is not None and request_id not in self._granting:
                self.fence += 1
                lease = Lease(f"lease-{self.fence}", device, self.fence, request, granted_at=0.0)
                self.held[device] = lease
                self._granting.add(request_id)
                self.task = asyncio.ensure_future(self._grant(request_id, lease))

    async def _grant(self, request_id, lease):
        request = lease.request
        await self.store.leases.grant(
            LeaseRecord(
                lease.id, lease.device, request.user, request.source, request.job, request.lease_class,
                str(request.selector), "", lease.fence, datetime.now(UTC),
            )
        )  # fmt: skip
        self._granting.discard(request_id)
        if (waiter := self.waiting.pop(request_id, None)) is None:
            self.release(lease.id, "nobody waits")
            return
        self.taken[lease.id] = asyncio.get_running_loop().create_future()
        match waiter[1]:
            case JobRequester() as requester:
                requester.granted(request.job, lease, claimed=False)
            case granted:
                granted(lease)

    def restore(self, lease):
        self.restored.append(lease)
        self.held[lease.device] = lease
        self.taken[lease.id] = asyncio.get_running_loop().create_future()

    def release(self, lease_id, reason=""):
        self.released.append(lease_id)
        device = next(name for name, lease in self.held.items() if lease.id == lease_id)
        self.task = asyncio.ensure_future(self._end(lease_id, device, reason))

    async def _end(self, lease_id, device, reason):
        await self.store.leases.end(lease_id, ended_at=datetime.now(UTC), reason=reason, held_s=0.0)
        del self.held[device]
        self.look()

    def when_revoked(self, lease_id):
        return self.taken[lease_id]

    def take(self, device, error):
        """As the real one does: who held it is told, and it is over."""
        lease = self.held[device]
        self.taken[lease.id].set_result(error)
        if lease.request.only is not None or lease.id in self.slots:  # nobody gives it back
            self.release(lease.id, "taken")

    def keep_slot(self, lease_id):
        assert lease_id not in self.slots
        self.slots.append(lease_id)

    def free_slot(self, lease_id):
        if lease_id in self.slots:
            self.slots.remove(lease_id)

    def slot_wanted(self, lease_id):
        return lease_id in self.yielding

    def yield_wanted(self, lease_id):
        return lease_id in self.yielding

    def workers_stand(self, host, why):
        self.standing[host] = why

    def workers_go_on(self, host):
        self.standing.pop(host, None)

    def why(self, request_ids):
        return {each: "every phone is busy" if each in self.waiting else "" for each in request_ids}


class FakeExecutor(Executor):
    """Runs an attempt when the test says how it ends. `started` wakes the test."""

    def __init__(self):
        self.running = {}
        self.started = asyncio.Queue()
        self.cancelled = []
        self.resumed = []

    async def run(self, running):
        outcome = asyncio.get_running_loop().create_future()
        self.running[running.job.id] = (running, outcome)
        self.started.put_nowait(running)
        try:
            return await outcome
        except asyncio.CancelledError:
            self.cancelled.append(running.attempt.id)
            raise
        finally:
            del self.running[running.job.id]

    async def resume(self, running):
        self.resumed.append(running.attempt.id)
        return await self.run(running)

    def end(self, job_id, result):
        _, outcome = self.running[job_id]
        if isinstance(result, Exception):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)
