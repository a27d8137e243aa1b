"""The database says what a host's folder has; what came gets a second copy."""

import asyncio
import contextlib
import hashlib
import os
from datetime import UTC, datetime, timedelta

import pytest

from farm.common.errors import Code, HostError
from farm.control import second_copies
from farm.control.artifact_pull import ArtifactPull, ArtifactStream
from farm.control.artifacts import ArtifactFolder
from farm.control.second_copies import SecondCopies
from farm.store.store import Store
from tests.support.waiting import until


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "farm.db")
    yield opened
    opened.close()


class Host:
    """One host's folder, whose second copies go to the others' folders."""

    def __init__(self, store, name, path, others=()):
        self.store, self.name, self.others = store, name, list(others)
        self.folder = ArtifactFolder(path / name)
        self.folder.pull = ArtifactPull(self.folder, self.sources)
        self.spread = SecondCopies(self.folder, self.folder.pull, store.artifact_copies, name, self.second_copy)
        self.away = False
        self.asked = []

    async def sources(self, sha256):
        have = {each.host for each in self.store.artifact_copies.of(sha256)}
        return [each for each in self.others if each.name in have]

    @contextlib.asynccontextmanager
    async def read(self, sha256, offset):
        data = self.folder.path(sha256).read_bytes()

        async def chunks():
            yield data[offset:]

        yield ArtifactStream(len(data), chunks())

    async def second_copy(self, sha256):
        self.asked.append(sha256)
        for other in self.others:
            if not other.away:
                await until(lambda: self.store.artifact_copies.of(sha256))
                await other.folder.ensure(sha256)
                return True
        raise HostError("no other host takes it", Code.ARTIFACT_AWAY)

    def rows(self):
        return {each.sha256: each.size_bytes for each in self.store.artifact_copies.of_host(self.name)}


@contextlib.asynccontextmanager
async def running(*hosts):
    tasks = [asyncio.create_task(each.spread.run()) for each in hosts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in hosts:
            await each.spread.close()


async def put(host, data):
    sha256 = hashlib.sha256(data).hexdigest()
    assert (await host.folder.put(sha256, 0, data, len(data), "ann")).complete
    return sha256


@pytest.fixture
def two(store, tmp_path):
    async def make():
        one, other = Host(store, "one", tmp_path), Host(store, "two", tmp_path)
        one.others, other.others = [other], [one]
        return one, other

    return make


async def test_what_is_put_here_is_soon_at_another_host_too(two):
    one, other = await two()
    async with running(one, other):
        sha256 = await put(one, b"model")
        await until(lambda: sha256 in other.rows())
        assert one.rows() == other.rows() == {sha256: 5}
        assert (one.asked, other.asked) == ([sha256], [])


async def test_what_is_deleted_has_no_row(two):
    one, other = await two()
    other.away = True
    async with running(one):
        sha256 = await put(one, b"model")
        await until(one.rows)
        old_s = datetime.now(UTC).timestamp() + 40 * 24 * 3600
        assert await asyncio.to_thread(one.folder.drop_unneeded, old_s) == 1
        await until(lambda: not one.rows())
        assert not one.folder.has(sha256)


async def test_a_start_makes_rows_and_files_agree(two, store, tmp_path):
    gone, kept = "ab" * 32, os.urandom(7)
    await store.artifact_copies.change("one", {gone: 4})
    sha256 = ArtifactFolder(tmp_path / "one").add(kept)
    one, _ = await two()
    async with running(one):
        await until(lambda: one.rows() == {sha256: 7})


async def test_what_comes_after_the_close_has_its_row_after_the_next_start(two, store, tmp_path):
    one, _ = await two()
    await one.spread.close()
    sha256 = await put(one, b"model")
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert one.rows() == {}
    async with running(again := Host(store, "one", tmp_path)):
        await until(lambda: again.rows() == {sha256: 5})


async def test_a_host_that_was_away_gets_its_copy_later(two, monkeypatch):
    monkeypatch.setattr(second_copies, "COPY_EVERY_S", 0.05)
    one, other = await two()
    other.away = True
    async with running(one, other):
        sha256 = await put(one, b"model")
        await until(lambda: len(one.asked) > 2)
        other.away = False
        await until(lambda: sha256 in other.rows())


async def test_only_what_is_young_and_nowhere_else_is_copied_later(store):
    now = datetime.now(UTC)
    both, mine = "aa" * 32, "bb" * 32
    await store.artifact_copies.change("one", {both: 1, mine: 1})
    await store.artifact_copies.change("two", {both: 1})
    copies = store.artifact_copies
    assert [each.sha256 for each in copies.alone("one", now - timedelta(hours=1))] == [mine]
    assert copies.alone("one", now + timedelta(hours=1)) == ()
