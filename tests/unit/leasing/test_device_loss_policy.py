"""What a change of its phone makes of a lease, over every life."""

import pytest

from farm.head.allocator.state import RETURNING
from farm.leasing.active_leases import LeaseCondition, lease_condition
from farm.model.device import Life


@pytest.mark.parametrize("life", Life)
def test_what_becomes_of_a_lease(life):
    """A restored one waits for its phone, a stock client's needs a ready phone, a job's outlasts mending."""
    restored = {Life.READY: LeaseCondition.USABLE, Life.QUARANTINED: LeaseCondition.LOST}
    for ends_with_session in (False, True):
        found = lease_condition(life, awaiting_device=True, ends_with_session=ends_with_session)
        assert found is restored.get(life, LeaseCondition.AWAITING_DEVICE)
    lost = LeaseCondition.USABLE if life is Life.READY else LeaseCondition.LOST
    assert lease_condition(life, awaiting_device=False, ends_with_session=True) is lost
    mended = LeaseCondition.RECOVERING if life in RETURNING and life is not Life.READY else lost
    assert lease_condition(life, awaiting_device=False, ends_with_session=False) is mended
