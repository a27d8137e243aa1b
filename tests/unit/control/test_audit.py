"""What is written down of calls, by every door: who did what, and nothing that may be secret."""

import asyncio
import itertools
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from farm.common.errors import NotAllowedError, PhoneError, ProtocolError, UserError
from farm.common.verbs import Verb
from farm.control.artifacts import ArtifactFolder
from farm.control.audit import REFUSALS_WRITTEN, WINDOW_S, AuditTrail, about_call
from farm.control.callers import Accounts, Caller, KeyPeer, LocalPeer, Role
from farm.control.server import ControlServer
from farm.store.writer import StoreWriteError
from tests.support.verbs import every_verb
from tests.support.web_desk import AccountStore

WEB = Caller("ann", Role.USER, "web token ann from 10.0.0.3")
ROOT = Caller("root", Role.OPERATOR, "uid 0 pid 7", LocalPeer(0, 0, 7))
VIEWER = Caller("", Role.VIEWER, "web from 10.0.0.4")


class Rows(list):
    """Keeps rows in memory, unless its disk is full."""

    full = False

    async def add(self, records):
        if self.full:
            raise StoreWriteError("the disk is full")
        self += records


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def desk(rows, tmp_path):
    server = ControlServer(
        tmp_path / "control.sock", artifacts=ArtifactFolder(tmp_path / "artifacts"), audit=AuditTrail(rows)
    )

    async def look(call):
        return {"asked": dict(call.fields)}

    async def change(call):
        await call.progress(step=1)
        return {"job": [{"id": "job-1"}]}

    async def fail(call):
        raise PhoneError("it burns")

    server.register(Verb("look", Role.VIEWER, subject="job"), look)
    server.register(Verb("job.check", Role.USER, changes=False), look)
    server.register(Verb("change", Role.USER, subject="job"), change)
    server.register(Verb("fail", Role.OPERATOR, subject="job"), fail)
    return server


def told(rows):
    return [(row.user, row.origin, row.kind, row.subject, row.outcome) for row in rows]


async def test_a_change_is_written_with_who_and_what_and_a_look_is_not(desk, rows):
    steps = []

    async def progress(**fields):
        steps.append(fields)

    await desk.ask(VIEWER, "look", {})
    await desk.ask(WEB, "job.check", {})
    answer = await desk.ask(WEB, "change", {"spec": {"token": "s3cret"}, "note": "s3cret"}, progress=progress)
    assert answer.fields == {"job": [{"id": "job-1"}]}
    assert steps == [{"step": 1}]
    assert told(rows) == [("ann", WEB.origin, "change", "job-1", "ok")]
    assert "s3cret" not in str(rows)


async def test_refusals_and_failures_are_written(desk, rows):
    for caller, kind, error in (
        (VIEWER, "change", NotAllowedError),
        (WEB, "fail", NotAllowedError),
        (ROOT, "fail", PhoneError),
        (VIEWER, "no.such", UserError),
    ):
        with pytest.raises(error):
            await desk.ask(caller, kind, {"job": "pixel"})
    assert told(rows) == [
        ("", VIEWER.origin, "change", "pixel", "not_allowed"),
        ("ann", WEB.origin, "fail", "pixel", "not_allowed"),
        ("root", ROOT.origin, "fail", "pixel", "phone"),
        ("", VIEWER.origin, "?", "", "no_such_kind"),
    ]


async def test_a_call_that_its_caller_gave_up_is_ended_and_written(desk, rows):
    began = asyncio.Event()

    async def wait(call):
        began.set()
        await asyncio.Event().wait()

    desk.register(Verb("wait", Role.USER, subject="job"), wait)
    asked = asyncio.create_task(desk.ask(WEB, "wait", {"job": "j"}))
    await began.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await desk._audit.close()
    assert told(rows) == [("ann", WEB.origin, "wait", "j", "caller_gone")]


async def test_readers_of_pages_ask_one_by_one_users_in_turn(desk):
    asked, seen = [], []

    async def read(call):
        asked.append(call.caller)
        return {}

    desk.register(Verb("read", Role.VIEWER), read)
    work = [asyncio.ensure_future(desk.ask(caller, "read", {})) for caller in [VIEWER] * 20 + [WEB]]
    while len(asked) < len(work):
        await asyncio.sleep(0)
        seen.append(len(asked))
    await asyncio.wait(work)
    assert asked.index(WEB) <= 1
    assert max(after - before for before, after in itertools.pairwise([0, *seen])) == 1


@pytest.mark.parametrize(
    "fields", [{"id": "x"}, {"token": "x"}, {"x": float("nan")}, {"x": "x" * (3 << 20)}, {"x": object()}]
)
async def test_the_page_can_ask_nothing_that_the_control_socket_would_refuse(desk, fields):
    with pytest.raises(ProtocolError):
        await desk.ask(WEB, "look", fields)


async def test_a_full_disk_stops_nobody_and_the_log_has_the_row(desk, rows, caplog):
    rows.full = True
    await desk.ask(WEB, "change", {})
    assert desk._audit.unwritten == 1
    assert "not in the audit log" in caplog.text


async def test_of_refusals_again_and_again_the_first_few_are_written_and_the_rest_counted(rows):
    now = 0.0
    trail = AuditTrail(rows, clock=lambda: now)
    for _ in range(1000):
        await trail.record(VIEWER, "change", "pixel", "not_allowed")
    assert len(rows) == REFUSALS_WRITTEN
    assert trail.dropped == 1000 - REFUSALS_WRITTEN
    now = WINDOW_S
    await trail.record(WEB, "change", "pixel", "not_allowed")
    assert [row.outcome for row in rows[REFUSALS_WRITTEN:]] == ["not_allowed (990 times more)", "not_allowed"]
    await trail.record(VIEWER, "change", "pixel", "not_allowed")
    assert rows[-1].user == ""


async def test_wrong_secrets_are_folded_by_place(rows):
    trail = AuditTrail(rows, clock=lambda: 0.0)
    for place in ("10.0.0.4", "10.0.0.5"):
        for _ in range(100):
            await trail.record(Caller("", Role.VIEWER, f"web page from {place}"), "auth.sign_in", "", "wrong_token")
    assert len(rows) == 2 * REFUSALS_WRITTEN
    await trail.close()
    assert [row.origin[-1] + row.outcome[-16:] for row in rows[-2:]] == ["4 (90 times more)", "5 (90 times more)"]
    assert trail.outcomes["refused"] == 200


async def test_what_is_counted_is_written_at_the_end_and_memory_is_bounded(rows, monkeypatch):
    monkeypatch.setattr("farm.control.audit.MAX_WINDOWS", 3)
    trail = AuditTrail(rows, clock=lambda: 0.0)
    for number in range(100):
        key = replace(VIEWER, user=f"u{number}", peer=KeyPeer(f"u{number}", "10.0.0.1"))
        for _ in range(REFUSALS_WRITTEN + 1):
            await trail.record(key, "change", "", "not_allowed")
    assert len(rows) == 3 * REFUSALS_WRITTEN
    await trail.close()
    assert [row.outcome for row in rows[-3:]] == ["not_allowed (1 times more)"] * 3


@pytest.mark.parametrize(
    ("value", "subject"),
    [
        ("pixel", "pixel"),
        (["a", "b", "c", "d", "e"], "a b c d and 1 more"),
        ([{"id": "a"}, {"id": "b"}], "a b"),
        ([{"spec": {}}], ""),
        ("\x1b[2J" + "x" * 500, "?[2J" + "x" * 116 + "..."),
        ({"token": "secret"}, ""),
        (5, ""),
    ],
)
def test_a_subject_is_a_short_name(value, subject):
    assert about_call(Verb("change", subject="device"), {"device": value, "note": "x"}) == subject


@pytest.mark.parametrize(
    ("kind", "fields", "row"),
    [
        ("host.drain", {"on": True}, "on=true"),
        ("host.drain", {"on": False, "host": "lab2"}, "lab2 on=false"),
        ("device.service", {"device": "pixel", "service": "maintenance"}, "pixel service=maintenance"),
        ("device.quarantine", {"device": "pixel", "reason": "s3cret", "force": True}, "pixel force=true"),
        ("auth.new", {"name": "ann", "role": "operator", "web": False}, "ann web=false role=operator"),
        ("reservation.add", {"selector": "pool=lab", "user": "ann", "note": "s3cret"}, "pool=lab user=ann"),
        ("job.submit", {"spec": {"kind": "tune", "token": "s3cret", "note": {"on": True}}}, "kind=tune"),
        ("job.submit", {"spec": "s3cret"}, ""),
        ("lease.extend", {"lease": "l", "seconds": 600.0}, "l seconds=600.0"),
        ("job.cancel", {"user": "ann", "state": ["queued", "held"]}, "user=ann state=queued,held"),
        ("alias.set", {"alias": "a", "selector": "\x1b[2J" + "x" * 500}, "a selector=?[2J" + "x" * 227 + "..."),
        ("alias.set", {"alias": "a", "selector": {"x": "s3cret"}, "service": None}, "a"),
    ],
)
def test_a_row_says_what_was_ordered_and_no_free_text(tmp_path, kind, fields, row):
    assert about_call(every_verb(tmp_path)[kind], fields) == row


async def test_two_orders_of_one_verb_are_two_rows_refused_ones_too(desk, rows):
    for caller, on in ((WEB, True), (WEB, False), (VIEWER, False)):
        with suppress(NotAllowedError):
            await desk.ask(caller, "change", {"job": "host", "on": on})
    assert [(row.subject, row.outcome) for row in rows] == [
        ("host on=true", "ok"), ("host on=false", "ok"), ("host on=false", "not_allowed"),
    ]  # fmt: skip


async def test_a_call_with_a_revoked_key_is_written_down(desk, rows):
    desk.accounts = Accounts(AccountStore())
    peer = KeyPeer("ann", "10.0.0.9")
    with pytest.raises(NotAllowedError, match="revoked"):
        await desk._answer(SimpleNamespace(peer=peer))
    assert told(rows) == [("ann", peer.origin, "?", "", "not_allowed")]


async def test_rows_of_a_lab_name_the_host_of_their_origin(rows):
    trail = AuditTrail(rows, "lab2")
    await trail.record(Caller("ann", Role.USER, "uid 7"), "change", "pixel")
    await trail.record(Caller("ann", Role.USER, "uid 7 at host lab1", host="lab1"), "change", "pixel")
    assert [row.origin for row in rows] == ["uid 7 at host lab2", "uid 7 at host lab1"]
