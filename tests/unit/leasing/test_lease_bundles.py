"""A lease whose holder had another bundle on the phone: the next holder gets the phone with its own."""

import asyncio

import pytest

from farm.model.device import Life
from farm.model.requests import NoSuchLeaseError
from farm.model.sessions import MatchKeyBusyError, SessionEnd, SessionOutcome
from tests.support.leasing_lab import Lab, settle
from tests.support.tvm import OWN_BUNDLE
from tests.support.virtual_time import virtual_time


@pytest.mark.parametrize("how", ["released", "kicked", "lost"])
async def test_the_phone_leaves_ready_before_anybody_else_gets_it(how):
    lab = Lab("a")
    lab.devices.recover = False
    lease = await lab.lease()
    assert await lab.leasing.allow_bundle_override(lease.id) == "a"
    lab.devices.become("a", Life.PROVISIONING)
    lab.devices.become("a", Life.READY)
    lab.ask()
    if how == "released":
        lab.leasing.release(lease.id)
    elif how == "kicked":
        await lab.leasing.revoke("a", "needed elsewhere")
    else:
        lab.devices.become("a", Life.GONE)
    await settle()
    assert (lab.devices.broken, lab.got) == ([("a", OWN_BUNDLE)], [])
    lab.devices.become("a", Life.READY)
    await settle()
    assert [each.device for each in lab.got] == ["a"]


async def test_a_lease_that_lent_nothing_changes_nothing():
    lab = Lab("a")
    lease = await lab.lease()
    lab.leasing.release(lease.id)
    await settle()
    assert lab.devices.broken == []
    with pytest.raises(NoSuchLeaseError):
        await lab.leasing.allow_bundle_override(lease.id)


@virtual_time
async def test_a_bundle_is_lent_when_the_session_before_has_ended():
    lab = Lab("a")
    lease = await lab.lease()
    leg = await lab.open(lab.leasing.new_match_key(lease.id, single_use=True))
    leg.opened()
    with pytest.raises(MatchKeyBusyError):
        await lab.leasing.allow_bundle_override(lease.id)
    allowed = asyncio.create_task(lab.leasing.allow_bundle_override(lease.id))
    await settle()
    assert not allowed.done()
    leg.ended(SessionEnd(SessionOutcome.CLOSED))
    assert await allowed == "a"
