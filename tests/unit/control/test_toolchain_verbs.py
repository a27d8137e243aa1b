"""Toolchains that another host of the lab adds or removes."""

from pathlib import Path

from farm.bundle.library import BundleLibrary
from farm.common.errors import Code
from farm.common.events import EventLog
from farm.control.verbs.bundle import ToolchainVerbs
from farm.jobs.config import ToolchainConfig
from farm.jobs.toolchains import Toolchains
from farm.model.toolchain import Toolchain
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.unit.bundle.elves import ANDROID_BUNDLE, write_folder
from tests.unit.bundle.test_library import golden


class Zygotes:
    """Remembers which interpreters run."""

    def __init__(self):
        self.running = {}
        self.busy = ""

    async def add(self, toolchain):
        self.running[toolchain.name] = toolchain.python

    async def remove(self, name):
        from farm.common.errors import UserError

        if name == self.busy:
            raise UserError("attempts run", Code.TOOLCHAIN_IN_USE)
        self.running.pop(name, None)


class Host:
    def __init__(self, folder, store):
        self.bundles = BundleLibrary(folder)
        configured = {"default": ToolchainConfig()}
        self.toolchains = Toolchains(configured, store.toolchains, EventLog(), self.bundles)
        self.zygotes = Zygotes()
        self.looked = 0
        self.verbs = ToolchainVerbs(self.toolchains, self.zygotes, self.bundles, self.changed)

    async def changed(self):
        self.looked += 1


async def test_a_toolchain_of_another_host_comes_and_goes(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    one, two = Host(tmp_path / "one", store), Host(tmp_path / "two", store)
    python = Path("/opt/tvm/bin/python")
    await one.toolchains.add(Toolchain("next", python, "main", "0.20"))
    await two.verbs.reread()
    await two.verbs.reread()
    assert (two.zygotes.running, two.looked) == ({"next": python}, 1)
    assert two.toolchains.get("next").bundle == "main"

    two.zygotes.busy = "next"
    await one.toolchains.remove("next")
    with raises_code(Code.TOOLCHAIN_IN_USE):
        await two.verbs.reread()
    assert two.toolchains.get("next")
    two.zygotes.busy = ""
    await two.verbs.reread()
    assert (two.zygotes.running, two.looked) == ({}, 2)
    with raises_code(Code.NO_SUCH_TOOLCHAIN):
        two.toolchains.get("next")
    store.close()


async def test_a_bundle_that_only_another_host_has_keeps_no_phone_from_its_own(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    host = Host(tmp_path / "one", store)
    own = host.bundles.add(write_folder(tmp_path / "files", ANDROID_BUNDLE), name="main", compile_golden=golden)
    await host.toolchains.add(Toolchain("next", Path("/opt/tvm/bin/python"), "of-another-host", "0.20"))
    found = host.toolchains.for_abi("arm64-v8a", "android")
    assert found is not None
    assert found.hash == own.hash
    store.close()
