"""`farm.FarmRunner`: which phones it takes, and what it says when there are too few."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from farm.cli.virtual_farm import VirtualFarm
from farm.client.tuning import FarmRunner
from farm.core.errors import NoPhoneError
from tests.support.waiting import until
from tests.support.whole_farm import running_farm


@pytest.fixture(scope="module")
def farm() -> Iterator[VirtualFarm]:
    with running_farm("galaxy-s9", "oneplus-12", "oneplus-12") as running:
        yield running


def taken(runner: FarmRunner, count: int) -> set[str]:
    phones = runner._phones
    asyncio.run(until(lambda: len(phones.state().phones) == count))
    return {each.device for each in phones.state().phones}


def test_what_no_phone_matches_is_refused_at_once(farm: VirtualFarm) -> None:
    with pytest.raises(NoPhoneError, match="no phone matches nothing"):
        FarmRunner(on="nothing", socket=farm.socket)


def test_phones_that_have_their_like_are_taken(farm: VirtualFarm) -> None:
    said: list[str] = []
    with FarmRunner(on="android", devices=2, socket=farm.socket, on_notice=said.append) as runner:
        assert {name.rstrip("-2") for name in taken(runner, 2)} == {"pjd110"}
        assert said == []  # within: a session that is being opened when the runner closes may say so


def test_too_few_that_are_alike_are_told_of(farm: VirtualFarm) -> None:
    said: list[str] = []
    with FarmRunner(on="android", devices=3, socket=farm.socket, on_notice=said.append) as runner:
        taken(runner, 2)
    assert said[0] == "only 2 phones that match android are alike: not 3 at once"
    with FarmRunner(on="soc=sdm845", devices=2, socket=farm.socket, on_notice=said.append) as runner:
        taken(runner, 1)
        asyncio.run(until(lambda: any("is waited for: " in each for each in said)))
    assert "no two phones that match soc=sdm845 are alike: one at once, not 2" in said
