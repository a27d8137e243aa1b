"""What a change of its phone makes of a lease, over every life."""

import pytest

from farm.head.allocator.state import RETURNING
from farm.leasing.active_leases import LeaseCondition, lease_condition
from farm.model.device import Life


@pytest.mark.parametrize("life", Life)
@pytest.mark.parametrize("ends_with_session", [False, True])
def test_a_restored_lease_waits_for_its_phone_whatever_adb_finds_first(life, ends_with_session):
    expected = {Life.READY: LeaseCondition.USABLE, Life.QUARANTINED: LeaseCondition.LOST}.get(
        life, LeaseCondition.AWAITING_DEVICE
    )
    assert lease_condition(life, awaiting_device=True, ends_with_session=ends_with_session) is expected


@pytest.mark.parametrize("life", Life)
def test_a_stock_clients_lease_lasts_as_long_as_its_phone_is_ready(life):
    expected = LeaseCondition.USABLE if life is Life.READY else LeaseCondition.LOST
    assert lease_condition(life, awaiting_device=False, ends_with_session=True) is expected


@pytest.mark.parametrize("life", Life)
def test_a_jobs_lease_outlasts_mending(life):
    expected = (
        LeaseCondition.USABLE
        if life is Life.READY
        else LeaseCondition.RECOVERING
        if life in RETURNING
        else LeaseCondition.LOST
    )
    assert lease_condition(life, awaiting_device=False, ends_with_session=False) is expected
