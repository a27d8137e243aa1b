"""Artifacts from other places: cut off, wrong, absent, asked for by several at once."""

import asyncio
import contextlib
import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, HostError
from farm.control.artifact_pull import SENDER, ArtifactPull, ArtifactStream
from farm.control.artifact_rules import ArtifactRules
from farm.control.artifacts import ArtifactFolder, no_such_artifact_error
from tests.support.errors import raises_code

DATA = os.urandom(10_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class Source:
    """A place with some bytes, which breaks off after so many of each reading."""

    def __init__(self, name, data=DATA, *, breaks_after=None, total=None):
        self.name, self.data, self.breaks_after = name, data, breaks_after
        self.total = len(data or b"") if total is None else total
        self.asked = []

    @contextlib.asynccontextmanager
    async def read(self, sha256, offset):
        self.asked.append(offset)
        if self.data is None:
            raise no_such_artifact_error(sha256)
        yield ArtifactStream(self.total, self._chunks(offset))

    async def _chunks(self, offset):
        end = len(self.data) if self.breaks_after is None else offset + self.breaks_after
        for begin in range(offset, min(end, len(self.data)), 700):
            yield self.data[begin : min(begin + 700, end)]
        if end < len(self.data):
            raise HostError(f"{self.name} was cut off", Code.ARTIFACT_AWAY)


def a_folder(path, *sources, rules=None):
    folder = ArtifactFolder(path, rules)

    async def all_of(_sha256):
        return sources

    folder.pull = ArtifactPull(folder, all_of)
    return folder


async def test_what_is_lacking_comes_from_the_first_that_has_it(tmp_path):
    first, second = Source("one", None), Source("two")
    folder = a_folder(tmp_path, first, second)
    assert (await folder.ensure(SHA256)).read_bytes() == DATA
    assert await folder.get(SHA256, 9_999) == (DATA[9_999:], 10_000)
    assert (first.asked, second.asked) == ([0], [0])
    assert folder.used_bytes == len(DATA)


async def test_a_pull_goes_on_where_it_was_cut_off(tmp_path):
    source = Source("one", breaks_after=3_000)
    assert (await a_folder(tmp_path, source).ensure(SHA256)).read_bytes() == DATA
    assert source.asked == [0, 3_000, 6_000, 9_000]


async def test_the_next_source_goes_on_where_the_one_before_stopped(tmp_path):
    class Once(Source):
        @contextlib.asynccontextmanager
        async def read(self, sha256, offset):
            if self.asked:
                raise HostError("one is gone", Code.ARTIFACT_AWAY)
            async with super().read(sha256, offset) as stream:
                yield stream

    first, second = Once("one", breaks_after=4_000), Source("two")
    assert (await a_folder(tmp_path, first, second).ensure(SHA256)).read_bytes() == DATA
    assert second.asked == [4_000]


@pytest.mark.parametrize(("beginning", "asked"), [(DATA, [5_000]), (DATA[::-1], [5_000, 0])])
async def test_a_restarted_daemon_goes_on_and_a_wrong_beginning_is_no_fault_of_the_source(tmp_path, beginning, asked):
    await ArtifactFolder(tmp_path).put(SHA256, 0, beginning[:5_000], len(DATA), SENDER)
    source = Source("one")
    assert (await a_folder(tmp_path, source).ensure(SHA256)).read_bytes() == DATA
    assert source.asked == asked


@pytest.mark.parametrize(
    "wrong", [{"data": DATA[::-1]}, {"total": len(DATA) + 1}, {"total": len(DATA) + 20_000}], ids=["other", "1", "many"]
)
async def test_a_source_of_other_bytes_or_fewer_than_it_promises_is_left_for_the_next(tmp_path, wrong):
    right = Source("two")
    assert (await a_folder(tmp_path, Source("one", **wrong), right).ensure(SHA256)).read_bytes() == DATA
    assert len(right.asked) == 1


async def test_those_who_wait_for_the_same_artifact_share_one_pull(tmp_path):
    source = Source("one")
    folder = a_folder(tmp_path, source)
    paths = await asyncio.gather(*(folder.ensure(SHA256) for _ in range(5)))
    assert {path.read_bytes() for path in paths} == {DATA}
    assert source.asked == [0]


async def test_the_error_names_who_was_asked(tmp_path):
    folder = a_folder(tmp_path, Source("host one", None), Source("host two", DATA[::-1]))
    with raises_code(Code.ARTIFACT_AWAY, match="host one: there is no artifact .*; host two: .* are not artifact"):
        await folder.ensure(SHA256)


async def test_what_nobody_has_was_never_uploaded(tmp_path):
    with raises_code(Code.NO_SUCH_ARTIFACT):
        await a_folder(tmp_path).ensure(SHA256)
    with raises_code(Code.BAD_ARTIFACT):
        await a_folder(tmp_path).ensure("no hash")


async def test_without_room_no_other_source_is_asked(tmp_path):
    first, second = Source("one"), Source("two")
    folder = a_folder(tmp_path, first, second, rules=ArtifactRules(budget_bytes=9_999))
    with raises_code(Code.ARTIFACT_NOT_STORED):
        await folder.ensure(SHA256)
    assert second.asked == []


@given(st.binary(max_size=3_000), st.integers(1, 900), st.integers(0, 3_000))
def test_any_cuts_give_the_same_bytes(tmp_path_factory, data, breaks_after, there):
    sha256 = hashlib.sha256(data).hexdigest()

    async def pulled():
        path = tmp_path_factory.mktemp("artifacts")
        await ArtifactFolder(path).put(sha256, 0, data[:there], len(data), SENDER)
        return (await a_folder(path, Source("one", data, breaks_after=breaks_after)).ensure(sha256)).read_bytes()

    assert asyncio.run(pulled()) == data
