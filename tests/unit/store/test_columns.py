"""Text that no database keeps as it is: half a surrogate pair, NUL. Values that farm did not write."""

from copy import copy

import pytest

from farm.common.events import EventLog
from farm.store.columns import StoredValueError, storable
from farm.store.schema import job as job_table
from tests.unit.store.values import NOW, job, lease

FOREIGN = "adb said \udcff, \0, \U0001f600 and \\udcff"
KEPT = "adb said \\udcff, \\x00, \U0001f600 and \\udcff"


@pytest.mark.parametrize(
    ("text", "kept"), [("", ""), ("Größe", "Größe"), ("\ud83d", r"\ud83d"), ("a\0b", r"a\x00b"), (FOREIGN, KEPT)]
)
def test_what_cannot_be_kept_is_written_as_its_escape(text, kept):
    assert storable(text) == kept
    assert storable(kept) == kept


async def test_foreign_text_keeps_no_change_from_being_written(store):
    log = EventLog(store.epoch)
    await store.leases.grant(lease(user=FOREIGN, selector=FOREIGN))
    with log.drafted(("lease.released", FOREIGN, {"reason": FOREIGN, FOREIGN: 1})) as drafts:
        assert await store.leases.end("l1", ended_at=NOW, reason=FOREIGN, held_s=1.0, events=drafts)
    row = store.leases.get("l1")
    assert (row.user, row.selector, row.reason) == (KEPT, KEPT, KEPT)
    (event,) = store.events.since(0, subject=FOREIGN)
    said = FOREIGN.replace("\udcff", r"\udcff")  # NUL has an escape of JSON's own
    assert (event.subject, event.data) == (KEPT, {"reason": said, said: 1})


async def test_json_keeps_every_character_that_there_is(store):
    spec = {"command": FOREIGN, "deep": [{"käse": '\U0001f600\u2028\x7f\t"\\'}]}
    await store.jobs.add([job(spec=spec)])
    assert store.jobs.get("j1").spec == {**spec, "command": FOREIGN.replace("\udcff", r"\udcff")}


def test_the_error_of_a_value_that_farm_did_not_write_is_copied_for_each_caller():
    error = StoredValueError("is no time", "soon", job_table.c.submitted_at)
    assert str(copy(error)) == str(error) == "job.submitted_at: 'soon' is no time"
