"""What a change of its phone makes of a lease, over every life."""

import pytest

from farm.core.device import Life
from farm.leasing.fate import Fate, fate
from farm.leasing.status import MENDING


@pytest.mark.parametrize("life", Life)
@pytest.mark.parametrize("ends_with_session", [False, True])
def test_a_restored_lease_waits_for_its_phone_whatever_adb_finds_first(life, ends_with_session):
    expected = {Life.READY: Fate.FIT, Life.QUARANTINED: Fate.LOST}.get(life, Fate.AWAITED)
    assert fate(life, awaited=True, ends_with_session=ends_with_session) is expected


@pytest.mark.parametrize("life", Life)
def test_a_stock_clients_lease_lasts_as_long_as_its_phone_is_ready(life):
    expected = Fate.FIT if life is Life.READY else Fate.LOST
    assert fate(life, awaited=False, ends_with_session=True) is expected


@pytest.mark.parametrize("life", Life)
def test_a_jobs_lease_outlasts_mending(life):
    expected = Fate.FIT if life is Life.READY else Fate.MENDS if life in MENDING else Fate.LOST
    assert fate(life, awaited=False, ends_with_session=False) is expected
