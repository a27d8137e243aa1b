"""The owner's side of a build server: whoever asked for a candidate hears of its end, and whose fault it was."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest

from farm.common.errors import HostError
from farm.tuning import builder
from farm.tuning.builder import MAX_DEATHS, BuildError, BuildOwner, BuildServerProcess, FarmBuilder
from farm.tuning.candidate import CandidateError, Measured
from farm.tuning.host_faults import CannotBuildError, host_errno
from farm.tuning.runner import CandidateQueue, QueuedCandidate
from tests.support.waiting import until

NOBODY = 1 << 23  # above every pid
PATIENCE_S = 10.0


class FakeServer:
    """The other end of a server's link, in this process."""

    made: ClassVar[list[FakeServer]] = []

    def __init__(self, again: Callable[[], BuildServerProcess]) -> None:
        self.made.append(self)
        ours, self.link = socket.socketpair()
        self.buried = threading.Event()
        self.server = BuildServerProcess(ours, NOBODY, self.buried.set, again)
        self._orders = self.link.makefile("rb")

    def answer(self, error: str = "", number: int = 0) -> None:
        """Take the next order, and answer it."""
        order = json.loads(self._orders.readline())
        self._orders.read(order["module_bytes"])
        self.link.sendall(json.dumps({"number": order["number"], "error": error, "errno": number}).encode() + b"\n")

    def die(self) -> None:
        self._orders.close()
        self.link.close()


def described(_: BuildOwner, given: Any, number: int) -> tuple[str, bytes]:
    return str(given), json.dumps({"number": number, "module_bytes": 0}).encode() + b"\n"


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[BuildServerProcess], BuildOwner]]:
    monkeypatch.setattr(BuildOwner, "_describe", described)
    begun: list[BuildOwner] = []

    def begin(server: BuildServerProcess) -> BuildOwner:
        begun.append(BuildOwner(None, tmp_path, 5.0, server))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    yield
    while FakeServer.made:
        fake = FakeServer.made.pop()
        fake.die()
        fake.server.link.close()


def no_other() -> BuildServerProcess:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def test_what_the_host_could_not_build_is_the_hosts_fault_and_says_where(begin: Any, tmp_path: Path) -> None:
    fake = FakeServer(no_other)
    build = begin(fake.server)
    asked, twin, wrong = build.submit("a"), build.submit("a"), build.submit("b")
    fake.answer("LinkError: ld cannot link", errno.ENOSPC)
    fake.answer("TVMError: no such axis")
    for future in (asked, twin):
        with pytest.raises(CannotBuildError, match=rf"in {tmp_path} \(.* MB free\): No space left") as raised:
            future.result(PATIENCE_S)
        assert "free some room there" in raised.value.hint
    with pytest.raises(BuildError, match="no such axis"):
        wrong.result(PATIENCE_S)


def test_a_folder_that_cannot_be_made_is_the_hosts_fault(begin: Any, tmp_path: Path) -> None:
    build = begin(FakeServer(no_other).server)
    shutil.rmtree(tmp_path / "building")
    with pytest.raises(CannotBuildError, match="No such file"):
        build.submit("a").result(PATIENCE_S)


def test_no_cache_at_all_is_the_hosts_fault(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(CannotBuildError, match="Not a directory"):
        FarmBuilder(cache=tmp_path / "cache", server=FakeServer(no_other).server)


def test_when_no_other_server_can_be_started_nobody_waits_for_ever(begin: Any) -> None:
    fake = FakeServer(no_other)
    build = begin(fake.server)
    asked = build.submit("a")
    fake.die()
    with pytest.raises(CannotBuildError, match="temporarily unavailable"):
        asked.result(PATIENCE_S)
    with pytest.raises(CannotBuildError):
        build.submit("b").result(PATIENCE_S)


def test_servers_that_all_die_are_no_candidates_fault(begin: Any) -> None:
    started: list[FakeServer] = []

    def dies() -> BuildServerProcess:
        started.append(FakeServer(dies))
        started[-1].die()
        return started[-1].server

    build = begin(dies())
    with pytest.raises(CannotBuildError, match="died"):
        build.submit("a").result(PATIENCE_S)
    assert len(started) == 1 + MAX_DEATHS


def test_a_server_that_dies_in_the_middle_of_an_answer_is_replaced(begin: Any, tmp_path: Path) -> None:
    second = FakeServer(no_other)
    first = FakeServer(lambda: second.server)
    asked = begin(first.server).submit("a")
    first.link.sendall(b'{"number": 1, "err')
    first.die()
    (tmp_path / "candidates" / "a.so").touch()
    second.answer()
    assert asked.result(PATIENCE_S).exists()


def test_a_server_that_is_started_while_the_run_is_closed_is_ended(begin: Any) -> None:
    asked_for, closed = threading.Event(), threading.Event()

    def again() -> BuildServerProcess:
        asked_for.set()
        assert closed.wait(PATIENCE_S)
        return second.server

    second = FakeServer(no_other)
    first = FakeServer(again)
    build = begin(first.server)
    asked = build.submit("a")
    first.die()
    assert asked_for.wait(PATIENCE_S)
    closing = threading.Thread(target=build.close)
    closing.start()
    asyncio.run(until(lambda: build._over))
    closed.set()
    closing.join()
    with pytest.raises(BuildError, match="closed"):
        asked.result(PATIENCE_S)
    assert second.buried.wait(PATIENCE_S)


@pytest.mark.parametrize(("error", "blamed"), [(BuildError("no"), CandidateError), (HostError("full"), HostError)])
def test_a_run_blames_a_candidate_for_its_own_faults_only(error: Exception, blamed: type[Exception]) -> None:
    desk = CandidateQueue(None, 1.0, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    built: Future[Path] = Future()
    answer: Future[Measured] = Future()
    desk.put(QueuedCandidate("a.so", "cpu", (), answer), built)
    built.set_exception(error)
    assert type(answer.exception(PATIENCE_S)) is blamed
    desk.close()


def test_the_hosts_errno_is_found_behind_what_was_made_of_it() -> None:
    of_host = HostError("the linker does not run")
    of_host.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert host_errno(of_host) == errno.EMFILE
    assert host_errno(FileNotFoundError(errno.ENOENT, "x")) == host_errno(ValueError("x")) == 0


def test_an_error_raised_from_none_is_not_what_came_before_it() -> None:
    def of_candidate() -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            raise ValueError("the candidate's own fault") from None

    with pytest.raises(ValueError, match="own fault") as caught:
        of_candidate()
    assert host_errno(caught.value) == 0


def test_an_empty_library_that_a_power_cut_left_is_built_again(begin: Any, tmp_path: Path) -> None:
    """No phone could load it, and a good candidate would be noted as one that failed."""
    fake = FakeServer(no_other)
    build = begin(fake.server)
    (tmp_path / "candidates" / "a.so").touch()
    asked = build.submit("a")
    (tmp_path / "candidates" / "a.so").write_bytes(b"built")
    fake.answer()
    assert asked.result(PATIENCE_S).read_bytes() == b"built"
    assert build.submit("a").result(PATIENCE_S).read_bytes() == b"built"  # and then it is not asked for


def test_a_server_that_hangs_is_replaced(begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search held its phones until its time was over, and nobody was told."""
    second = FakeServer(no_other)

    def again() -> BuildServerProcess:
        monkeypatch.setattr(builder, "SERVER_HANG_S", PATIENCE_S)
        return second.server

    first = FakeServer(again)
    monkeypatch.setattr(builder, "POLL_S", 0.001)
    monkeypatch.setattr(builder, "SERVER_HANG_S", -5.0)  # no answer is waited for
    asked = begin(first.server).submit("a")
    assert first.buried.wait(PATIENCE_S)
    (tmp_path / "candidates" / "a.so").write_bytes(b"built")
    second.answer()
    assert asked.result(PATIENCE_S).read_bytes() == b"built"
