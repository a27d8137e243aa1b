"""`farm alias set`: a key that no phone has is told with what there is."""

from types import SimpleNamespace

import pytest

from farm.control.verbs.fleet import FleetVerbs
from farm.model.device import DeviceView, Life


@pytest.mark.parametrize(
    ("name", "selector", "devices", "why"),
    [
        ("mine", "soc=sm8650", ["pixel"], ""),
        ("big", "soc=sm9999", [], "no phone matches soc=sm9999: there is sm8650"),
    ],
)
async def test_that_no_phone_has_a_key_is_told_with_what_there_is(name, selector, devices, why):
    async def set_alias(name, selector):
        return name

    view = DeviceView("pixel", "S1", Life.READY, labels={"soc": "sm8650"}, aliases=("pixel", "mine"))
    fleet, aliases, none = SimpleNamespace(views=lambda: (view,)), SimpleNamespace(set=set_alias, view=view), None
    verbs = FleetVerbs(fleet, none, aliases, none, none)
    assert await verbs.set_alias(name, selector) == {"alias": name, "devices": devices, "no_match": why}
