"""Daemons that are not there, stuck, still starting or already there, and what their clients are told."""

import asyncio
import contextlib
import errno
import json
import socket
import threading
from pathlib import Path

import pytest
import zmq

from farm.common.errors import DaemonUnreachableError
from farm.control import address
from farm.control.artifacts import ArtifactFolder
from farm.control.client import ControlClient
from farm.control.limits import ConnectionLimiter
from farm.control.listeners import ControlSocketError
from farm.control.server import ControlServer
from tests.integration.control.served import ServedControl

ROOT = Path(__file__).parents[3]


def test_no_daemon_is_said_with_a_hint(tmp_path):
    with pytest.raises(DaemonUnreachableError, match="no farm daemon listens") as caught:
        ControlClient(tmp_path / "control.sock").call("status")
    assert "farm serve" in caught.value.hint


@pytest.fixture
def full_socket(tmp_path):
    """A socket that listens and whose queue is full."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(path))
        yield listener


def test_a_daemon_with_a_full_queue_is_busy_and_not_away(full_socket, tmp_path, monkeypatch):
    monkeypatch.setattr(address, "CONNECT_S", 0.05)
    with pytest.raises(DaemonUnreachableError, match="is busy"):
        ControlClient(tmp_path / "control.sock").call("status")


def test_a_full_queue_is_waited_for(full_socket, tmp_path):
    with socket.socket(socket.AF_UNIX) as client:
        threading.Timer(0.05, lambda: full_socket.accept()[0].close()).start()
        address.connect_unix(client, tmp_path / "control.sock", 10.0)


async def test_a_socket_whose_queue_is_full_is_taken(full_socket, tmp_path):
    server = ControlServer(tmp_path / "control.sock", artifacts=ArtifactFolder(tmp_path / "artifacts"))
    with pytest.raises(ControlSocketError, match="another process listens"):
        await server.start()


def test_a_stuck_daemon_is_given_up_after_two_seconds(tmp_path):
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{tmp_path}/control.sock")
    try:
        with pytest.raises(DaemonUnreachableError, match="did not answer for 2 s"):
            ControlClient(tmp_path / "control.sock").call("status")
    finally:
        router.close(linger=0)
        context.term()


def test_a_daemon_that_dies_at_work_is_away_and_not_stuck_and_the_next_one_is_asked(tmp_path):
    path, context = tmp_path / "control.sock", zmq.Context()
    first, second = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)

    def serve():
        """Take a question, die, and answer the next one as another daemon."""
        sender, raw = first.recv_multipart()
        first.send_multipart(
            [sender, json.dumps({"id": json.loads(raw)["id"], "more": True, "ok": {"at": 1}}).encode()]
        )
        began.wait()
        first.close(linger=0)
        second.bind(f"ipc://{path}")
        bound.set()
        sender, raw = second.recv_multipart()
        second.send_multipart([sender, json.dumps({"id": json.loads(raw)["id"], "ok": {"new": True}}).encode()])

    began, bound = threading.Event(), threading.Event()
    first.bind(f"ipc://{path}")
    daemon = threading.Thread(target=serve)
    daemon.start()
    with ControlClient(path) as client:
        with pytest.raises(DaemonUnreachableError, match="went away"):
            client.call("bundle.add", on_progress=lambda _: began.set())
        bound.wait()
        assert client.call("status") == {"new": True}
    daemon.join()
    second.close(linger=0)
    context.term()


async def test_a_starting_daemon_is_waited_for(tmp_path):
    door = ServedControl(tmp_path)
    with ControlClient(door.path) as client:
        with pytest.raises(DaemonUnreachableError):
            client.wait_until_up(30, alive=lambda: False)
        waiting = asyncio.create_task(asyncio.to_thread(client.wait_until_up, 10))
        await door.server.start()
        await waiting
        assert (await asyncio.to_thread(client.call, "ping"))["role"] == "operator"
    await door.server.stop()


async def test_a_second_daemon_is_refused_and_a_dead_ones_socket_is_replaced(door, tmp_path):
    second = ControlServer(door.path, artifacts=door.artifacts)
    with pytest.raises(ControlSocketError, match="another process listens"):
        await second.start()
    assert (await door.call("echo"))["fields"] == {}
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
        dead.listen()
    assert stale.exists()
    third = ControlServer(stale, artifacts=door.artifacts)
    await third.start()
    await third.stop()


async def test_a_path_too_long_for_a_socket_is_explained(tmp_path):
    server = ControlServer(tmp_path / ("x" * 120) / "control.sock", artifacts=ArtifactFolder(tmp_path / "a"))
    with pytest.raises(ControlSocketError, match="longer than 107"):
        await server.start()


async def test_a_socket_without_descriptors_leaves_nothing_open(tmp_path, monkeypatch):
    def refuse(limiter, context, watched):
        contexts.append(context)
        raise zmq.ZMQError(errno.EMFILE)

    contexts = []
    monkeypatch.setattr(ConnectionLimiter, "watch", refuse)
    with pytest.raises(zmq.ZMQError, match="Too many open files"):
        await ServedControl(tmp_path).server.start()
    with pytest.raises(zmq.ZMQError):  # it has been terminated
        contexts[0].socket(zmq.PAIR)
