"""A database that is not what it was: refused with the way back, or whole. Never a traceback, never half."""

import asyncio
import os
import random
import shutil
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import literal, type_coerce
from sqlalchemy.types import NullType

from farm.common.errors import Code, FarmError, HostError
from farm.store import opening
from farm.store.devices import DeviceRecord
from farm.store.files import StateFolderLock, copy_database, unusable_paths
from farm.store.maintenance import back_up, check, check_database, restore
from farm.store.schema import device
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.unit.store.values import NOW, attempt, begin, ended, job, over, sql


async def history(store, jobs=60):
    await store.jobs.add([job(f"j{number}", spec={"text": "x" * 300}) for number in range(jobs)])
    for number in range(jobs // 2):
        begun = attempt(number + 1, f"j{number}", device=f"d{number}")
        await begin(store, begun)
        await store.jobs.finish(over(begun), ended(store.jobs.get(begun.job)), result={"n": number})


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("original") / "farm.db"
    with closing(Store.open(path)) as store:
        asyncio.run(history(store))
    return path


@pytest.fixture
def path(original, tmp_path):
    return shutil.copy(original, tmp_path / "farm.db")


def refused(path):
    with raises_code(Code.DATABASE_UNUSABLE) as caught:
        Store.open(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("large", [False, True])
def test_flipped_bytes_are_refused_or_harm_nothing(original, path, numbers, large):
    if large:
        numbers(opening, WHOLE_CHECK_BYTES=0)
    sound = original.read_bytes()
    chance = random.Random(4)
    outcomes = []
    for place in [0, 17, 24, 40, 100, 4096, *(chance.randrange(len(sound)) for _ in range(40))]:
        content = bytearray(sound)
        content[place : place + 64] = bytes(byte ^ 0xFF for byte in content[place : place + 64])
        path.write_bytes(content)
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        try:
            with closing(Store.open(path)) as store:
                outcomes.append("found" if check(store.database.engine).findings else "opened")
        except HostError as error:
            outcomes.append("refused" if f"mv {path} {path}.damaged" in error.hint else error.message)
    assert outcomes[0] == "refused"
    assert outcomes.count("refused") >= (3 if large else 6)
    assert set(outcomes) <= {"refused", "found", "opened"}


@pytest.mark.parametrize("left", [1, 99, 512, 4096, 20_000])
def test_a_cut_file_is_refused(path, left):
    path.write_bytes(path.read_bytes()[:left])
    assert "mv " in refused(path).hint


@pytest.mark.parametrize(
    "content", [b"", b"not a database, but text\n" * 400, bytes(8192), "folder", "somebody else's"]
)
def test_what_is_no_database_of_farm_is_refused(tmp_path, content):
    path = tmp_path / "farm.db"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        sql(path, "CREATE TABLE songs (title TEXT)")
    assert {"folder": "not a file", "somebody else's": "not farm's"}.get(content, "") in refused(path).message


def test_the_newest_backup_is_named_and_is_the_way_back(path, opened):
    older = path.with_name("farm.db.backup-20260101T000000Z")
    copy_database(path, older)
    newest = back_up(path)
    path.write_bytes(b"damage" * 1000)
    hint = refused(path).hint
    assert f"farm store restore {newest} --state-dir {path.parent}" in hint
    assert str(older) not in hint
    before = restore(newest, path)
    assert before.read_bytes() == b"damage" * 1000
    assert len(opened(path).jobs.page(limit=100)) == 60


async def test_a_restore_leaves_no_log_of_the_database_of_before(tmp_path, opened):
    """The files as `kill -9` leaves them: SQLite would put the old log's pages into the restored file."""
    store = opened(tmp_path / "farm.db")
    copy = back_up(tmp_path / "farm.db")
    await store.jobs.add((job(),))
    killed = tmp_path / "killed"
    killed.mkdir()
    for each in ("farm.db", "farm.db-wal", "farm.db-shm"):
        shutil.copy(tmp_path / each, killed / each)
    before = restore(copy, killed / "farm.db")
    assert sorted(each.name for each in killed.glob("farm.db*"))[:1] == ["farm.db"]
    assert not any((killed / f"farm.db{log}").exists() for log in ("-wal", "-shm"))
    assert opened(killed / "farm.db").jobs.live() == ()
    assert len(opened(before).jobs.live()) == 1  # nothing of it is lost


@pytest.mark.parametrize("content", [b"", b"text" * 1000, "CREATE TABLE songs (title TEXT)", None])
def test_what_is_no_backup_replaces_nothing(path, tmp_path, content):
    copy, before = tmp_path / "copy.db", path.read_bytes()
    if isinstance(content, str):
        sql(copy, content)
    elif content is not None:
        copy.write_bytes(content)
    with pytest.raises(FarmError):
        restore(copy, path)
    assert (path.read_bytes(), [*path.parent.glob("farm.db.re*")]) == (before, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root restores another user's database")
def test_what_root_makes_in_a_state_folder_is_its_owners(path):
    for each in (path.parent, *path.parent.glob("farm.db*")):
        os.chown(each, 65534, 65534)
    StateFolderLock(path.parent).close()
    restore(back_up(path), path)
    assert check_database(path).findings == ()
    assert {each.stat().st_uid for each in path.parent.iterdir()} == {65534}
    assert [*unusable_paths(path.parent)] == []
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)  # by hand
    assert [*unusable_paths(path.parent)] == [path]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_lost_write_ahead_log_loses_the_last_changes_but_no_number(tmp_path, opened, caplog, lost):
    """The files as `kill -9` leaves them, with and without the log."""
    store, aside = opened(tmp_path / "farm.db"), tmp_path / "killed"
    await store.jobs.add((job(),))
    aside.mkdir()
    for each in ("farm.db",) if lost else ("farm.db", "farm.db-wal", "farm.db-shm"):
        shutil.copy(tmp_path / each, aside / each)
    again = opened(aside / "farm.db")
    assert (again.epoch, len(again.jobs.live())) == (store.epoch + 1, 0 if lost else 1)
    assert ("its write-ahead log is not there" in caplog.text) is lost


def test_a_database_that_is_gone_is_begun_anew_and_said(path, opened, caplog):
    backup = back_up(path)
    path.unlink()
    assert opened(path).jobs.page() == ()
    assert str(backup) in caplog.text


def test_a_new_database_appears_whole(tmp_path, opened, monkeypatch):
    def die(_connection):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(opening, "create_tables", die)
        with pytest.raises(KeyboardInterrupt):
            Store.open(tmp_path / "farm.db")
    assert not (tmp_path / "farm.db").exists()
    opened(tmp_path / "farm.db")


async def test_check_finds_what_the_start_leaves_out(path):
    assert check_database(path).findings == ()
    for change in (  # another program checks no foreign keys
        "INSERT INTO result (job, body) VALUES ('nobody', '{}')",
        "UPDATE attempt SET fence = 999 WHERE id = 'j3.1'",
    ):
        sql(path, change)
    report = check_database(path)
    orphan, other = report.findings
    assert "refers to a row of job" in orphan
    assert other.startswith("1 attempts under another lease's fence")
    assert (report.rows["job"], report.rows["attempt"], report.oldest) == (60, 30, job().submitted_at)
    assert report.to_wire()["ok"] is False


async def test_check_on_both_engines(store):
    await history(store, 4)
    report = check(store.database.engine)
    assert (report.findings, report.rows["job"]) == ((), 4)
    assert report.size_bytes > 10_000


@pytest.mark.parametrize("pooled", [False, True])
async def test_only_a_pooled_attempt_goes_on_without_its_first_lease(store, pooled):
    await store.jobs.add([job()])
    await begin(store, replace(attempt(), pooled=pooled))
    await store.leases.end("l1", ended_at=NOW, reason="lost", held_s=1.0)
    said = () if pooled else ("1 running attempts whose lease has ended",)
    assert check(store.database.engine).findings == said


async def test_a_backup_while_it_is_written(tmp_path, opened):
    store = opened(tmp_path / "farm.db")
    writes = [asyncio.create_task(store.devices.save(DeviceRecord(f"S{n}", f"n{n}"))) for n in range(500)]
    copy = await asyncio.to_thread(back_up, tmp_path / "farm.db")
    await asyncio.gather(*writes)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert [*tmp_path.glob("farm.db.backup-*")] == [copy]
    assert check_database(copy).findings == ()
    for wrong in (copy, tmp_path / "absent" / "copy.db"):
        with pytest.raises(FarmError):
            copy_database(tmp_path / "farm.db", wrong)


NO_TIMES = [("granted_at", b"\xff\xfe"), ("granted_at", "zz"), ("granted_at", 1e300), ("expires_at", "zz")]
NO_JSON = [
    (column, value) for column in ("spec", "avoid", "after", "error") for value in ("[" * 100_000, "7", b"\xff\xfe")
]


@pytest.mark.parametrize(
    ("change", "value"),
    [(f"update lease set ended_at = NULL, {column} = ?", value) for column, value in NO_TIMES]
    + [(f"update job set {column} = ? where ended_at is null", value) for column, value in NO_JSON]
    + [("insert into device (serial, name, adopted, health_at) values ('s', 'n', 0, ?)", "zz")],
)
def test_a_value_of_what_lives_that_is_none_of_farms_is_damage(path, change, value):
    sql(path, change, value)
    assert "is damaged" in refused(path).message


def test_a_value_that_something_else_wrote_into_history_is_told_to_who_reads_it(path, opened):
    sql(path, "update job set spec = '[]' where ended_at is not null")
    store = opened(path)
    with raises_code(Code.STORE_READ_FAILED) as caught:
        store.jobs.get("j0")
    assert "'[]' is not the JSON of its column: it is no object" in caught.value.message


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("labels", "[]", "device.labels: '[]' is not the JSON of its column: it is no object"),
        ("health_at", 1e300, "device.health_at: 1e+300 is no time: "),
    ],
)
async def test_a_value_that_farm_did_not_write_is_named_with_its_place(store, column, value, told):
    for serial in ("S1", "S2"):
        await store.devices.save(DeviceRecord(serial, serial.lower()))
    await store.database.execute(
        device.update().where(device.c.serial == "S2").values({column: type_coerce(literal(value), NullType())})
    )
    with raises_code(Code.STORE_READ_FAILED) as caught:
        store.devices.all()
    said = [caught.value.message]
    (finding,) = check(store.database.engine).findings
    assert finding.startswith(told)
    if store.path is not None:
        store.close()
        said.append(refused(store.path).message)
    for each in said:
        assert told in each
        assert "serial='S2')" in each
