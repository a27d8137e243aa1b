import asyncio

import pytest

from farm.common.errors import Code, HostError, UserError
from farm.devices.registry import Aliases
from farm.model.device import DeviceView, Life
from tests.support.errors import raises_code


class Fleet:
    """Remembers what it was told."""

    def __init__(self):
        self.told = {}

    def views(self):
        return (DeviceView("pixel", "S1", Life.READY, aliases=("android", "pixel", *self.told)),)

    def set_aliases(self, aliases):
        self.told = {name: str(selector) for name, selector in aliases.items()}


class Table:
    def __init__(self, kept=(), fails=False):
        self.kept = dict(kept)
        self.fails = fails

    def all(self):
        return dict(self.kept)

    async def in_thread(self, read):
        return read()

    async def save(self, name, selector):
        if self.fails:
            raise HostError("the disk is full")
        self.kept[name] = selector

    async def forget(self, name):
        return self.kept.pop(name, None) is not None


async def test_a_kept_key_beats_a_configured_one():
    fleet = Fleet()
    aliases = Aliases(fleet, Table({"board": "soc=b"}), {"board": "soc=a", "Big One": "soc=c"})
    assert fleet.told == {"board": "soc=b", "big-one": "soc=c"}
    await aliases.remove("board")
    assert fleet.told == {"board": "soc=a", "big-one": "soc=c"}


async def test_a_key_is_kept_and_told():
    fleet, table = Fleet(), Table()
    assert await Aliases(fleet, table, {}).set("My Board", "soc=SM8650") == "my-board"
    assert fleet.told == table.kept == {"my-board": "soc=sm8650"}


@pytest.mark.parametrize("name", ["android", "Pixel", "!!!", "a,b", "büro", "x" * 97])
async def test_a_key_that_phones_have_by_themselves_or_that_cannot_be_one_is_refused(name):
    fleet, table = Fleet(), Table()
    with pytest.raises(UserError):
        await Aliases(fleet, table, {}).set(name, "soc=sm8650")
    assert fleet.told == table.kept == {}


async def test_a_wrong_selector_is_refused():
    with raises_code(Code.BAD_SELECTOR):
        await Aliases(Fleet(), Table(), {}).set("board", "soc==")


async def test_what_cannot_be_kept_is_taken_back():
    fleet = Fleet()
    with pytest.raises(HostError):
        await Aliases(fleet, Table(fails=True), {"board": "soc=a"}).set("board", "soc=b")
    assert fleet.told == {"board": "soc=a"}


async def test_only_what_was_set_by_hand_can_be_removed():
    with pytest.raises(UserError, match="was not set"):
        await Aliases(Fleet(), Table(), {"board": "soc=a"}).remove("board")


async def test_keys_of_other_hosts_are_taken_up_and_none_is_taken_back():
    fleet, table = Fleet(), Table({"old": "soc=a"})
    aliases = Aliases(fleet, table, {})
    del table.kept["old"]
    table.kept["board"] = "soc=b"  # another host did that
    await aliases.reread()
    assert fleet.told == {"board": "soc=b"}
    written, save = asyncio.Event(), table.save

    async def slow(name, selector):
        await written.wait()
        await save(name, selector)

    table.save = slow
    setting = asyncio.create_task(aliases.set("mine", "soc=c"))
    reading = asyncio.create_task(aliases.reread())
    await asyncio.sleep(0)
    written.set()
    await asyncio.gather(setting, reading)
    assert fleet.told == {"board": "soc=b", "mine": "soc=c"}
