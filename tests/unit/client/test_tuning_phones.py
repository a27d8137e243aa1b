"""A script with phones of the farm: what it is told when too few are identical, or when something fails at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.client.tuning_phones import FarmPhones, too_few, why_unlike
from tests.support.fake_daemon import FakeDaemon


def row(name: str, mark: str, **facts: str) -> dict[str, Any]:
    like = {"soc": "SM8650", "bundle": "b1", "clock_policy": "schedutil", **facts}
    return {"name": name, "labels": {"alike": mark}, "alike": like}


UNKNOWN = {"name": "new", "labels": {}, "alike": None}


def test_it_says_in_what_each_other_phone_differs() -> None:
    rows = [row("a", "1"), row("b", "2", bundle="b2"), UNKNOWN, row("c", "3", soc="SDM845", clock_policy="performance")]
    said = "b differs from a in bundle; c differs from a in soc, clock policy"
    assert why_unlike(rows, "1") == said
    assert too_few("android", 1, 2, said) == (
        f"no two phones that match android are identical: one at once, not 2; {said}"
    )


def test_of_many_some_are_named() -> None:
    rows = [row("a", "1"), *(row(f"b{number}", "2", bundle="b2") for number in range(5))]
    assert why_unlike(rows, "1").endswith("; b2 differs from a in bundle; so do 2 more")


def test_without_another_phone_there_is_nothing_to_say() -> None:
    rows = [row("a", "1"), row("b", "1"), UNKNOWN]
    assert why_unlike(rows, "1") == ""
    assert too_few("android", 2, 3, "") == "only 2 phones that match android are identical: not 3 at once"


@pytest.mark.parametrize("error", [KeyError("labels"), SystemExit(2)])
def test_whatever_fails_before_the_first_lease_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def fails(*_: object) -> str:
        raise error

    monkeypatch.setattr(FarmPhones, "_alike", fails)
    with FakeDaemon(tmp_path) as daemon, pytest.raises(type(error)) as caught:
        FarmPhones("android", 2, daemon.socket)
    assert caught.value is error
