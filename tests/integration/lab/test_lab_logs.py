"""Logs of attempts at another host: read, followed while they grow, and away."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from farm.common.errors import Code, FarmError
from farm.jobs.logs import AttemptLogs, LogLine
from farm.lab.logs import HostLogs
from farm.model.job import Attempt
from tests.support.errors import raises_code
from tests.support.linked_hosts import linked_hosts

ATTEMPT = Attempt("j1.1", "j1", 1, "pixel", "lease-1", 1, datetime.now(UTC))


@pytest.fixture
async def lab(tmp_path):
    async def at_two(_attempt):
        return "two"

    async with linked_hosts(tmp_path) as lab:
        lab.logs = {name: AttemptLogs(tmp_path / name / "logs") for name in ("one", "two")}
        lab.hosts = {name: HostLogs(lab.add(name), logs, at_two) for name, logs in lab.logs.items()}
        yield lab


def texts(page):
    return [line.text for line in page.lines]


@pytest.mark.parametrize("reader", ["one", "two"])
async def test_a_log_reads_the_same_at_every_host(lab, reader):
    for number in range(300):
        lab.logs["two"].store(ATTEMPT, f"line {number}: größe")
    async with lab.hosts[reader].open(ATTEMPT) as log:
        page = await log.read(0, 200)
        assert texts(page)[::199] == ["line 0: größe", "line 199: größe"]
        assert texts(await log.read(page.next))[0] == "line 200: größe"
        tail = await log.read_back(None, 10)
        assert texts(tail) == [f"line {number}: größe" for number in range(290, 300)]
        assert texts(await log.read_back(tail.start, 1)) == ["line 289: größe"]


async def test_a_page_of_the_longest_lines_comes_whole(lab):
    lab.logs["two"].store(ATTEMPT, "\n".join("\x01" * 4000 for _ in range(60)))
    async with lab.hosts["one"].open(ATTEMPT) as log:
        mine = await asyncio.to_thread(lab.logs["two"].read, "j1", 1)
        assert await log.read(0) == mine


async def test_a_log_is_followed_while_it_grows(lab):
    lab.logs["two"].store(ATTEMPT, "first")
    async with lab.hosts["one"].open(ATTEMPT) as log:
        page = await log.read(0)
        waiting = asyncio.create_task(log.grown(page.next))
        lab.logs["two"].store(ATTEMPT, "second")
        await waiting
        assert texts(await log.read(page.next)) == ["second"]


async def test_who_waits_for_growth_may_ask_something_else(lab):
    """The attempt has ended meanwhile: its last lines are read at once."""
    lab.logs["two"].store(ATTEMPT, "only")
    async with lab.hosts["one"].open(ATTEMPT) as log:
        for _ in range(3):
            page = await log.read(0)
            waiting = asyncio.create_task(log.grown(page.next))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert texts(await log.read(0)) == ["only"]


async def test_a_host_that_is_gone_has_its_log_with_it(lab):
    lab.logs["two"].store(ATTEMPT, "only")
    with raises_code(Code.LOG_AWAY, match="host two"):
        async with lab.hosts["one"].open(ATTEMPT) as log:
            page = await log.read(0)
            waiting = asyncio.create_task(log.grown(page.next))
            await asyncio.sleep(0)
            await lab.links["two"].stop()
            await waiting
    with raises_code(Code.LOG_AWAY, match="the log is at another host: host two cannot be reached"):
        async with lab.hosts["one"].open(ATTEMPT):
            pass


@pytest.mark.parametrize("fields", [{}, {"job": "../../x", "number": 1}, {"job": "j1", "number": "1"}])
async def test_what_is_no_attempt_is_refused(lab, fields):
    with pytest.raises(FarmError, match="without its job"):
        await lab.links["one"].dial("two", "log", fields)


async def test_what_is_no_question_is_answered_so(lab, caplog):
    connection = await lab.links["one"].dial("two", "log", {"job": "j1", "number": 1})
    reader, writer = await connection.streams()
    for wrong in (b"{}\n", b"[]\n", b"nothing\n", b"[" * 60_000 + b"\n", b'{"id": 1, "after": "x", "limit": 1}\n'):
        writer.write(wrong)
        assert b"no question about a log" in await reader.readline()
    writer.write(b"x" * 100_000 + b"\n")
    assert await reader.readline() == b""
    await connection.close()
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


LINE = {"at": "2026-07-01T00:00:00+00:00", "level": "info", "source": "worker", "text": "hello"}


def answered(**fields):
    return json.dumps({"id": 1, "lines": [LINE], "start": 0, "next": 9, **fields}).encode()


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b"[]", Code.LOG_AWAY, "does not answer"),
        (b'{"id": 1}', Code.LOG_AWAY, "sends lines that farm cannot read"),
        (answered(lines=[{"at": 1}]), Code.LOG_AWAY, "sends lines that farm cannot read"),
        (answered(lines=[{**LINE, "at": "yesterday"}]), Code.LOG_AWAY, "sends lines that farm cannot read"),
        (answered(lines=[{**LINE, "at": "2026-07-01T00:00:00"}]), Code.LOG_AWAY, "sends lines that farm cannot read"),
        (answered(next=0), Code.LOG_AWAY, "sends lines that farm cannot read"),  # the reader would ask forever
        (answered(error="away"), FarmError.code, "in a form this version does not know"),
    ],
)
async def test_an_answer_that_is_none_is_an_error_of_that_host(lab, answer, code, said):
    async def other(call):
        await call.accept()
        reader, writer = await call.streams()
        await reader.readline()
        writer.write(answer + b"\n")

    lab.links["two"]._services["log"] = other
    with raises_code(code, match=said):
        async with lab.hosts["one"].open(ATTEMPT) as log:
            await log.read(0)


async def test_a_line_of_a_later_release_is_read_without_its_new_fields(lab):
    async def other(call):
        await call.accept()
        reader, writer = await call.streams()
        await reader.readline()
        writer.write(answered(lines=[{**LINE, "colour": "green"}]) + b"\n")

    lab.links["two"]._services["log"] = other
    async with lab.hosts["one"].open(ATTEMPT) as log:
        assert (await log.read(0)).lines == (LogLine(**LINE),)
