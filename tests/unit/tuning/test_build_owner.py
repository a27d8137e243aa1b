"""The owner's side of a build server: whoever asked for a candidate hears of its end, and whose fault it was."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import socket
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import pytest

from farm.common.errors import HostError
from farm.common.frames import FrameReader, frame
from farm.common.os_errors import host_errno
from farm.tuning import build_process, placement_rules
from farm.tuning.build_process import MAX_DEATHS, BuildError, BuildServerProcess
from farm.tuning.builder import BuildOwner, FarmBuilder
from farm.tuning.candidate import CandidateError, CannotBuildError
from farm.tuning.runner import CandidateQueue, QueuedCandidate
from tests.support.waiting import HANG_S, until

NOBODY = 1 << 23  # above every pid


class FakeServer:
    """The other end of a server's link, in this process."""

    made: ClassVar[list[FakeServer]] = []

    def __init__(self, again):
        self.made.append(self)
        ours, self.link = socket.socketpair()
        self.buried = threading.Event()
        self.server = BuildServerProcess(ours, NOBODY, self.buried.set, again)
        self._orders = self.link.makefile("rb")

    def answer(self, error="", number=0):
        """Take the next order, and answer it."""
        order = json.loads(self._orders.readline())
        self._orders.read(order["payload_bytes"])
        self.link.sendall(json.dumps({"number": order["number"], "error": error, "errno": number}).encode() + b"\n")

    def die(self):
        self._orders.close()
        self.link.close()


class FakeBuilders:
    """The process that has the farm's builders, for one run."""

    def __init__(self, path):
        self.path = str(path)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.path)
        self._listening.listen()
        self.link = self._listening
        self._messages = FrameReader()
        self._read = deque()

    def accept(self, slots):
        """The run connects."""
        self.link, _ = self._listening.accept()
        self.link.settimeout(HANG_S)
        assert self.message()[0]["identity"] == "identity"
        self.send({"slots": slots})

    def message(self):
        while not self._read:
            self._read += self._messages.feed(self.link.recv(1 << 16))
        return self._read.popleft()

    def send(self, fields, library=b""):
        self.link.sendall(frame(fields, library))

    def close(self):
        self.link.close()
        self._listening.close()


def described(owner, given, number):
    if owner._remote is not None:
        owner._remote.begin("identity")
    return {"number": number, "key": str(given)}, b"module"


@pytest.fixture
def begin(tmp_path, monkeypatch):
    monkeypatch.setattr(BuildOwner, "_describe", described)
    begun = []

    def begin(server, builders=""):
        begun.append(BuildOwner(None, tmp_path, 5.0, server, builders))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


@pytest.fixture(autouse=True)
def _ends():
    yield
    while FakeServer.made:
        fake = FakeServer.made.pop()
        fake.die()
        fake.server.link.close()


def wait_until(condition):
    """In a loop of another thread: this one's is left as pytest-asyncio knows it."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, until(condition)).result()


def no_other():
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def test_what_the_host_could_not_build_is_the_hosts_fault_and_says_where(begin, tmp_path):
    fake = FakeServer(no_other)
    build = begin(fake.server)
    asked, twin, wrong = build.submit("a"), build.submit("a"), build.submit("b")
    fake.answer("LinkError: ld cannot link", errno.ENOSPC)
    fake.answer("TVMError: no such axis")
    for future in (asked, twin):
        with pytest.raises(CannotBuildError, match=rf"in {tmp_path} \(.* MB free\): No space left") as raised:
            future.result(HANG_S)
        assert "free some room there" in raised.value.hint
    with pytest.raises(BuildError, match="no such axis"):
        wrong.result(HANG_S)


def test_a_folder_that_cannot_be_made_is_the_hosts_fault(begin, tmp_path):
    build = begin(FakeServer(no_other).server)
    shutil.rmtree(tmp_path / "building")
    with pytest.raises(CannotBuildError, match="No such file"):
        build.submit("a").result(HANG_S)


def test_no_cache_at_all_is_the_hosts_fault(tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(CannotBuildError, match="Not a directory"):
        FarmBuilder(cache=tmp_path / "cache", server=FakeServer(no_other).server)


def test_when_no_other_server_can_be_started_nobody_waits_for_ever(begin):
    fake = FakeServer(no_other)
    build = begin(fake.server)
    asked = build.submit("a")
    fake.die()
    with pytest.raises(CannotBuildError, match="temporarily unavailable"):
        asked.result(HANG_S)
    with pytest.raises(CannotBuildError):
        build.submit("b").result(HANG_S)


def test_servers_that_all_die_are_no_candidates_fault(begin):
    started = []

    def dies():
        started.append(FakeServer(dies))
        started[-1].die()
        return started[-1].server

    build = begin(dies())
    with pytest.raises(CannotBuildError, match="died"):
        build.submit("a").result(HANG_S)
    assert len(started) == 1 + MAX_DEATHS


def test_a_server_that_dies_in_the_middle_of_an_answer_is_replaced(begin, tmp_path):
    second = FakeServer(no_other)
    first = FakeServer(lambda: second.server)
    asked = begin(first.server).submit("a")
    first.link.sendall(b'{"number": 1, "err')
    first.die()
    (tmp_path / "candidates" / "a.so").touch()
    second.answer()
    assert asked.result(HANG_S).exists()


def test_a_server_that_is_started_while_the_run_is_closed_is_ended(begin):
    asked_for, closed = threading.Event(), threading.Event()

    def again():
        asked_for.set()
        assert closed.wait(HANG_S)
        return second.server

    second = FakeServer(no_other)
    first = FakeServer(again)
    build = begin(first.server)
    asked = build.submit("a")
    first.die()
    assert asked_for.wait(HANG_S)
    closing = threading.Thread(target=build.close)
    closing.start()
    wait_until(lambda: build._local.over)
    closed.set()
    closing.join()
    with pytest.raises(BuildError, match="closed"):
        asked.result(HANG_S)
    assert second.buried.wait(HANG_S)


def raised(error, *, cause=None, context=None, suppress=False):
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, suppress
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (raised(HostError("the linker does not run"), cause=OSError(errno.EMFILE, "x")), errno.EMFILE),
        (PermissionError(errno.EACCES, "x"), errno.EACCES),
        (FileNotFoundError(errno.ENOENT, "x"), 0),
        (ValueError("x"), 0),
        (raised(ValueError("the candidate's own fault"), context=FULL, suppress=True), 0),  # raised from None
    ],
)
def test_the_hosts_errno_is_found_behind_what_was_made_of_it(error, number):
    assert host_errno(error) == number


@pytest.mark.parametrize(("error", "blamed"), [(BuildError("no"), CandidateError), (HostError("full"), HostError)])
def test_a_run_blames_a_candidate_for_its_own_faults_only(error, blamed):
    desk = CandidateQueue(None, 1.0, lambda _: None, lambda _: None)
    built, answer = Future(), Future()
    desk.put(QueuedCandidate("a.so", "cpu", (), answer), built)
    built.set_exception(error)
    assert type(answer.exception(HANG_S)) is blamed
    desk.close()


def test_an_empty_library_that_a_power_cut_left_is_built_again(begin, tmp_path):
    """No phone could load it, and a good candidate would be noted as one that failed."""
    fake = FakeServer(no_other)
    build = begin(fake.server)
    (tmp_path / "candidates" / "a.so").touch()
    asked = build.submit("a")
    (tmp_path / "candidates" / "a.so").write_bytes(b"built")
    fake.answer()
    assert asked.result(HANG_S).read_bytes() == b"built"
    assert build.submit("a").result(HANG_S).read_bytes() == b"built"  # and then it is not asked for


def test_a_server_that_hangs_is_replaced(begin, tmp_path, monkeypatch):
    """A search held its phones until its time was over, and nobody was told."""
    second = FakeServer(no_other)

    def again():
        monkeypatch.setattr(build_process, "SERVER_HANG_S", HANG_S)
        return second.server

    first = FakeServer(again)
    monkeypatch.setattr(build_process, "POLL_S", 0.001)
    monkeypatch.setattr(build_process, "SERVER_HANG_S", -5.0)  # no answer is waited for
    asked = begin(first.server).submit("a")
    assert first.buried.wait(HANG_S)
    (tmp_path / "candidates" / "a.so").write_bytes(b"built")
    second.answer()
    assert asked.result(HANG_S).read_bytes() == b"built"


@pytest.fixture
def with_builders(begin, tmp_path):
    """A run with a build server that has built "first", and two slots at builders."""
    builders, fake = FakeBuilders(tmp_path / "sock"), FakeServer(no_other)
    owner = begin(fake.server, builders.path)
    asked = owner.submit("first")  # it waits for nobody
    builders.accept(2)
    (tmp_path / "candidates" / "first.so").write_bytes(b"here")
    fake.answer()
    assert asked.result(HANG_S).read_bytes() == b"here"
    wait_until(lambda: owner._placement.remote_slots == 2)
    yield owner, fake, builders
    builders.close()


def test_a_builders_library_is_delivered_and_counted(with_builders):
    owner, _, builders = with_builders
    asked = owner.submit("a")
    fields, module = builders.message()
    assert (fields["key"], module) == ("a", b"module")
    builders.send({"number": fields["number"]}, b"library")
    assert asked.result(HANG_S).read_bytes() == b"library"
    assert owner.counts == {"local": 1, "remote": 1}


@pytest.mark.parametrize("killed", [False, True])
def test_what_no_builder_built_is_built_here_unless_it_killed_them(with_builders, killed):
    owner, fake, builders = with_builders
    asked = owner.submit("a")
    builders.send({"number": builders.message()[0]["number"]} | ({"error": "it killed 3 builders"} if killed else {}))
    if not killed:
        fake.answer("TVMError: no such axis")
    with pytest.raises(BuildError, match="it killed 3 builders" if killed else "no such axis"):
        asked.result(HANG_S)


def test_when_the_builders_process_ends_all_is_built_here_and_counted_once(with_builders, tmp_path):
    owner, fake, builders = with_builders
    asked = [owner.submit(each) for each in "ab"]
    builders.close()
    for each in "ab":
        (tmp_path / "candidates" / f"{each}.so").write_bytes(b"here")
        fake.answer()
    assert [each.result(HANG_S).read_bytes() for each in asked] == [b"here", b"here"]
    assert owner.counts == {"local": 3, "remote": 0}


def test_what_is_late_is_built_here_too_and_the_builder_is_told(with_builders, tmp_path, monkeypatch):
    owner, fake, builders = with_builders
    monkeypatch.setattr(placement_rules, "MIN_WAIT_S", 0.0)
    asked = owner.submit("a")
    number = builders.message()[0]["number"]
    builders.send({"slots": 2})
    (tmp_path / "candidates" / "a.so").write_bytes(b"here")
    fake.answer()
    assert asked.result(HANG_S).read_bytes() == b"here"
    assert builders.message()[0]["cancel"] == number
    builders.send({"number": number}, b"too late")
    other = owner.submit("b")
    builders.send({"number": builders.message()[0]["number"]}, b"library")
    assert other.result(HANG_S).exists()
    assert asked.result().read_bytes() == b"here"
    assert owner.counts == {"local": 2, "remote": 1}


def test_without_the_builders_process_everything_is_built_here(begin, tmp_path):
    fake = FakeServer(no_other)
    asked = begin(fake.server, str(tmp_path / "nobody")).submit("a")
    (tmp_path / "candidates" / "a.so").write_bytes(b"here")
    fake.answer()
    assert asked.result(HANG_S).read_bytes() == b"here"
