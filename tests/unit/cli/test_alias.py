"""`farm alias set` tells what it made of the words: another key, or one that no phone has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farm.cli import access
from farm.control.verbs.fleet import FleetVerbs
from farm.model.device import DeviceView, Life


class Aliases:
    """One phone, whose keys are as set."""

    def __init__(self, view: DeviceView) -> None:
        self.view = view

    async def set(self, name: str, selector: str) -> str:
        return name.replace(" ", "-")


async def test_that_no_phone_has_a_key_is_told_with_what_there_is() -> None:
    view = DeviceView("pixel", "S1", Life.READY, labels={"soc": "sm8650"}, aliases=("pixel", "mine"))
    fleet: Any = SimpleNamespace(views=lambda: (view,))
    aliases: Any = Aliases(view)
    verbs = FleetVerbs(fleet, SimpleNamespace(), aliases, SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    for name, selector, devices, why in (
        ("mine", "soc=sm8650", ["pixel"], ""),
        ("big", "soc=sm9999", [], "no phone matches soc=sm9999: there is sm8650"),
    ):
        assert await verbs.set_alias(name, selector) == {"alias": name, "devices": devices, "no_match": why}


@pytest.mark.parametrize(
    ("typed", "answer", "warned"),
    [
        ("Fast", {"alias": "fast", "devices": ["pixel"], "no_match": ""}, ""),
        ("a b", {"alias": "a-b", "devices": ["pixel"], "no_match": ""}, "warning: the key is a-b"),
        ("big", {"alias": "big", "devices": [], "no_match": "no phone matches soc=x"}, "warning: no phone matches"),
    ],
)
def test_another_key_and_one_of_no_phone_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, answer: dict[str, Any], warned: str
) -> None:
    monkeypatch.setattr(access, "call", lambda _kind, **_: answer)
    access.set_alias(typed, "soc=x")
    said = capsys.readouterr().err
    assert warned in said
    assert bool(said) is bool(warned)
