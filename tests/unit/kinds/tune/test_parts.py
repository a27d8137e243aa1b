"""A search's records kept at another host: sent in parts, named by the attempt, taken up by the next."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from farm.common.errors import HostError
from farm.compiler.record_files import RecordFolder, write_records
from farm.kinds.tune.executor import KeptParts, parts_of
from farm.kinds.tune.worker import kept_in_parts, take_up
from farm.model.job import Attempt
from farm.tuning.phone_speed import SCALE_FILE
from tests.unit.compiler.test_record_parts import a_set, append

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32


class Daemon:
    """What a worker's channel does, with a memory."""

    def __init__(self):
        self.artifacts, self.named, self.lines = [], [], []
        self.log = lambda text, level="info": self.lines.append((level, text))

    def put_artifact(self, data):
        self.artifacts.append(data)
        return str(len(self.artifacts) - 1)

    def artifact(self, name):
        if not name.isdecimal():
            raise HostError("artifact 0 cannot be had from another host")
        return self.artifacts[int(name)]

    def call(self, verb, **fields):
        assert verb == "records.part"
        self.named = [*(() if fields["first"] else self.named), fields["artifact"]]


def test_the_next_attempt_has_the_trials_of_the_one_before(tmp_path):
    daemon, here, there = Daemon(), tmp_path / "here", tmp_path / "there"
    write_records(a_set(1, 2), here)
    with kept_in_parts(True, here, daemon) as begin:
        begin()
        append(here, a_set(1, 2, 3))
        (here / SCALE_FILE).write_text('{"kernel": "k"}')
    take_up(daemon.named, there, daemon)
    with RecordFolder(there) as folder:
        assert folder.found.set == a_set(1, 2, 3)
    assert (there / SCALE_FILE).read_text() == '{"kernel": "k"}'
    assert daemon.lines == [("info", "took up 3 trials that an earlier attempt measured on another host")]


def test_on_the_only_host_nothing_is_kept_twice(tmp_path):
    daemon = Daemon()
    write_records(a_set(1), tmp_path)
    with kept_in_parts(False, tmp_path, daemon) as begin:
        begin()
    take_up((), tmp_path, daemon)
    assert (daemon.named, daemon.lines) == ([], [])


def test_a_search_goes_on_without_parts_that_nobody_has(tmp_path):
    daemon = Daemon()
    take_up((A,), tmp_path, daemon)
    assert daemon.lines[0][0] == "warning"
    assert "cannot be had" in daemon.lines[0][1]


@pytest.fixture
def context():
    lines = []
    return SimpleNamespace(save_facts=AsyncMock(), lines=lines, log=lambda *line: lines.append(line))


def parts_saved(context):
    return [call.args[0]["parts"] for call in context.save_facts.call_args_list]


async def test_a_part_is_named_when_it_has_its_second_copy(context):
    copied = asyncio.Event()
    kept = KeptParts(context, lambda _sha256: copied.wait())
    kept.add(A, first=True)
    kept.add(B, first=False)
    assert parts_saved(context) == []
    copied.set()
    await kept.close()
    assert parts_saved(context) == [[A], [A, B]]


async def test_a_first_part_takes_the_place_of_all_before(context):
    kept = KeptParts(context, AsyncMock(side_effect=HostError("no other host answers")))
    for artifact, first in ((A, True), (B, False), (C, True)):
        kept.add(artifact, first=first)
    await kept.close()
    assert parts_saved(context)[-1] == [C]
    assert len(context.lines) == 3


def test_the_latest_attempt_that_kept_any_is_gone_on_from():
    at = datetime.now(UTC)
    facts = [{"parts": [A]}, {"parts": [B, C]}, {}, {"parts": []}]
    attempts = [Attempt(f"j.{n}", "j", n, "d", "l", n, at, facts=each) for n, each in enumerate(facts, 1)]
    assert parts_of(attempts) == (B, C)
    assert parts_of(()) == ()
    assert parts_of([Attempt("j.1", "j", 1, "d", "l", 1, at, facts={"parts": [1, "x", A]})]) == (A,)
