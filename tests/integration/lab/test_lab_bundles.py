"""Bundles that are added at one host and wanted at all."""

import asyncio
import io
import tarfile

import pytest

from farm.bundle.library import BundleLibrary
from farm.common.errors import Code, HostError
from farm.common.tasks import end_tasks
from farm.control.artifacts import ArtifactFolder
from farm.lab import following
from farm.lab.bundles import HostBundles
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.waiting import until
from tests.unit.bundle.elves import ANDROID_BUNDLE, LINUX_BUNDLE, write_folder
from tests.unit.bundle.test_library import golden

ANDROID, LINUX = ("arm64-v8a", "android"), ("x86_64", "linux-glibc")


def tree(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class BundleHost:
    """A host's library and artifacts; what it lacks it takes from the other's folder."""

    def __init__(self, folder, store, name, *groups):
        self.library = BundleLibrary(folder / name / "bundles")
        self.artifacts = ArtifactFolder(folder / name / "artifacts")
        self.groups, self.came, self.other = set(groups), [], None
        self.away = set()  # artifacts that no host gives
        self.artifacts.pull = self.pull
        self.shared = HostBundles(
            name, self.library, self.artifacts, store.shared_bundles, lambda: self.groups, self.changed,
            folder / name / "offered",
        )  # fmt: skip

    async def pull(self, sha256):
        if self.other is None or sha256 in self.away:
            raise HostError("the other host is away", Code.ARTIFACT_AWAY)
        self.artifacts.add(self.other.artifacts.path(sha256).read_bytes())

    async def changed(self, bundle):
        self.came.append(bundle)

    async def add(self, files, name, folder):
        bundle = self.library.add(write_folder(folder / name, files), name=name, compile_golden=golden)
        await self.shared.share(bundle)
        return bundle

    def names(self):
        return {name for bundle in self.library.list() for name in bundle.names}


@pytest.fixture
async def hosts(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.01)
    store = Store.open(tmp_path / "farm.db")
    one, two = BundleHost(tmp_path, store, "one", ANDROID), BundleHost(tmp_path, store, "two", ANDROID)
    two.other, one.other = one, two
    tasks = [asyncio.create_task(following.follow_other_hosts({"bundles": each.shared.look})) for each in (one, two)]
    yield one, two
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    store.close()


async def test_a_bundle_is_added_once_for_all_hosts(hosts, tmp_path):
    one, two = hosts
    added = await one.add(ANDROID_BUNDLE, "main", tmp_path)
    await until(lambda: two.came)
    assert (two.came, one.came) == ([added.hash], [])
    got = two.library.get("main")
    assert (got.hash, got.names, got.files) == (added.hash, ("main",), added.files)
    assert got.golden_kinds == added.golden_kinds
    assert two.library.verify() == ()
    assert tree(got.path.parent) == tree(added.path.parent)
    assert [(got.path / file.name).stat().st_mode & 0o777 for file in got.files] == [file.mode for file in got.files]


async def test_a_hosts_bundles_from_before_the_lab_are_offered_once(tmp_path):
    """Else phones of the hosts that join are quarantined, as those have no bundle."""
    store = Store.open(tmp_path / "farm.db")
    one, two = BundleHost(tmp_path, store, "one", ANDROID), BundleHost(tmp_path, store, "two", ANDROID)
    two.other = one
    own = one.library.add(write_folder(tmp_path / "main", ANDROID_BUNDLE), name="main", compile_golden=golden)
    one.library.add(tmp_path / "main", name="second", compile_golden=golden)
    for each in (one, two):
        await each.shared.look()
    assert (two.names(), two.library.get("main").hash) == ({"main", "second"}, own.hash)
    await one.shared.withdraw(["second"])
    await BundleHost(tmp_path, store, "one", ANDROID).shared.look()  # after a restart
    assert [each.name for each in store.shared_bundles.all()] == ["main"]
    store.close()


async def test_a_host_gets_the_bundles_of_the_phones_that_it_has(hosts, tmp_path):
    one, two = hosts
    await one.add(LINUX_BUNDLE, "virtual", tmp_path)
    await one.add(ANDROID_BUNDLE, "main", tmp_path)
    await until(two.names)
    assert two.names() == {"main"}
    two.groups.add(LINUX)
    await until(lambda: two.names() == {"main", "virtual"})


async def test_a_name_moves_everywhere(hosts, tmp_path):
    one, two = hosts
    await one.add(ANDROID_BUNDLE, "main", tmp_path)
    await until(two.names)
    (tmp_path / "main" / "libtvm_ffi.so").write_bytes((tmp_path / "main" / "libtvm_ffi.so").read_bytes() + b"new")
    newer = one.library.add(tmp_path / "main", name="main", compile_golden=golden)
    await one.shared.share(newer)
    await until(lambda: two.library.get("main").hash == newer.hash)


async def test_what_was_removed_does_not_come_back(hosts, tmp_path):
    one, two = hosts
    await one.add(ANDROID_BUNDLE, "main", tmp_path)
    await until(two.names)
    names, _ = two.library.remove("main")
    await two.shared.withdraw(names)
    await one.add(LINUX_BUNDLE, "virtual", tmp_path)
    two.groups.add(LINUX)
    await until(lambda: two.names() == {"virtual"})
    assert one.names() == {"main", "virtual"}


async def test_what_is_removed_while_a_host_looks_does_not_come_back(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    one, two = BundleHost(tmp_path, store, "one", ANDROID), BundleHost(tmp_path, store, "two", ANDROID)
    two.other = one
    for name in ("first", "second"):
        await one.add(ANDROID_BUNDLE, name, tmp_path)

    async def removed_meanwhile(sha256):
        await one.shared.withdraw(["second"])
        await two.pull(sha256)

    two.artifacts.pull = removed_meanwhile
    await two.shared.look()
    assert two.names() == {"first"}
    store.close()


async def test_a_bundle_that_no_host_gives_holds_up_no_other(hosts, tmp_path):
    one, two = hosts
    two.groups.clear()
    await one.add(ANDROID_BUNDLE, "first", tmp_path)
    await one.add(LINUX_BUNDLE, "second", tmp_path)
    two.away = {next(each.artifact for each in one.shared._table.all() if each.name == "first")}
    two.groups |= {ANDROID, LINUX}
    await until(lambda: two.names() == {"second"})
    two.away.clear()
    await until(lambda: two.names() == {"first", "second"})


async def test_a_look_with_a_bug_holds_up_no_other(monkeypatch, caplog):
    monkeypatch.setattr(following, "LOOK_EVERY_S", 0.01)
    looks = []

    async def broken():
        raise OSError("read-only")

    async def whole():
        looks.append(1)

    task = asyncio.create_task(following.follow_other_hosts({"bundles": broken, "keys": whole}))
    await until(lambda: len(looks) > 2)
    await end_tasks(task)
    assert caplog.text.count("bundles of other hosts are not up to date") == 1


async def test_a_bundle_comes_when_its_host_is_back(hosts, tmp_path, caplog):
    one, two = hosts
    two.other = None
    await one.add(ANDROID_BUNDLE, "main", tmp_path)
    await until(lambda: "the other host is away" in caplog.text)
    two.other = one
    await until(two.names)
    assert caplog.text.count("the other host is away") == 1


def packed(*members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content, kind in members:
            about = tarfile.TarInfo(name)
            about.size, about.type = len(content), kind
            about.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            archive.addfile(about, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"nothing",
        packed(("manifest.json", b"{}", tarfile.REGTYPE)),
        packed(("../evil", b"x", tarfile.REGTYPE)),
        packed(("files/../../evil", b"x", tarfile.REGTYPE)),
        packed(("files/..", b"x", tarfile.REGTYPE)),
        packed(("files/link", b"", tarfile.SYMTYPE)),
        packed(("files/a", b"x", tarfile.REGTYPE), ("files/a", b"y", tarfile.REGTYPE)),
    ],
)
def test_what_is_no_packed_bundle_leaves_the_library_as_it_was(tmp_path, data):
    library = BundleLibrary(tmp_path / "bundles")
    (tmp_path / "packed").write_bytes(data)
    with raises_code(Code.BAD_BUNDLE):
        library.take_in(tmp_path / "packed", "ab" * 32, "main")
    assert (library.list(), [*(tmp_path / "bundles" / "tmp").iterdir()]) == ((), [])
    assert not (tmp_path / "evil").exists()


def test_a_packed_bundle_is_only_taken_for_what_it_is(tmp_path):
    here, there = BundleLibrary(tmp_path / "here"), BundleLibrary(tmp_path / "there")
    bundle = here.add(write_folder(tmp_path / "android", ANDROID_BUNDLE), name="main", compile_golden=golden)
    with (tmp_path / "packed").open("wb") as file:
        here.pack(bundle.hash, file)
    with raises_code(Code.BAD_BUNDLE, match="this is not bundle"):
        there.take_in(tmp_path / "packed", "ab" * 32, "main")
    data = bytearray((tmp_path / "packed").read_bytes())
    at = data.index((bundle.path / "libtvm_ffi.so").read_bytes()) + 100
    data[at] ^= 1
    (tmp_path / "packed").write_bytes(data)
    with raises_code(Code.BAD_BUNDLE, match=r"files/libtvm_ffi\.so: has other content"):
        there.take_in(tmp_path / "packed", bundle.hash, "main")
