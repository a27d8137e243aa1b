"""Calls over a real socket: answers, progress, streams, errors, roles, callers that go away, garbage."""

import asyncio
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import zmq

from farm.common.errors import Code, FarmError, HostError, PhoneError
from farm.control import callers, limits, router
from farm.control.callers import LocalUsers, Role
from farm.control.client import ControlClient
from farm.control.messages import MAX_FRAME_BYTES
from tests.integration.control.served import FLOOD, ServedControl
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S, until

ROOT = Path(__file__).parents[3]


async def test_a_call_is_answered_and_the_kernel_names_the_caller(door):
    answer = await door.call("echo", text="ä", number=1)
    assert answer["fields"] == {"text": "ä", "number": 1}
    assert answer["user"] == "root" if os.getuid() == 0 else answer["user"]


async def test_progress_comes_ahead_of_the_answer(door):
    seen = []
    assert await door.call("count", on_progress=seen.append) == {"counted": 3}
    assert seen == [{"number": 0}, {"number": 1}, {"number": 2}]

    def stream():
        with ControlClient(door.path) as client:
            return list(client.stream("count"))

    assert await asyncio.to_thread(stream) == [*seen, {"counted": 3}]


async def test_signs_of_work_are_not_progress(door):
    seen = []
    assert await door.call("slow", on_progress=seen.append) == {"done": True}
    assert seen == []


async def test_a_slow_reader_gets_everything_and_holds_nobody_up(door):
    half_read, go_on = threading.Event(), threading.Event()

    def read_slowly():
        with ControlClient(door.path) as client:
            stream = client.stream("flood")
            seen = [next(stream)["number"]]
            half_read.set()
            assert go_on.wait(HANG_S)
            return seen + [answer["number"] for answer in stream if "number" in answer]

    reading = asyncio.create_task(asyncio.to_thread(read_slowly))
    await asyncio.to_thread(half_read.wait, 10)
    await door.call("echo")
    go_on.set()
    assert await reading == list(range(FLOOD))


async def test_unread_answers_are_kept_up_to_a_size_and_the_socket_stays_open(door, monkeypatch):
    monkeypatch.setattr(door.server._router._unread._connections, "per_key", 4 << 20)
    monkeypatch.setattr(router, "PATIENCE_S", 0.1)
    sha256 = door.artifacts.add(os.urandom(MAX_FRAME_BYTES))
    asked, calls = 60, door.server._router._calls
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.RCVHWM, 1)
        client.connect(door.server.endpoint)
        for number in range(asked):
            header = {"v": 1, "id": str(number), "kind": "artifact.get", "sha256": sha256, "offset": 0}
            client.send(json.dumps(header).encode())
        await until(lambda: calls)
        await until(lambda: not calls)
        assert 0 < door.server._router._unread._users.of(os.getuid()) <= 4 << 20
        assert (await door.call("echo", text="others"))["fields"]["text"] == "others"
        unread, looked = door.server._router._unread, []
        fits = type(unread).fits
        monkeypatch.setattr(type(unread), "fits", lambda *told: looked.append(told) or fits(*told))
        client.send(json.dumps(header | {"id": "refused"}).encode())  # told so, behind all that is unread
        await until(lambda: looked)  # before anything is read
        answers = []
        while not answers or answers[-1][0]["id"] != "refused":
            assert await asyncio.to_thread(client.poll, 10_000)
            head, *frames = client.recv_multipart()
            answers.append((json.loads(head), frames))
        assert 3 <= sum(bool(frames) for _, frames in answers) < asked
        assert answers[-1][0]["error"]["code"] == "busy"
        await until(lambda: not unread._users.of(os.getuid()))  # sent, as its socket has taken it
        client.send(json.dumps(header | {"id": "again"}).encode())
        assert await asyncio.to_thread(client.poll, 10_000)
        assert len(client.recv_multipart()[-1]) == MAX_FRAME_BYTES


async def test_requests_that_hold_much_for_long_are_refused(door, monkeypatch):
    """Eight frames of 1 MiB lived as long as each `events`: 192 of them, of somebody who may only look, are 1.5 GB."""
    padded = {"v": 1, "kind": "never", "padding": "x" * 10_000}
    monkeypatch.setattr(limits, "MAX_HELD_BYTES_PER_USER", 2 * limits.JSON_IN_MEMORY * 10_100)
    calls = limits.CallLimiter(limits.CallQuota(operators=frozenset()))
    monkeypatch.setattr(door.server._router, "_call_limiter", calls)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.connect(door.server.endpoint)

        async def refused(*frames):
            client.send_multipart(frames)
            while True:  # behind signs of work
                assert await asyncio.to_thread(client.poll, 10_000)
                reply = json.loads(client.recv())
                if "error" in reply:
                    return reply["id"], reply["error"]["code"]

        for name in ("first", "second"):
            client.send(json.dumps(padded | {"id": name}).encode())
        assert await refused(json.dumps(padded | {"id": "third"}).encode()) == ("third", "busy")
        small = {"v": 1, "kind": "never", "id": "frame"}
        assert await refused(json.dumps(small).encode(), b"x") == ("frame", "protocol")
        await until(lambda: len(door.server._router._calls) == 2)


@pytest.fixture
def frequent_signs(monkeypatch):
    monkeypatch.setattr(router, "SIGN_INTERVAL_S", 0.1)


@pytest.mark.usefixtures("frequent_signs")
async def test_a_stream_that_says_nothing_ends_at_its_limit(door):
    def stream():
        with ControlClient(door.path) as client:
            return list(client.stream("never", 0.7))  # the daemon's own sign of work comes before

    with pytest.raises(TimeoutError, match=r"'never' had no answer within 0\.7 s"):
        await asyncio.to_thread(stream)
    async with asyncio.timeout(HANG_S):
        await door.cancelled.wait()


async def test_errors_arrive_as_they_were_raised(door):
    with pytest.raises(PhoneError, match="on fire") as caught:
        await door.call("fails")
    assert (caught.value.hint, caught.value.evidence) == ("put it out", "smoke")
    with pytest.raises(FarmError, match="KeyError"):
        await door.call("bug")
    with pytest.raises(FarmError, match="not JSON"):
        await door.call("odd")
    with raises_code(Code.NO_SUCH_KIND, match="'nonsense'"):
        await door.call("nonsense")


async def test_root_and_the_service_operate_and_other_users_view():
    users = LocalUsers(service_uid=4242, group="no-such-group-here")
    roles = [(await users.principal_of(uid)).role for uid in (0, 4242, 4243)]
    assert roles == [Role.OPERATOR, Role.OPERATOR, Role.VIEWER]


async def test_a_slow_name_service_is_asked_once_a_minute_and_never_on_the_loop(monkeypatch):
    now, asked, answer = [0.0], [], threading.Event()

    def slow(uid):
        asked.append(threading.current_thread())
        answer.wait(HANG_S)
        return f"user-{uid}"

    monkeypatch.setattr(callers, "user_name", slow)
    users = LocalUsers(service_uid=4242, clock=lambda: now[0])
    waiting = [asyncio.create_task(users.principal_of(4242)) for _ in range(3)]
    await until(lambda: asked)  # the loop continues meanwhile
    answer.set()
    assert {principal.user for principal in await asyncio.gather(*waiting)} == {"user-4242"}
    await users.principal_of(4242)
    assert len(asked) == 1
    now[0] = callers.ROLE_CACHE_S + 1
    await users.principal_of(4242)
    assert len(asked) == 2
    assert threading.main_thread() not in asked


@pytest.mark.usefixtures("frequent_signs")
async def test_a_caller_that_goes_away_ends_its_call(door):
    program = (
        "import sys; from pathlib import Path; from farm.control.client import ControlClient;"
        "ControlClient(Path(sys.argv[1])).call('never')"
    )
    caller = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(door.path), cwd=ROOT)
    try:
        await asyncio.wait_for(door.began.wait(), HANG_S)
    finally:
        caller.kill()
        await caller.wait()
    await asyncio.wait_for(door.cancelled.wait(), HANG_S)


async def test_a_daemon_that_stops_says_so_to_those_who_wait(tmp_path):
    door = ServedControl(tmp_path)
    await door.server.start()
    waiting = asyncio.create_task(door.call("never"))
    await asyncio.wait_for(door.began.wait(), HANG_S)
    await door.server.stop()
    async with asyncio.timeout(HANG_S):
        with pytest.raises(HostError, match="is stopping") as caught:
            await waiting
    assert caught.value.code == "stopping"
    assert door.cancelled.is_set()


async def test_garbage_never_closes_the_socket(door):
    context = zmq.Context()
    try:
        for frames in (
            [b""], [b"x"], [b"", b"", b""], [b"\xff" * 100], [b'{"v":1}'], [b'{"v":1,"id":"a","kind":1}'],
            [b"{}", b"x" * (MAX_FRAME_BYTES + 1)], [b"[" * 50_000], [b"{}"] * 20,
        ):  # fmt: skip
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 500)
            dealer.connect(door.server.endpoint)
            dealer.send_multipart(frames)
            dealer.close()
        answered = context.socket(zmq.DEALER)
        answered.setsockopt(zmq.LINGER, 0)
        answered.connect(door.server.endpoint)
        answered.send(b'{"v":9,"id":"mine","kind":"echo"}')
        assert await asyncio.to_thread(answered.poll, 5000)
        reply = json.loads(answered.recv())
        answered.close()
        assert reply["id"] == "mine"
        assert reply["error"]["code"] == "protocol"
    finally:
        await asyncio.to_thread(context.term)
    _, writer = await asyncio.open_unix_connection(str(door.path))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    await writer.drain()
    writer.close()
    assert (await door.call("echo"))["fields"] == {}
