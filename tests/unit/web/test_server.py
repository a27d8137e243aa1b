"""uvicorn in our own loop: its port, its signals, its end, and those who neither ask nor read."""

import asyncio
import signal
import socket
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from farm.config import FarmConfig, WebConfig
from farm.config.consistency import mistakes
from farm.web import server as module
from farm.web.server import WebPortError, WebServer
from tests.support.waiting import HANG_S, until
from tests.support.web_desk import Desk, Page, status
from tests.support.web_rows import view

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nx"  # the rest never comes


@asynccontextmanager
async def serving(app):
    server = WebServer("127.0.0.1", 0)
    server.start(app)
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
def page():
    return Page(Desk(status=status(view())))


@pytest.fixture
async def client():
    async with httpx.AsyncClient() as client:
        yield client


class Peer:
    """Whoever is connected without being a browser."""

    def __init__(self, reader, writer):
        self.reader, self.writer, self.send = reader, writer, writer.write

    async def answered(self):
        """Return when a request of its was answered."""
        async with asyncio.timeout(HANG_S):
            assert b" 200 " in await self.reader.readuntil(b"done")

    async def cut(self):
        """Return when the server has ended the connection."""
        async with asyncio.timeout(HANG_S):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""


@pytest.fixture
async def connect():
    peers = []

    async def connect(server):
        peers.append(Peer(*await asyncio.open_connection(*server.address, limit=1024)))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.writer.transport.abort()


async def answer_at_the_end(scope, receive, send):
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


def late_app():
    """An app that answers when the test says so, and who asked it."""
    asked, go = [], asyncio.Event()

    async def app(scope, receive, send):
        asked.append(scope)
        await go.wait()
        await answer_at_the_end(scope, receive, send)

    return app, asked, go


def test_a_port_that_is_taken_is_told_with_the_way_out():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(WebPortError) as refused:
        WebServer("127.0.0.1", other.getsockname()[1])
    assert "cannot be opened: another program has it" in refused.value.message
    with pytest.raises(WebPortError, match=r"192\.0\.2\.1:0 cannot be opened"):  # no address of ours
        WebServer("192.0.2.1", 0)


async def test_pages_come_over_a_real_socket_without_a_word_of_the_server(caplog, page, client):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    async with serving(page.app) as server:
        answer = await client.get(server.url)
        assert (answer.status_code, "pixel" in answer.text, "server" in answer.headers) == (200, True, False)
        for get in (client.get, client.head):
            assert (await get(server.url, headers={"host": "evil.example"})).status_code == 421
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers  # the daemon's
    assert caplog.text == ""


@pytest.mark.parametrize("path", ["", "jobs/bench-1/nowhere/x", "sign-in", "metrics", "events", "favicon.ico"])
async def test_head_is_answered_as_get_is_and_without_a_body(page, client, path):
    async with serving(page.app) as server:
        head = await client.head(server.url + path)
        assert (head.content, page.app.state.hints._readers) == (b"", set())
        async with client.stream("GET", server.url + path) as answer:
            assert head.status_code == answer.status_code
            for name in ("content-type", "content-length", "cache-control"):
                assert head.headers.get(name) == answer.headers.get(name), name
        await until(lambda: not page.app.state.hints._readers)


async def test_streams_resume_over_http_and_end_with_the_server(page, client):
    first, second = (page.events.publish(kind, "pixel") for kind in ("device.new", "device.ready"))
    heard = []

    async def listen(url):
        async with client.stream("GET", url + "events", headers={"last-event-id": str(first.seq)}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                heard.append(line)

    async with serving(page.app) as server:
        listening = asyncio.create_task(listen(server.url))
        await until(lambda: f"id: {second.seq}" in heard)
        third = page.events.publish("device.gone", "pixel")
        await until(lambda: f"id: {third.seq}" in heard)
        assert f"id: {first.seq}" not in heard
        page.app.state.hints.close()
    async with asyncio.timeout(HANG_S):
        await listening


async def test_a_stream_that_nobody_reads_any_more_is_let_go(page, client):
    async with serving(page.app) as server:
        async with client.stream("GET", server.url + "events"):
            await until(lambda: page.app.state.hints._readers)
        await until(lambda: not page.app.state.hints._readers)


async def test_whoever_does_not_read_is_cut(monkeypatch, connect):
    monkeypatch.setattr(module, "READER_PATIENCE_S", 0.05)
    over = asyncio.Event()

    async def until_gone(receive):
        while (await receive())["type"] != "http.disconnect":
            pass

    async def flood(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(until_gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        over.set()

    async with serving(flood) as server:
        (await connect(server)).send(GET)
        async with asyncio.timeout(HANG_S):
            await over.wait()


@pytest.mark.parametrize("answered", [0, 1], ids=["its first", "a later one"])
@pytest.mark.parametrize("unfinished", [b"GET / HT", POST], ids=["head", "body"])
async def test_each_request_has_its_time(monkeypatch, connect, unfinished, answered):
    monkeypatch.setattr(module, "REQUEST_PATIENCE_S", 0.05)
    async with serving(answer_at_the_end) as server:
        peer = await connect(server)
        for _ in range(answered):
            peer.send(GET)
            await peer.answered()
        peer.send(unfinished)
        await peer.cut()


async def test_bytes_one_by_one_win_no_time(monkeypatch, connect):
    monkeypatch.setattr(module, "REQUEST_PATIENCE_S", 0.05)
    async with serving(answer_at_the_end) as server:
        peer = await connect(server)
        cut = asyncio.ensure_future(peer.cut())
        peer.send(GET[:-2] + b"x: ")
        await until(lambda: peer.send(b"y") or cut.done())
        await cut


async def test_a_request_that_has_come_may_be_answered_late(connect):
    app, asked, go = late_app()
    async with serving(app) as server:
        peer = await connect(server)
        peer.send(GET)
        await until(lambda: asked)
        (connection,) = server._server.server_state.connections
        assert isinstance(connection, module._Protocol)
        assert connection._request._timer is None  # nothing runs that would cut it
        go.set()
        await peer.answered()


@pytest.mark.parametrize("silent", [b"", b"G", POST, GET])
async def test_idle_connections_are_closed_for_busy_ones(monkeypatch, client, connect, silent):
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    async with serving(answer_at_the_end) as server:
        peers = []
        for _ in range(6):
            peers.append(await connect(server))
            peers[-1].send(silent)
            if silent == GET:  # one that was answered and stays
                await peers[-1].answered()
        assert (await client.get(server.url)).text == "done"
        await peers[0].cut()


async def test_requests_under_way_are_not_cut_for_others(monkeypatch, client):
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    app, asked, go = late_app()
    async with serving(app) as server:
        first = [asyncio.ensure_future(client.get(server.url)) for _ in range(2)]
        await until(lambda: len(asked) == 2)
        assert (await client.get(server.url)).status_code == 503
        go.set()
        assert [(await each).text for each in first] == ["done", "done"]


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 9000 + b"\r\n"],
    ids=["bytes", "no host", "head"],
)
async def test_garbage_is_answered_400_and_the_next_one_is_served(page, client, connect, garbage):
    async with serving(page.app) as server:
        peer = await connect(server)
        peer.send(garbage)
        with suppress(ConnectionResetError):  # more came than it cared to read
            async with asyncio.timeout(HANG_S):
                answer = await peer.reader.read(4096)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert (await client.get(server.url)).status_code == 200


def test_mistakes_in_the_configuration_are_told():
    for name in ("http://farm.lab", "farm.lab:80", ""):
        (told,) = mistakes(FarmConfig(web=WebConfig(allow_hosts=(name,))))
        assert told[0].startswith("web.allow_hosts")
    config = WebConfig(host="::1", port=0, allow_hosts=("farm.lab", "10.0.0.7", "[fd00::7]"))
    assert not list(mistakes(FarmConfig(web=config)))
