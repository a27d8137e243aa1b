"""A host has a phone of another one made quiet, under a lease that it has there."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from farm.common.errors import FarmError, NotAllowedError, PhoneError
from farm.common.selector import Selector
from farm.devices.quiesce_policy import Level, QuiesceResult, QuiesceStep
from farm.lab.quiesce import HostQuiesce
from farm.leasing.active_leases import no_such_lease_error
from farm.model.requests import Lease, LeaseRequest, LeaseSource
from tests.support.errors import raises_code
from tests.support.linked_hosts import linked_hosts

REQUEST = LeaseRequest(Selector.parse("android"), "ann", LeaseSource.JOB, holder_host="one")
QUIET = QuiesceResult(
    Level.FULL, (QuiesceStep("screen", "display=Awake", True), QuiesceStep("gpu", "no permission", False))
)


class Host:
    """A host's leases and phones; it makes them quiet when it is told."""

    def __init__(self, link):
        self.leases = {"lease-1": Lease("lease-1", "pixel", 7, REQUEST, 0.0)}
        self.changed, self.begun, self.failing = [], [], False
        leasing = SimpleNamespace(active=SimpleNamespace(current=self.current), changed_phone=self.changed_phone)
        self.quiesce = HostQuiesce(link, leasing, SimpleNamespace(begin=self.begin))

    def current(self, lease_id):
        if lease_id not in self.leases:
            raise no_such_lease_error(lease_id)
        return SimpleNamespace(lease=self.leases[lease_id])

    def changed_phone(self, lease_id, *, changed):
        self.changed.append((lease_id, changed))

    async def begin(self, name, level, owner, restore_after_s):
        if self.failing:
            raise PhoneError("its settings do not answer")
        self.begun.append((name, level, owner, restore_after_s))
        return QUIET


@pytest.fixture
async def hosts(tmp_path):
    async with linked_hosts(tmp_path) as lab:
        yield [Host(lab.add(name)) for name in ("one", "two")]


async def test_the_phone_is_quiet_and_will_be_cleaned(hosts):
    one, two = hosts
    assert await one.quiesce.begin("two", "lease-1", Level.FULL, 90.0) == QUIET
    assert (two.begun, two.changed) == ([("pixel", Level.FULL, "lease-1", 90.0)], [("lease-1", True)])


async def test_what_the_phone_refuses_is_said_and_it_is_cleaned_all_the_same(hosts):
    one, two = hosts
    two.failing = True
    with pytest.raises(PhoneError, match="its settings do not answer"):
        await one.quiesce.begin("two", "lease-1", Level.GENTLE, 90.0)
    assert two.changed == [("lease-1", True)]


async def test_only_a_current_lease_of_that_host_allows_it(hosts):
    one, two = hosts
    with raises_code("no_such_lease"):
        await one.quiesce.begin("two", "lease-9", Level.FULL, 90.0)
    two.leases["lease-2"] = replace(two.leases["lease-1"], request=replace(REQUEST, holder_host="three"))
    with pytest.raises(NotAllowedError):
        await one.quiesce.begin("two", "lease-2", Level.FULL, 90.0)
    with pytest.raises(FarmError, match="without its lease and level"):
        await one.quiesce.begin("two", "lease-1", "loud", 90.0)
    assert two.begun == []
