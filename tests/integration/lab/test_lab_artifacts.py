"""Artifacts between hosts over their links: pulled, kept twice, had from whoever is there."""

import asyncio
import hashlib
import os
from datetime import UTC, datetime

import pytest

from farm.common.errors import Code
from farm.control import second_copies
from farm.control.artifact_rules import ArtifactRules
from farm.control.artifacts import ArtifactFolder
from farm.control.object_store import ObjectStore
from farm.control.second_copies import SecondCopies
from farm.lab import link, tls
from farm.lab.artifacts import HostArtifacts, in_order
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.support.linked_hosts import linked_hosts
from tests.support.waiting import until

DATA = os.urandom(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class ArtifactLab:
    """Hosts with folders over one database; each says what it has."""

    def __init__(self, links, store, folder):
        self.links, self.store, self.folder = links, store, folder
        self.folders, self.hosts, self.spreads, self.tasks = {}, {}, [], []

    def add(self, name, rules=None, object_store=None):
        folder = self.folders[name] = ArtifactFolder(self.folder / name / "artifacts", rules)
        host = self.hosts[name] = HostArtifacts(self.links.add(name), folder, self.store.artifact_copies, object_store)
        spread = SecondCopies(folder, host.pull, self.store.artifact_copies, name, host.second_copy)
        self.spreads.append(spread)
        self.tasks.append(asyncio.create_task(spread.run()))
        return folder

    def at(self, sha256=SHA256):
        return {each.host for each in self.store.artifact_copies.of(sha256)}

    async def close(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for spread in self.spreads:
            await spread.close()


@pytest.fixture
async def lab(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    async with linked_hosts(tmp_path) as links:
        lab = ArtifactLab(links, store, tmp_path)
        yield lab
        await lab.close()
    store.close()


async def put(folder, data=DATA):
    sha256 = hashlib.sha256(data).hexdigest()
    for offset in range(0, len(data), 1 << 20):
        stored = await folder.put(sha256, offset, data[offset : offset + (1 << 20)], len(data), "ann")
    assert stored.complete
    return sha256


async def test_what_is_put_at_one_host_is_at_two_and_every_host_can_have_it(lab):
    one, *_, four = [lab.add(name) for name in ("one", "two", "three", "four")]
    await put(one)
    await until(lambda: len(lab.at()) == 2)
    assert (await four.ensure(SHA256)).read_bytes() == DATA
    await until(lambda: "four" in lab.at())


async def test_the_only_host_of_a_lab_has_the_only_copy(lab):
    one = lab.add("one")
    await put(one)
    await until(lambda: lab.at() == {"one"})
    assert await lab.hosts["one"].second_copy(SHA256) is False


async def test_what_is_deleted_has_no_row(lab):
    one = lab.add("one")
    await put(one)
    await until(lambda: lab.at() == {"one"})
    old_s = datetime.now(UTC).timestamp() + 40 * 24 * 3600
    assert await asyncio.to_thread(one.drop_unneeded, old_s) == 1
    await until(lambda: not lab.at())
    assert not one.has(SHA256)


async def test_a_start_makes_rows_and_files_agree(lab, tmp_path):
    await lab.store.artifact_copies.change("one", {"ab" * 32: 4})
    ArtifactFolder(tmp_path / "one" / "artifacts").add(DATA)
    lab.add("one")
    await until(lambda: [each.sha256 for each in lab.store.artifact_copies.of_host("one")] == [SHA256])


async def test_what_comes_after_the_close_has_its_row_after_the_next_start(lab):
    one = lab.add("one")
    await lab.spreads[0].close()
    await put(one)
    assert lab.at() == set()
    await lab.links.links["one"].stop()
    lab.add("one")
    await until(lambda: lab.at() == {"one"})


async def test_a_host_that_comes_later_gets_its_copy_later(lab, monkeypatch):
    monkeypatch.setattr(second_copies, "COPY_EVERY_S", 0.05)
    await put(lab.add("one"))
    await until(lambda: lab.at() == {"one"})
    lab.add("two")
    await until(lambda: lab.at() == {"one", "two"})


async def test_an_artifact_is_had_from_the_host_that_is_left(lab):
    one, two, three = [lab.add(name) for name in ("one", "two", "three")]
    await put(one)
    await until(lambda: len(lab.at()) == 2)
    (other,) = lab.at() - {"one"}
    (lacking,) = {"two", "three"} - {other}
    await lab.links.links.pop("one").stop()
    assert (await {"two": two, "three": three}[lacking].ensure(SHA256)).read_bytes() == DATA


async def test_nobody_is_left_who_has_it(lab):
    one, two = lab.add("one"), lab.add("two", ArtifactRules(budget_bytes=10))
    await put(one)
    await until(lambda: lab.at() == {"one"})
    with raises_code(Code.ARTIFACT_AWAY, match="one copy: two: no room"):
        await lab.hosts["one"].second_copy(SHA256)
    await lab.links.links.pop("one").stop()
    with raises_code(Code.ARTIFACT_AWAY, match="host one: host one cannot be reached"):
        await two.ensure(SHA256)


async def test_a_host_that_does_not_read_an_artifact_is_cut_off(lab, monkeypatch):
    monkeypatch.setattr(link, "STALLED_S", 0.05)
    monkeypatch.setattr(tls, "LAST_BYTES_S", 0.05)
    one = lab.add("one")
    lab.add("two")
    sha256 = await put(one, os.urandom(30_000_000))
    connection = await lab.links.links["two"].dial("one", "artifact", {"sha256": sha256, "offset": 0})
    await until(lambda: not lab.links.links["one"]._open)
    await connection.close()


@pytest.mark.parametrize("fields", [{}, {"total_bytes": "many"}, {"total_bytes": 1 << 60}, {"total_bytes": -1}])
async def test_a_source_that_misbehaves_is_passed_over(lab, fields):
    async def other(call):
        await call.accept(**fields)

    for name in ("one", "two", "three"):
        lab.add(name)
    await put(lab.folders["one"])
    await until(lambda: len(lab.at()) == 2)
    (good,) = lab.at() - {"one"}
    lab.links.links["one"]._services["artifact"] = other
    (lacking,) = {"two", "three"} - {good}
    assert (await lab.folders[lacking].ensure(SHA256)).read_bytes() == DATA


async def test_what_is_no_artifact_of_that_host_is_refused(lab):
    lab.add("one")
    lab.add("two")
    with raises_code(Code.NO_SUCH_ARTIFACT):
        await lab.links.links["one"].dial("two", "artifact", {"sha256": SHA256, "offset": 0})
    for fields in ({}, {"sha256": "../../etc/passwd", "offset": 0}):
        with raises_code(Code.BAD_ARTIFACT):
            await lab.links.links["one"].dial("two", "artifact", fields)
    sha256 = await put(lab.folders["two"])
    for offset in (-1, len(DATA) + 1, "x", None):
        with raises_code(Code.BAD_ARTIFACT):
            await lab.links.links["one"].dial("two", "artifact", {"sha256": sha256, "offset": offset})


async def test_an_object_store_is_the_second_place(lab, tmp_path):
    (tmp_path / "objects").mkdir()
    one, two = [lab.add(name, object_store=ObjectStore(f"file://{tmp_path}/objects")) for name in ("one", "two")]
    await put(one)
    await until(lambda: (tmp_path / "objects" / SHA256).exists())
    await lab.links.links.pop("one").stop()
    assert (await two.ensure(SHA256)).read_bytes() == DATA


def test_copies_are_spread_over_the_hosts():
    hosts = ["one", "two", "three"]
    first = [in_order(f"{number:064x}", hosts)[0] for number in range(300)]
    assert all(60 < first.count(host) < 140 for host in hosts)
    assert in_order(SHA256, hosts) == in_order(SHA256, hosts[::-1])
