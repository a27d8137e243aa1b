"""Logs of attempts: read by position, bounded, whole again after a daemon that died in the middle of a line."""

import asyncio
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import HostError
from farm.jobs import logs as module
from farm.jobs.logs import AttemptLogs, LogLine, LogPage
from farm.model.job import Attempt
from farm.store.store import Store
from tests.support.waiting import HANG_S
from tests.unit.store.values import job

ATTEMPT = Attempt("bench-1.2", "bench-1", 2, "a", "lease", 7, datetime.now(UTC))


@pytest.fixture
def logs(tmp_path):
    return AttemptLogs(tmp_path / "logs")


def texts(page):
    return [line.text for line in page.lines]


def line(text, level="info", source="worker"):
    return LogLine("2026-11-20T12:00:00+00:00", level, source, text)


def numbered(count):
    return [f"line {number:02}" for number in range(count)]


def everything(logs, job="bench-1", number=2):
    found, after = [], 0
    while (page := logs.read(job, number, after)).lines or page.next != after:
        found += texts(page)
        after = page.next
    return found


def everything_backwards(logs, limit=1000):
    """Whole pages, from the last to the first."""
    pages, before = [], None
    while before != 0:
        pages.insert(0, logs.read_back("bench-1", 2, before, limit=limit))
        before = pages[0].start
    return [text for page in pages for text in texts(page)], len(pages)


def test_lines_are_read_by_position(logs):
    logs.store(ATTEMPT, "one\ntwo", "warning", "stdout")
    logs.store(ATTEMPT, "three")
    first = logs.read("bench-1", 2, limit=2)
    assert [(each.text, each.level, each.source) for each in first.lines] == [
        ("one", "warning", "stdout"), ("two", "warning", "stdout"),
    ]  # fmt: skip
    assert datetime.fromisoformat(first.lines[0].at).tzinfo is not None
    second = logs.read("bench-1", 2, first.next)
    assert texts(second) == ["three"]
    assert logs.read("bench-1", 2, second.next) == module.LogPage((), second.next, second.next)
    assert texts(logs.read("bench-1", 2, 1)) == ["two", "three"]  # a position inside the first line
    assert logs.read("bench-1", 2, 2**63 - 1) == LogPage((), 2**63 - 1, 2**63 - 1)
    assert logs.read("bench-1", 1) == module.LogPage((), 0, 0)
    assert logs.read("bench-1", 2, 10**9).lines == ()


@pytest.mark.parametrize(
    "line",
    [
        {"at": "yesterday"}, {"at": 7}, {"at": "2026-08-02T12:00:00+00:00", "text": 7}, {"more": ""}, [],
    ],
)  # fmt: skip
def test_a_line_that_farm_did_not_write_is_left_out(logs, tmp_path, line):
    """A time that is none was an internal error in every reader of the log."""
    logs.store(ATTEMPT, "before")
    known = {"at": "2026-08-02T12:00:00+00:00", "level": "info", "source": "farm", "text": "changed"}
    with (tmp_path / "logs" / "bench-1" / "2.jsonl").open("a") as file:
        file.write(json.dumps(known | line if line else line) + "\n")
    logs.store(ATTEMPT, "after")
    assert texts(logs.read("bench-1", 2)) == texts(logs.read_back("bench-1", 2)) == ["before", "after"]


def test_a_full_log_says_so_once_and_farm_still_gets_a_word_in(logs, monkeypatch):
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 2000)
    monkeypatch.setattr(module, "RESERVE_BYTES", 1000)
    for number in range(100):
        logs.store(ATTEMPT, f"line {number}", source="worker")
    logs.append("bench-1", 2, line("in a part of its own"))
    logs.store(ATTEMPT, "it failed", "error")
    kept = texts(logs.read("bench-1", 2))
    assert kept[0] == "line 0"
    assert [text for text in kept if "the rest is not kept" in text] == [kept[-2]]
    assert kept[-1] == "it failed"
    for _ in range(100):
        logs.store(ATTEMPT, "farm talks on", "error")
    assert logs._size("bench-1", 2) <= 3200
    logs.remove(["bench-1"])
    assert everything(logs) == []
    logs.store(ATTEMPT, "again", source="worker")
    assert everything(logs) == ["again"]


def test_a_long_line_is_cut(logs):
    logs.store(ATTEMPT, "x" * 100_000)
    (cut,) = logs.read("bench-1", 2).lines
    assert len(cut.text) < 5000
    assert cut.text.endswith("(100000 characters)")


def test_pages_are_bounded_and_follow_one_another(logs, monkeypatch):
    monkeypatch.setattr(module, "PAGE_BYTES", 500)
    logs.append("bench-1", 2, *map(line, numbered(100)))
    for read in (logs.read, logs.read_back):
        assert 0 < len(read("bench-1", 2).lines) < 10
    assert everything(logs) == everything_backwards(logs)[0] == numbered(100)


@given(st.lists(st.text(max_size=40), max_size=20))
def test_whatever_is_said_is_read_again(tmp_path_factory, said):
    logs = AttemptLogs(tmp_path_factory.mktemp("logs"))
    logs.append("bench-1", 2, *map(line, said))
    assert everything(logs) == [text.encode("utf-8", "replace").decode() for text in said]


async def test_followers_are_woken_and_whoever_gives_up_leaves_nothing(logs):
    logs.store(ATTEMPT, "one")
    end = logs.read("bench-1", 2).next
    await logs.grown("bench-1", 2, 0)
    followers = [asyncio.create_task(logs.grown("bench-1", 2, end)) for _ in range(2)]
    given_up = [asyncio.create_task(logs.grown("bench-1", number, end)) for number in (1, 2)]
    await asyncio.sleep(0)
    for each in given_up:
        each.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    assert {key: len(waiters) for key, waiters in logs._waiters.items()} == {("bench-1", 2): 2}
    logs.append("bench-1", 1, line("another attempt's"))
    await asyncio.sleep(0)
    assert not any(follower.done() for follower in followers)
    logs.store(ATTEMPT, "two")
    async with asyncio.timeout(HANG_S):
        await asyncio.gather(*followers)
    assert texts(logs.read("bench-1", 2, end)) == ["two"]
    assert logs._waiters == {}


def test_logs_go_with_their_jobs(logs):
    logs.store(ATTEMPT, "one")
    logs.append("run-2", 1, line("other"))
    logs.remove(["bench-1", "never-was"])
    assert logs.read("bench-1", 2).lines == ()
    assert texts(logs.read("run-2", 1)) == ["other"]


@pytest.mark.parametrize("job", ["../x", "", ".", "a/b", "a\0"])
def test_no_name_leads_elsewhere(logs, job):
    with pytest.raises(ValueError, match="no job's id"):
        logs.read(job, 1)


@pytest.mark.parametrize(("target", "said"), [("/dev/full", "No space left"), ("/nonexistent/x", "No such file")])
def test_a_disk_that_refuses_costs_lines_not_the_attempt(logs, tmp_path, caplog, target, said):
    folder = tmp_path / "logs" / "bench-1"
    folder.mkdir(parents=True)
    (folder / "2.jsonl").symlink_to(target)
    logs.store(ATTEMPT, "one")
    assert said in caplog.text


def test_a_log_is_read_from_its_end_back_to_its_beginning(logs):
    assert logs.read_back("bench-1", 2) == LogPage((), 0, 0)
    logs.append("bench-1", 2, *map(line, numbered(25)))
    tail = logs.read_back("bench-1", 2, limit=10)
    assert texts(tail) == numbered(25)[15:]
    assert logs.read("bench-1", 2, tail.next).lines == ()
    assert logs.read("bench-1", 2, tail.start).lines == tail.lines
    assert everything_backwards(logs, limit=7) == (numbered(25), 4)


def test_a_restart_loses_nothing_and_half_a_line_is_skipped(logs, tmp_path):
    logs.store(ATTEMPT, "before")
    with (tmp_path / "logs" / "bench-1" / "2.jsonl").open("ab") as file:
        file.write(b'{"at": "2026')
    again = AttemptLogs(tmp_path / "logs")
    for read in (again.read, again.read_back):
        assert texts(read("bench-1", 2)) == ["before"]
    again.store(ATTEMPT, "after")
    assert texts(again.read("bench-1", 2)) == ["before", "after"]


def test_lines_that_could_not_be_written_are_missed_until_the_log_says_so(logs, tmp_path):
    folder = tmp_path / "logs"
    folder.rmdir()
    folder.write_text("in its place")
    logs.store(ATTEMPT, "gone", source="stdout")
    (said,) = logs.lost("bench-1", 2)
    assert (said.source, said.level) == ("farm", "warning")
    assert said.text == "output is missing here: Not a directory; its end: farm job show bench-1"
    for read in (logs.read, logs.read_back):
        with pytest.raises(HostError, match=r"the log of bench-1\.2 cannot be read: Not a directory"):
            read("bench-1", 2)
    folder.unlink()
    logs.store(ATTEMPT, "kept", source="stdout")  # the folder is made again
    assert texts(logs.read("bench-1", 2)) == [said.text, "kept"]
    assert logs.lost("bench-1", 2) == ()


async def test_logs_of_jobs_that_a_head_apart_has_pruned_go(logs, tmp_path):
    for name in ("kept", "pruned"):
        logs.append(name, 1, line("it ran"))
    store = Store.open(tmp_path / "farm.db")
    try:
        await store.jobs.add([job("kept")])
        await logs.remove_orphans(store.jobs)
    finally:
        store.close()
    assert [each.name for each in (tmp_path / "logs").iterdir()] == ["kept"]
