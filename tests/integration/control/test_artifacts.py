"""Artifacts: up and down whole, broken off and resumed, wrong, dropped when nobody needs them, bounded."""

import asyncio
import hashlib
import os
import shutil
import time
import tracemalloc
from types import SimpleNamespace

import pytest

from farm.cli.store import backup
from farm.common.errors import Code, UserError
from farm.control.artifact_rules import ArtifactRules
from farm.control.artifacts import ArtifactFolder
from farm.control.client import ControlClient
from farm.control.messages import MAX_FRAME_BYTES
from farm.control.verbs.store import StoreVerbs
from farm.store.devices import DeviceRecord
from farm.store.maintenance import check_database
from farm.store.store import Store
from tests.support.errors import raises_code

DAY_S = 24 * 3600.0
LARGE_BYTES = 200 << 20


@pytest.mark.parametrize("size", [0, 1, MAX_FRAME_BYTES, 2 * MAX_FRAME_BYTES + 17])
async def test_artifacts_come_back_as_they_went(door, size, tmp_path):
    data = os.urandom(size)
    source = tmp_path / "model"
    source.write_bytes(data)
    seen = []

    def both_ways():
        with ControlClient(door.path) as client:
            sha256 = client.put_artifact(source, on_progress=lambda done, total: seen.append((done, total)))
            assert client.put_artifact(data) == sha256
            return sha256, client.get_artifact(sha256)

    sha256, back = await asyncio.to_thread(both_ways)
    assert sha256 == hashlib.sha256(data).hexdigest()
    assert back == data
    assert seen[-1] == (size, size)
    assert door.artifacts.path(sha256).read_bytes() == data


async def test_a_backup_is_the_callers_own_file(door, tmp_path, monkeypatch, capsys):
    store = Store.open(tmp_path / "farm.db")
    await store.devices.save(DeviceRecord("S1", "n" * MAX_FRAME_BYTES))
    StoreVerbs(store, tmp_path / "farm.db", SimpleNamespace()).register(door.server)
    monkeypatch.setenv("FARM_SOCKET", str(door.path))
    copy = tmp_path / "copy.db"
    await asyncio.to_thread(backup, copy)
    assert (copy.stat().st_mode & 0o777, check_database(copy).findings) == (0o600, ())
    assert check_database(copy).rows["device"] == 1
    assert [*tmp_path.glob("*.backup-*"), *tmp_path.glob("*.part")] == []
    for wrong in (copy, tmp_path / "absent" / "copy.db"):
        with pytest.raises(UserError):
            await asyncio.to_thread(backup, wrong)
    store.close()


async def test_an_interrupted_upload_goes_on_where_it_ended(tmp_path):
    folder, data = ArtifactFolder(tmp_path), os.urandom(3000)
    sha256 = hashlib.sha256(data).hexdigest()
    assert (await folder.put(sha256, 0, data[:1000], 3000)).size_bytes == 1000
    again = ArtifactFolder(tmp_path)  # the daemon was restarted
    assert (await again.put(sha256, 0, data[:1000], 3000)).size_bytes == 1000
    with raises_code(Code.NO_SUCH_ARTIFACT):
        again.path(sha256)
    assert (await again.put(sha256, 1000, data[1000:], 3000)).complete
    assert await again.get(sha256, 2999) == (data[2999:], 3000)


async def test_wrong_bytes_are_dropped(tmp_path):
    folder, sha256 = ArtifactFolder(tmp_path), hashlib.sha256(b"right").hexdigest()
    with raises_code(Code.BAD_ARTIFACT, match="are not artifact"):
        await folder.put(sha256, 0, b"wrong", 5)
    assert (await folder.put(sha256, 0, b"right", 5)).complete


async def test_an_artifact_that_a_power_cut_left_short_is_taken_again(tmp_path):
    """It was said to be there, so that nobody could send it again."""
    data = b"right"
    sha256 = hashlib.sha256(data).hexdigest()
    for again in ("put", "add", "take"):
        (tmp_path / sha256).write_bytes(b"ri")
        folder = ArtifactFolder(tmp_path)
        assert folder.used_bytes == 2
        if again == "put":
            assert not (await folder.put(sha256, 0, b"", 900, "mallory")).complete
            assert folder.path(sha256).read_bytes() == b"ri"  # what they say of its size changes nothing
            assert (await folder.put(sha256, 0, data, 5, "ann")).complete
        elif again == "add":
            assert folder.add(data) == sha256
        else:
            with folder.scratch() as scratch:
                scratch.path.write_bytes(data)
                assert folder.take(scratch) == sha256
        assert folder.path(sha256).read_bytes() == data
        assert folder.used_bytes == 5


async def test_a_folder_that_a_person_removed_is_made_again(tmp_path):
    place = tmp_path / "artifacts"
    folder = ArtifactFolder(place)
    shutil.rmtree(place)
    assert (await folder.put(hashlib.sha256(b"right").hexdigest(), 0, b"right", 5, "ann")).complete
    shutil.rmtree(place)
    assert folder.path(folder.add(b"other")).read_bytes() == b"other"


async def test_no_user_damages_anothers_upload(tmp_path):
    """Who sent one wrong byte first as somebody's artifact had it refused, again whenever they liked."""
    folder, sha256 = ArtifactFolder(tmp_path), hashlib.sha256(b"right").hexdigest()
    await folder.put(sha256, 0, b"wr", 5, "mallory")
    await folder.put(sha256, 0, b"ri", 5, "ann")
    await folder.put(sha256, 2, b"on", 900, "mallory")
    assert (await folder.put(sha256, 2, b"ght", 5, "ann")).complete
    assert (await folder.put(sha256, 4, b"g", 5, "mallory")).complete  # it is there now
    assert folder.path(sha256).read_bytes() == b"right"


def test_what_comes_from_a_phone_counts_as_it_grows(tmp_path):
    """Twelve pulls at once filled the disk: what was under way was in nobody's sum."""
    folder = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=100))
    with folder.scratch() as first, folder.scratch() as second:
        first.grow(60)
        first.path.write_bytes(b"x" * 60)
        assert folder.used_bytes == 60
        with raises_code(Code.ARTIFACT_NOT_STORED, match="no room"):
            second.grow(41)
        assert (tmp_path / folder.take(first, "mallory")).exists()
        assert folder.used_bytes == 60
    with raises_code(Code.ARTIFACT_NOT_STORED, match="the caller of this file left"):
        second.grow(1)  # its pull continues in a thread for a moment
    with folder.scratch() as same:
        same.path.write_bytes(b"x" * 60)
        folder.take(same)
    assert folder.used_bytes == 60


def test_what_comes_from_a_phone_has_a_sender(tmp_path):
    folder = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=100))
    with folder.scratch() as screen:
        screen.path.write_bytes(b"x" * 60)
        folder.take(screen, "mallory")
    folder.add(b"ann's".ljust(50))  # in place of what mallory has beyond a share
    assert folder.used_bytes == 50


async def test_no_user_fills_the_artifact_folder(tmp_path):
    """Uploads that are under way stayed for a day, complete ones for an hour: nobody else had room meanwhile."""
    use = SimpleNamespace(live=frozenset, results=lambda: {anns.name})
    folder = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=100), use=use)
    anns = folder.path(folder.add(b"ann's result".ljust(20)))
    os.utime(anns, (time.time() - 2 * DAY_S,) * 2)
    for number in range(8):
        data = b"%20d" % number
        await folder.put(hashlib.sha256(data).hexdigest(), 0, data[: 20 - number % 2], 20, "mallory")
    assert anns.exists()
    mine = b"bob's".ljust(20)
    assert (await folder.put(hashlib.sha256(mine).hexdigest(), 0, mine, 20, "bob")).complete
    assert anns.exists()
    assert folder.used_bytes <= 100


@pytest.mark.parametrize(
    ("sha256", "offset", "size", "total"),
    [
        ("../../etc/passwd", 0, 1, 1),
        ("a" * 63, 0, 1, 1),
        ("a" * 64, 5, 1, 4),
        ("a" * 64, 0, 5, 4),
        ("a" * 64, 0, 1, 1 << 40),
    ],
)
async def test_impossible_uploads_are_refused(tmp_path, sha256, offset, size, total):
    with raises_code(Code.BAD_ARTIFACT):
        await ArtifactFolder(tmp_path).put(sha256, offset, b"x" * size, total)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_an_empty_chunk_asks_how_much_is_there(tmp_path):
    folder, sha256 = ArtifactFolder(tmp_path), hashlib.sha256(b"right").hexdigest()
    assert (await folder.put(sha256, 0, b"", 5)).size_bytes == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    await folder.put(sha256, 0, b"ri", 5)
    assert (await folder.put(sha256, 2, b"", 5)).size_bytes == 2
    assert (await folder.put(hashlib.sha256().hexdigest(), 0, b"", 0)).complete


async def test_artifacts_nobody_used_for_a_month_are_dropped(tmp_path):
    folder, now_s = ArtifactFolder(tmp_path), time.time()
    old, asked, sent = (folder.add(data) for data in (b"old", b"asked for again", b"sent again"))
    for sha256 in (old, asked, sent):
        os.utime(tmp_path / sha256, (now_s - 31 * DAY_S,) * 2)
    await folder.get(asked, 0)
    await folder.put(sent, 0, b"", 10)
    assert folder.drop_unneeded(now_s) == 1
    with raises_code(Code.NO_SUCH_ARTIFACT):
        folder.path(old)
    assert folder.path(asked).read_bytes() == b"asked for again"
    assert folder.path(sent).exists()


class Use:
    def __init__(self, live=(), results=()):
        self.live, self.results = lambda: live, lambda: results


async def test_an_upload_without_disk_space_is_refused_with_what_to_do(tmp_path):
    first = b"first".ljust(20)
    use = Use(live={hashlib.sha256(first).hexdigest()})
    folder = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=30), use)
    kept = folder.path(folder.add(first))
    os.utime(kept, (0, 0))
    second = b"second".ljust(20)
    sha256 = hashlib.sha256(second).hexdigest()
    with raises_code(Code.ARTIFACT_NOT_STORED, match=r"no room for .* GB of artifacts are in use") as caught:
        await folder.put(sha256, 0, second[:10], 20)
    assert "budget_gb" in caught.value.hint
    assert kept.exists()
    small = hashlib.sha256(b"small").hexdigest()
    assert (await folder.put(small, 0, b"small", 5)).complete


async def test_an_upload_counts_from_its_first_byte_and_not_after_it_was_refused(tmp_path):
    folder = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=30))
    data = os.urandom(20)
    sha256 = hashlib.sha256(data).hexdigest()
    await folder.put(sha256, 0, data[:10], 20)
    assert folder.used_bytes == ArtifactFolder(tmp_path).used_bytes == 10
    with raises_code(Code.BAD_ARTIFACT):
        await folder.put(sha256, 10, b"x" * 10, 20)
    assert folder.used_bytes == ArtifactFolder(tmp_path).used_bytes == 0


async def test_a_large_upload_is_never_in_memory_whole(door, tmp_path):
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(LARGE_BYTES)

    def put():
        with ControlClient(door.path) as client:
            return client.put_artifact(source)

    tracemalloc.start()
    try:
        sha256 = await asyncio.to_thread(put)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert door.artifacts.path(sha256).stat().st_size == LARGE_BYTES
    assert peak < LARGE_BYTES / 10  # of door and client together


async def test_what_others_left_in_the_artifact_folder_stops_no_start(tmp_path):
    for place in (tmp_path, tmp_path / "partial"):
        place.mkdir(exist_ok=True)
        (place / "loop").symlink_to(place / "loop")
        (place / "folder").mkdir()
    folder = ArtifactFolder(tmp_path)
    assert folder.used_bytes == folder.drop_unneeded() == 0
