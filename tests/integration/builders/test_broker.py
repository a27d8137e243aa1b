"""Builders over real dask with TLS: candidates go to those of their identity, and every fault ends at the host."""

import asyncio
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from farm.builders import membership, process
from farm.builders.membership import join
from farm.builders.table_policy import MAX_FAULTS, MAX_KILLED
from farm.common.errors import ExitCode, HostError, NotAllowedError, UserError
from farm.common.tasks import end_tasks
from tests.support.fake_builders import ENDED, IDENTITY, KILLER, PATIENCE_S, BuilderFarm, FakeRun, library_of
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(600)]
pytest.importorskip("distributed")


@pytest.fixture
def _impatient(monkeypatch):
    monkeypatch.setattr(process, "SERVER", "tests.support.impatient_builders")


@pytest.fixture
async def farm(tmp_path):
    async with BuilderFarm.running(tmp_path) as farm:
        yield farm


async def test_candidates_are_built_by_builders_of_their_identity_only(farm):
    await farm.start("good")
    await farm.start("other", "other")
    with FakeRun(farm) as run, FakeRun(farm, "1" * 64) as foreign:
        await asyncio.to_thread(run.until_slots, 3)  # two, and one to come; those of "other" are none
        for number in range(20):
            run.order(number, b"module %d" % number)
        for number in range(20):
            assert await asyncio.to_thread(run.answer, number) == (library_of(b"module %d" % number), "")
        foreign.order(1, b"module")
        assert await asyncio.to_thread(foreign.answer, 1) == (b"", "")
        assert foreign.slots == 0
        await until(lambda: farm.row("good")["built"] == 20, PATIENCE_S)
        await until(lambda: farm.row("other")["state"].startswith("no match"), PATIENCE_S)


@pytest.mark.parametrize("behaviour", ["garbage", "nothing", "another", "full", "raises"])
async def test_what_a_builder_gets_wrong_is_never_taken_and_excludes_it(farm, behaviour):
    await farm.start("wrong", behaviour)
    with FakeRun(farm) as run:
        await asyncio.to_thread(run.until_slots, 3)
        for number in range(MAX_FAULTS):
            run.order(number, b"module")
            assert await asyncio.to_thread(run.answer, number) == (b"", "")
        await asyncio.to_thread(run.until_slots, 0)
    await until(lambda: farm.row("wrong")["state"].startswith("excluded: 3 faults"), PATIENCE_S)
    assert len(farm.events.of("builder.excluded")) == 1


async def test_a_candidate_that_kills_three_builders_is_to_blame_and_others_are_not(farm):
    for number in range(MAX_KILLED):
        await farm.start(f"b{number}", "good:1")
    with FakeRun(farm) as run:
        await asyncio.to_thread(run.until_slots, 8)
        run.order(0, KILLER)
        for number in (1, 2, 3):
            run.order(number, b"module %d" % number)
        library, error = await asyncio.to_thread(run.answer, 0)
        assert library == b""
        assert error.startswith("it killed 3 builders, the last one alone: b")
        for number in (1, 2, 3):  # built by another builder, or to be built by the run, but not to blame
            assert (await asyncio.to_thread(run.answer, number))[1] == ""
    assert len(farm.events.of("builder.killed")) == 1


async def test_when_all_builders_are_killed_the_run_has_its_candidates_back_once(farm):
    builders = [await farm.start(f"b{number}", "never") for number in range(2)]
    with FakeRun(farm) as run:
        await asyncio.to_thread(run.until_slots, 5)
        for number in range(5):
            run.order(number, b"module %d" % number)
        await until(lambda: sum(each["building"] for each in farm.process.rows) == 5, PATIENCE_S)
        for each in builders:
            os.kill(each.pid, signal.SIGKILL)
        for number in range(5):
            assert await asyncio.to_thread(run.answer, number) == (b"", "")
        await asyncio.to_thread(run.until_slots, 0)


@pytest.mark.usefixtures("_impatient")
async def test_a_stopped_builder_gets_nothing_more(farm):
    builder = await farm.start("stopped")
    with FakeRun(farm) as run:
        await asyncio.to_thread(run.until_slots, 3)
        os.kill(builder.pid, signal.SIGSTOP)
        await asyncio.to_thread(run.until_slots, 0)
    await until(lambda: farm.row("stopped")["state"].startswith("silent for"), PATIENCE_S)


async def test_a_removed_builder_is_cut_off_and_not_let_in_again(farm):
    gone, stays = await farm.start("gone"), await farm.start("stays")
    await farm.process.remove("gone")
    await until(lambda: not farm.row("gone")["slots"], PATIENCE_S)
    for ended in (gone, await farm.start_again("gone")):
        await asyncio.to_thread(ended.join, PATIENCE_S)
        assert ended.exitcode == ExitCode.NOT_ALLOWED
        assert (farm.place / "gone" / ENDED).read_text().endswith("does not know the builder gone: it was removed")
    left = len(farm.events.of("builder.joined"))
    with FakeRun(farm) as run:
        await asyncio.to_thread(run.until_slots, 3)
        for number in range(30):
            run.order(number, b"module %d" % number)
            assert (await asyncio.to_thread(run.answer, number))[0]
    assert stays.is_alive()
    assert len(farm.events.of("builder.joined")) == left
    assert [row["name"].partition("/")[0] for row in await farm.process.all()] == ["stays"]
    with pytest.raises(UserError, match="there is no builder 'gone'"):
        await farm.process.remove("gone")


async def test_a_removed_builders_orders_are_built_by_another_one(farm):
    await farm.start("gone", "never")
    with FakeRun(farm) as run:
        await asyncio.to_thread(run.until_slots, 3)
        for number in range(3):
            run.order(number, b"module %d" % number)
        await until(lambda: farm.row("gone")["building"] == 3, PATIENCE_S)
        await farm.start("stays")
        await farm.process.remove("gone")
        for number in range(3):
            assert await asyncio.to_thread(run.answer, number) == (library_of(b"module %d" % number), "")
    await until(lambda: farm.row("stays")["built"] == 3, PATIENCE_S)
    assert farm.events.of("builder.killed") == []


async def test_two_runs_share_the_builders_until_both_have_what_they_want(farm):
    await farm.start("shared", "good:0.01")
    with FakeRun(farm) as greedy, FakeRun(farm) as modest:
        await asyncio.to_thread(modest.until_slots, 2)
        greedy_ends = asyncio.create_task(asyncio.to_thread(_flood, greedy, modest))
        for number in range(20):
            modest.order(number, b"module %d" % number)
            assert (await asyncio.to_thread(modest.answer, number))[0] == library_of(b"module %d" % number)
        await greedy_ends
        built = len(greedy.answers) + len(modest.answers)
        await until(lambda: farm.row("shared")["built"] == built, PATIENCE_S)


def _flood(run, until_served):
    """Keep as many orders under way as are granted, until the other run has had its twenty."""
    ordered = 0
    while len(until_served.answers) < 20 or len(run.answers) < ordered:
        while ordered - len(run.answers) < run.slots and len(until_served.answers) < 20:
            run.order(ordered, b"flood %d" % ordered)
            ordered += 1
        run.read()
    assert all(library for _, library in run.answers.values())


async def test_a_token_is_good_once_at_its_farm_and_until_a_later_one_of_that_name(farm, tmp_path):
    former, token = await farm.token("a"), await farm.token("a")
    foreign = replace(token, host_certificate=token.certificate)
    with pytest.raises(NotAllowedError, match="is not the farm that made this token"):
        await asyncio.to_thread(join, foreign, tmp_path / "a")
    with pytest.raises(NotAllowedError, match="does not take this token"):
        await asyncio.to_thread(join, former, tmp_path / "a")
    assert [row["state"] for row in await farm.process.all()] == ["has a token, has not joined"]
    await asyncio.to_thread(join, token, tmp_path / "a")
    assert [row["state"] for row in await farm.process.all()] == ["away"]
    with pytest.raises(NotAllowedError, match="does not take this token"):
        await asyncio.to_thread(join, token, tmp_path / "b")
    with pytest.raises(UserError, match="there is a builder 'a'"):
        await farm.token("a")
    with pytest.raises(HostError, match="does not answer"):
        await asyncio.to_thread(join, replace(token, port=1), tmp_path / "c")


async def test_a_machine_with_another_release_keeps_its_token(farm, tmp_path):
    token = await farm.token("a")
    with (
        mock.patch.object(membership, "RELEASE", "another"),
        pytest.raises(UserError, match="this machine has farm another, the host has"),
    ):
        await asyncio.to_thread(join, token, tmp_path / "a")
    assert [row["state"] for row in await farm.process.all()] == ["has a token, has not joined"]


async def test_a_builder_that_another_host_of_the_lab_removes_is_cut_off(farm):
    builder = await farm.start("gone")
    await farm.store.builders.remove("gone")
    await asyncio.to_thread(builder.join, PATIENCE_S)
    assert builder.exitcode == ExitCode.NOT_ALLOWED


async def test_what_a_builder_has_built_is_counted_after_it_has_left(farm):
    builder = await farm.start("good")
    with FakeRun(farm) as run:
        await asyncio.to_thread(run.until_slots, 3)
        run.order(1, b"module")
        await asyncio.to_thread(run.answer, 1)
    builder.kill()
    await until(lambda: farm.store.builders.all()[0].built, PATIENCE_S)
    ((row,)) = await farm.process.all()
    assert (row["state"], row["built"], row["versions"]["tvm"]) == ("away", 1, "0.27.0")


async def test_a_run_that_speaks_another_language_ends_alone(farm):
    await farm.start("good")
    with FakeRun(farm) as run:
        for garbage in (b"hello\n", b'{"number": -1}\n', b'{"payload_bytes": "x"}\n'):
            with FakeRun(farm) as other:
                other.link.sendall(garbage)
                while await asyncio.to_thread(other.link.recv, 1 << 16):
                    pass
        run.order(1, b"module")
        assert (await asyncio.to_thread(run.answer, 1))[0] == library_of(b"module")
        assert IDENTITY in farm.row("good")["identity"]


async def test_a_farm_that_stops_leaves_no_socket_of_builders(tmp_path):
    async with BuilderFarm.running(tmp_path):
        assert (tmp_path / "builders.sock").is_socket()
        assert list((tmp_path / "builders").glob("dask-*"))  # and none in /tmp
    assert not (tmp_path / "builders.sock").exists()


def open_files():
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("turns", range(8))
async def test_a_stop_while_the_process_is_started_leaves_nothing_open(tmp_path, turns):
    farm = BuilderFarm(tmp_path)
    assert await farm.process.all() == []  # the store opens what it reads with
    before = open_files()
    running = asyncio.create_task(farm.process.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    await end_tasks(running)
    await asyncio.sleep(0)  # asyncio closes a socket one turn later
    assert open_files() == before
    farm.store.close()


async def test_a_process_whose_daemon_ends_before_its_first_message_ends_without_a_traceback(tmp_path):
    ours, theirs = socket.socketpair()
    with theirs:
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", process.SERVER, str(theirs.fileno()),
            pass_fds=[theirs.fileno()], stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    ours.close()
    assert await server.communicate() == (None, b"")
    assert server.returncode == 0
