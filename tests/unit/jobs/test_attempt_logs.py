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


def everything(logs, job="bench-1", number=2):
    found, after = [], 0
    while True:
        page = logs.read(job, number, after)
        if not page.lines and page.next == after:
            return found
        found += page.lines
        after = page.next


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


def test_a_restart_loses_nothing_and_half_a_line_is_skipped(logs, tmp_path):
    logs.store(ATTEMPT, "before")
    with (tmp_path / "logs" / "bench-1" / "2.jsonl").open("ab") as file:
        file.write(b'{"at": "2026')
    again = AttemptLogs(tmp_path / "logs")
    assert texts(again.read("bench-1", 2)) == ["before"]
    again.store(ATTEMPT, "after")
    assert texts(again.read("bench-1", 2)) == ["before", "after"]


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
    logs.store(ATTEMPT, "it failed", "error")
    kept = texts(logs.read("bench-1", 2))
    assert kept[0] == "line 0"
    assert [text for text in kept if "the rest is not kept" in text] == [kept[-2]]
    assert kept[-1] == "it failed"
    for _ in range(100):
        logs.store(ATTEMPT, "farm talks on", "error")
    assert logs._size("bench-1", 2) <= 3200


def test_a_long_line_is_cut(logs):
    logs.store(ATTEMPT, "x" * 100_000)
    (cut,) = logs.read("bench-1", 2).lines
    assert len(cut.text) < 5000
    assert cut.text.endswith("(100000 characters)")


def test_pages_are_bounded_and_follow_one_another(logs, monkeypatch):
    monkeypatch.setattr(module, "PAGE_BYTES", 500)
    logs.append("bench-1", 2, *(line(str(number)) for number in range(100)))
    assert 0 < len(logs.read("bench-1", 2).lines) < 10
    assert [each.text for each in everything(logs)] == [str(number) for number in range(100)]


@given(st.lists(st.text(max_size=40), max_size=20))
def test_whatever_is_said_is_read_again(tmp_path_factory, said):
    logs = AttemptLogs(tmp_path_factory.mktemp("logs"))
    logs.append("bench-1", 2, *map(line, said))
    wanted = [text.encode("utf-8", "replace").decode() for text in said]
    assert [each.text for each in everything(logs)] == wanted


async def test_followers_are_woken(logs):
    logs.store(ATTEMPT, "one")
    end = logs.read("bench-1", 2).next
    await logs.grown("bench-1", 2, 0)
    followers = [asyncio.create_task(logs.grown("bench-1", 2, end)) for _ in range(2)]
    given_up = asyncio.create_task(logs.grown("bench-1", 2, end))
    await asyncio.sleep(0)
    given_up.cancel()
    logs.append("bench-1", 1, line("another attempt's"))
    await asyncio.sleep(0)
    assert not any(follower.done() for follower in followers)
    logs.store(ATTEMPT, "two")
    await asyncio.gather(*followers)
    assert texts(logs.read("bench-1", 2, end)) == ["two"]


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


def test_a_disk_that_refuses_costs_lines_not_the_attempt(logs, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_write", refuse)
    logs.store(ATTEMPT, "one")
    assert "No space left" in caplog.text
    assert logs.read("bench-1", 2).lines == ()


async def test_whoever_stops_following_leaves_nothing(logs):
    followers = [asyncio.create_task(logs.grown("bench-1", number, 0)) for number in (1, 2, 2)]
    await asyncio.sleep(0)
    for follower in followers[:2]:
        follower.cancel()
    await asyncio.gather(*followers[:2], return_exceptions=True)
    assert {key: len(waiters) for key, waiters in logs._waiters.items()} == {("bench-1", 2): 1}
    logs.store(ATTEMPT, "news")
    await asyncio.wait_for(followers[2], HANG_S)
    assert logs._waiters == {}


def test_a_log_that_is_removed_is_not_cut_any_more(logs, monkeypatch):
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 200)
    for _ in range(5):
        logs.append("bench-1", 2, line("x" * 50))
    assert "the rest is not kept" in everything(logs)[-1].text
    logs.remove(["bench-1"])
    assert everything(logs) == []
    logs.store(ATTEMPT, "anew", source="worker")
    assert [each.text for each in everything(logs)] == ["anew"]


def test_a_log_is_read_from_its_end_back_to_its_beginning(tmp_path):
    logs = AttemptLogs(tmp_path)
    assert logs.read_back("j1", 1) == module.LogPage((), 0, 0)
    logs.append("j1", 1, *(LogLine("2026-11-20T12:00:00+00:00", "info", "worker", f"line {n}") for n in range(25)))
    tail = logs.read_back("j1", 1, limit=10)
    assert [line.text for line in tail.lines] == [f"line {n}" for n in range(15, 25)]
    assert logs.read("j1", 1, tail.next).lines == ()
    assert logs.read("j1", 1, tail.start).lines == tail.lines
    seen = []
    before = None
    while before != 0:
        page = logs.read_back("j1", 1, before, limit=7)
        seen = [*page.lines, *seen]
        before = page.start
    assert [line.text for line in seen] == [f"line {n}" for n in range(25)]


def test_of_a_long_log_one_page_is_read_and_its_first_half_line_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAGE_BYTES", 300)
    logs = AttemptLogs(tmp_path)
    logs.append("j1", 1, *(LogLine("2026-11-20T12:00:00+00:00", "info", "worker", f"line {n:02}") for n in range(20)))
    seen, before, pages = [], None, 0
    while before != 0:
        page = logs.read_back("j1", 1, before)
        assert 0 < len(page.lines) < 20
        seen, before, pages = [*page.lines, *seen], page.start, pages + 1
    assert [line.text for line in seen] == [f"line {n:02}" for n in range(20)]
    assert pages > 1


def test_a_line_that_is_being_written_is_not_told_yet(tmp_path):
    logs = AttemptLogs(tmp_path)
    logs.append("j1", 1, LogLine("2026-11-20T12:00:00+00:00", "info", "worker", "whole"))
    with (tmp_path / "j1" / "1.jsonl").open("ab") as file:
        file.write(b'{"at":"2026-11-20')
    assert [line.text for line in logs.read_back("j1", 1).lines] == ["whole"]


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
    logs.store(ATTEMPT, "kept", source="stdout")  # the folder is made anew
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
