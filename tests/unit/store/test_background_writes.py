"""Changes that hold in memory already: stored one after the other, again and again while the disk is full."""

import logging

from farm.store import database
from farm.store.database import FLUSH_LIMIT_S, RETRY_S, BackgroundWrites
from farm.store.writer import StoreWriteError
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until


class Table:
    """Takes a value when there is room; `tries` counts."""

    def __init__(self, full=True):
        self.full, self.tries, self.kept = full, 0, []

    def writes(self, value):
        async def write():
            self.tries += 1
            if self.full:
                raise StoreWriteError("the disk is full")
            self.kept.append(value)

        return write


@virtual_time
async def test_a_full_disk_is_tried_each_second_and_at_once_when_it_has_room_and_told_once(caplog):
    caplog.set_level(logging.DEBUG, database.__name__)
    writes, table = BackgroundWrites(), Table()
    writes.add("S1", table.writes("first"))
    writes.add("S1", table.writes("second"))
    await until(lambda: table.tries == 1)
    await until(lambda: table.tries == 3, 2.5 * RETRY_S)
    table.full = False
    writes.on_store_problem(False)
    await until(lambda: table.kept, 0.1 * RETRY_S)
    await writes.close()
    assert table.kept == ["first", "second"]
    said = [(record.levelname, record.exc_info) for record in caplog.records]
    assert said.count(("WARNING", None)) == 1
    assert {level for level, _ in said} <= {"WARNING", "DEBUG", "INFO"}


@virtual_time
async def test_a_disk_that_stays_full_does_not_keep_the_daemon_from_ending(caplog):
    writes, table = BackgroundWrites(), Table()
    writes.add("S1", table.writes("first"))
    await writes.close()
    assert table.tries >= FLUSH_LIMIT_S / RETRY_S
    assert "not done before the end: store S1" in caplog.text


@virtual_time
async def test_what_waits_is_replaced_by_what_is_newer():
    writes, table = BackgroundWrites(), Table(full=False)
    for value in range(4):
        writes.replace("S1", table.writes(value))
    await writes.close()
    assert table.kept == [0, 3]


@virtual_time
async def test_a_change_that_the_store_never_takes_is_logged_and_the_next_is_written(caplog):
    writes, table = BackgroundWrites(), Table(full=False)

    async def broken():
        raise ValueError("no such column")

    writes.add("S1", broken)
    writes.add("S1", table.writes("first"), done=lambda _: 1 // 0)
    writes.add("S1", table.writes("second"))
    await writes.close()
    assert table.kept == ["first", "second"]
    assert "no such column" in caplog.text
    assert "what follows the write failed" in caplog.text
