"""A database that is not what it was: refused with the way back, or whole. Never a traceback, never half."""

import asyncio
import contextlib
import random
import shutil
import sqlite3
from dataclasses import replace

import pytest
from sqlalchemy import literal, type_coerce
from sqlalchemy.types import NullType

from farm.common.errors import Code, FarmError, HostError
from farm.store import opening
from farm.store.devices import DeviceRecord
from farm.store.maintenance import back_up, check, check_database
from farm.store.schema import device
from farm.store.store import Store
from tests.support.errors import raises_code
from tests.unit.store.values import NOW, attempt, begin, ended, job, over


async def history(store, jobs=60):
    await store.jobs.add([job(f"j{number}", spec={"text": "x" * 300}) for number in range(jobs)])
    for number in range(jobs // 2):
        begun = attempt(number + 1, f"j{number}", device=f"d{number}")
        await begin(store, begun)
        await store.jobs.finish(over(begun), ended(store.jobs.get(begun.job)), result={"n": number})


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    store = Store.open(folder / "farm.db")
    asyncio.run(history(store))
    store.close()
    return folder / "farm.db"


@pytest.fixture
def path(original, tmp_path):
    shutil.copy(original, tmp_path / "farm.db")
    return tmp_path / "farm.db"


def refused(path):
    with raises_code(Code.DATABASE_UNUSABLE) as caught:
        Store.open(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("large", [False, True])
def test_flipped_bytes_are_refused_or_harm_nothing(original, path, monkeypatch, large):
    if large:
        monkeypatch.setattr(opening, "WHOLE_CHECK_BYTES", 0)
    sound = original.read_bytes()
    chance = random.Random(3)
    places = [0, 17, 24, 40, 100, 4096, *(chance.randrange(len(sound)) for _ in range(40))]
    outcomes = []
    for place in places:
        content = bytearray(sound)
        content[place : place + 64] = bytes(byte ^ 0xFF for byte in content[place : place + 64])
        path.write_bytes(content)
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        try:
            store = Store.open(path)
        except HostError as error:
            outcomes.append("refused" if f"mv {path} {path}.damaged" in error.hint else error.message)
            continue
        found = check(store.database.engine).findings
        outcomes.append("found" if found else "opened")
        store.close()
    assert outcomes[0] == "refused"
    assert outcomes.count("refused") >= (3 if large else 10)
    assert set(outcomes) <= {"refused", "found", "opened"}


@pytest.mark.parametrize("left", [1, 99, 512, 4096, 20_000])
def test_a_cut_file_is_refused(path, left):
    path.write_bytes(path.read_bytes()[:left])
    assert "mv " in refused(path).hint


@pytest.mark.parametrize("content", [b"", b"not a database, but text\n" * 400, bytes(8192)])
def test_what_is_no_database_is_refused(path, content):
    path.write_bytes(content)
    refused(path)


def test_a_folder_in_its_place(tmp_path):
    (tmp_path / "farm.db").mkdir()
    assert "not a file" in refused(tmp_path / "farm.db").message


def test_somebody_elses_database(tmp_path):
    path = tmp_path / "farm.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    assert "not farm's" in refused(path).message


def test_the_newest_backup_is_named_and_is_the_way_back(path):
    older = back_up(path, path.with_name("farm.db.backup-20260101T000000Z"))
    newest = back_up(path, None)
    path.write_bytes(b"damage" * 1000)
    hint = refused(path).hint
    assert f"cp {newest} {path}" in hint
    assert str(older) not in hint
    shutil.copy(newest, path)
    store = Store.open(path)
    assert len(store.jobs.page(limit=100)) == 60
    store.close()


def killed(path):
    """The files as `kill -9` leaves them: a copy of those of an open database."""
    aside = path.with_name("killed")
    aside.mkdir()
    for each in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        shutil.copy(each, aside / each.name)
    return aside / path.name


async def test_a_lost_write_ahead_log_loses_the_last_changes_but_no_number(tmp_path, caplog):
    store = Store.open(tmp_path / "farm.db")
    await store.jobs.add((job(),))
    whole, epoch = killed(tmp_path / "farm.db"), store.epoch
    store.close()
    lost = whole.with_name("lost.db")
    shutil.copy(whole, lost)

    again = Store.open(whole)
    assert (again.epoch, len(again.jobs.live())) == (epoch + 1, 1)
    again.close()
    assert caplog.text == ""

    again = Store.open(lost)
    assert (again.epoch, len(again.jobs.live())) == (epoch + 1, 0)
    again.close()
    assert "its write-ahead log is not there" in caplog.text


def test_a_database_that_is_gone_is_begun_anew_and_said(path, caplog):
    backup = back_up(path, None)
    path.unlink()
    store = Store.open(path)
    assert store.jobs.page() == ()
    store.close()
    assert str(backup) in caplog.text


def test_a_new_database_appears_whole(tmp_path, monkeypatch):
    def die(_connection):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(opening, "create_tables", die)
        with pytest.raises(KeyboardInterrupt):
            Store.open(tmp_path / "farm.db")
    assert not (tmp_path / "farm.db").exists()
    Store.open(tmp_path / "farm.db").close()


async def test_check_finds_what_the_start_leaves_out(path, monkeypatch):
    assert check_database(path).findings == ()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("INSERT INTO result (job, body) VALUES ('nobody', '{}')")
        connection.execute("UPDATE job SET state = 'running' WHERE id = 'j40'")
        connection.execute("UPDATE attempt SET fence = 999 WHERE id = 'j3.1'")
    connection.close()
    report = check_database(path)
    assert [finding.split(" of ")[0] for finding in report.findings] == [
        "row None" if report.findings[0].startswith("row None") else report.findings[0].split(" of ")[0],
        "1 running jobs without a running attempt",
        "1 attempts under another lease's fence",
    ]
    assert "refers to a row of job" in report.findings[0]
    assert report.rows["job"] == 60
    assert report.rows["attempt"] == 30
    assert report.oldest == job().submitted_at
    assert report.to_wire()["ok"] is False


async def test_check_on_both_engines(store):
    await history(store, 4)
    report = check(store.database.engine)
    assert report.findings == ()
    assert report.rows["job"] == 4
    assert report.size_bytes > 10_000


@pytest.mark.parametrize("pooled", [False, True])
async def test_only_a_pooled_attempt_goes_on_without_its_first_lease(store, pooled):
    await store.jobs.add([job()])
    await begin(store, replace(attempt(), pooled=pooled))
    await store.leases.end("l1", ended_at=NOW, reason="lost", held_s=1.0)
    said = () if pooled else ("1 running attempts whose lease has ended",)
    assert check(store.database.engine).findings == said


async def test_a_backup_while_it_is_written(tmp_path):
    store = Store.open(tmp_path / "farm.db")
    writes = [asyncio.create_task(store.devices.save(DeviceRecord(f"S{n}", f"n{n}"))) for n in range(500)]
    copy = await asyncio.to_thread(back_up, tmp_path / "farm.db", tmp_path / "copy.db")
    await asyncio.gather(*writes)
    store.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith("copy")) == ["copy.db"]
    assert check_database(copy).findings == ()
    for wrong in (tmp_path / "copy.db", tmp_path / "absent" / "copy.db"):
        with pytest.raises(FarmError):
            back_up(tmp_path / "farm.db", wrong)


def change(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.parametrize(
    ("column", "value"),
    [("granted_at", b"\xff\xfe"), ("granted_at", "zz"), ("granted_at", 1e300), ("expires_at", "zz")],
)
def test_a_lease_whose_time_is_none_is_damage(path, column, value):
    change(path, f"update lease set ended_at = NULL, {column} = ?", value)
    assert "is damaged" in refused(path).message


@pytest.mark.parametrize("column", ["spec", "avoid", "after", "error"])
@pytest.mark.parametrize("value", ["[" * 100_000, "7", b"\xff\xfe"])
def test_a_job_whose_json_is_none_of_farms_is_damage(path, column, value):
    change(path, f"update job set {column} = ? where ended_at is null", value)
    assert "is damaged" in refused(path).message


def test_a_device_whose_time_is_none_is_damage(path):
    change(path, "insert into device (serial, name, adopted) values ('s', 'n', 0)")
    change(path, "update device set health_at = 'zz'")
    assert "is damaged" in refused(path).message


def test_a_value_that_something_else_wrote_into_history_is_told_to_who_reads_it(path):
    change(path, "update job set spec = '[]' where ended_at is not null")
    store = Store.open(path)
    with raises_code(Code.STORE_READ_FAILED) as caught:
        store.jobs.get("j0")
    assert "'[]' is not the JSON of its column: it is no object" in caught.value.message
    store.close()


WRONG = [
    ("labels", "[]", "device.labels: '[]' is not the JSON of its column: it is no object"),
    ("health_at", 1e300, "device.health_at: 1e+300 is no time: "),
]


@pytest.mark.parametrize(("column", "value", "told"), WRONG)
async def test_a_value_that_farm_did_not_write_is_named_with_its_place(store, column, value, told):
    for serial in ("S1", "S2"):
        await store.devices.save(DeviceRecord(serial, serial.lower()))
    await store.database.execute(
        device.update().where(device.c.serial == "S2").values({column: type_coerce(literal(value), NullType())})
    )
    with raises_code(Code.STORE_READ_FAILED) as caught:
        store.devices.all()
    assert told in caught.value.message
    assert "serial='S2')" in caught.value.message
    (finding,) = check(store.database.engine).findings
    assert finding.startswith(told)
    if store.path is not None:
        store.close()
        with raises_code(Code.DATABASE_UNUSABLE) as caught:
            Store.open(store.path)
        assert told in caught.value.message
        assert "serial='S2')" in caught.value.message
