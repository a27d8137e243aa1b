"""uvicorn in our own loop: its port, its signals, its end, and those who neither ask nor read."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from farm.config import FarmConfig, WebConfig
from farm.config.consistency import mistakes
from farm.web import server as module
from farm.web.server import WebPortError, WebServer
from tests.support.waiting import HANG_S, until
from tests.support.web_desk import Desk, Page, status, view

CHUNK = b"x" * 65536
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[WebServer]:
    server = WebServer("127.0.0.1", 0)
    server.start(app)
    try:
        yield server
    finally:
        await server.stop()


def test_a_port_that_is_taken_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(WebPortError) as refused:
            WebServer("127.0.0.1", port)
    assert f"127.0.0.1:{port} cannot be opened: another program has it" in refused.value.message
    assert "port" in refused.value.hint


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(WebPortError, match=r"192\.0\.2\.1:0 cannot be opened"):
        WebServer("192.0.2.1", 0)


async def test_pages_come_over_a_real_socket_without_a_word_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    page = Page(Desk(status=status(view("pixel"))))
    async with page.client, serving(page.app) as server, httpx.AsyncClient() as client:
        answer = await client.get(server.url)
        assert answer.status_code == 200
        assert "pixel" in answer.text
        assert "server" not in answer.headers
        assert (await client.get(server.url, headers={"host": "evil.example"})).status_code == 421
    assert caplog.text == ""


async def test_head_is_answered_as_get_is_and_without_a_body() -> None:
    page = Page(Desk(status=status(view("pixel"))))
    paths = ("", "jobs/bench-1/nowhere/x", "sign-in", "metrics", "events", "favicon.ico")
    async with page.client, serving(page.app) as server, httpx.AsyncClient() as client:
        for path in paths:
            head = await client.head(server.url + path)
            assert not page.app.state.hints._readers
            assert head.content == b""
            async with client.stream("GET", server.url + path) as answer:
                assert head.status_code == answer.status_code, path
                for name in ("content-type", "content-length", "cache-control"):
                    assert head.headers.get(name) == answer.headers.get(name), (path, name)
            await until(lambda: not page.app.state.hints._readers)
        assert (await client.head(server.url, headers={"host": "evil.example"})).status_code == 421


async def test_the_daemons_signal_handlers_stay() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    page = Page(Desk(status=status()))
    async with page.client, serving(page.app) as server, httpx.AsyncClient() as client:
        await client.get(server.url)
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


async def test_streams_resume_over_http_and_end_with_the_server() -> None:
    page = Page(Desk())
    first = page.events.publish("device.new", "pixel")
    second = page.events.publish("device.ready", "pixel")
    async with page.client, httpx.AsyncClient() as client:
        server = WebServer("127.0.0.1", 0)
        server.start(page.app)
        heard: list[str] = []

        async def listen() -> None:
            async with client.stream("GET", server.url + "events", headers={"last-event-id": str(first.seq)}) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                async for line in answer.aiter_lines():
                    heard.append(line)

        listening = asyncio.create_task(listen())
        await until(lambda: f"id: {second.seq}" in heard)
        third = page.events.publish("device.gone", "pixel")
        await until(lambda: f"id: {third.seq}" in heard)
        assert f"id: {first.seq}" not in heard
        page.app.state.hints.close()
        await server.stop()
        await asyncio.wait_for(listening, HANG_S)


async def test_a_stream_that_nobody_reads_any_more_is_let_go() -> None:
    page = Page(Desk())
    async with page.client, serving(page.app) as server, httpx.AsyncClient() as client:
        async with client.stream("GET", server.url + "events") as answer:
            assert answer.status_code == 200
            await until(lambda: page.app.state.hints._readers)
        await until(lambda: not page.app.state.hints._readers)


async def test_whoever_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READER_PATIENCE_S", 0.05)
    over = asyncio.Event()

    async def flood(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(_gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            await asyncio.sleep(0)
        over.set()

    async with serving(flood) as server:
        _, writer = await asyncio.open_connection(*server.address, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(over.wait(), HANG_S)
        writer.transport.abort()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_whoever_asks_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_PATIENCE_S", 0.05)
    page = Page(Desk())
    async with page.client, serving(page.app) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET / HT")  # and no more
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(_to_its_end(reader), HANG_S)
        writer.close()


@pytest.mark.parametrize(
    "unfinished",
    [b"G", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nx"],
    ids=["head", "body"],
)
async def test_each_request_has_its_time_not_only_the_first(monkeypatch: pytest.MonkeyPatch, unfinished: bytes) -> None:
    monkeypatch.setattr(module, "REQUEST_PATIENCE_S", 0.05)
    async with serving(_answer_at_the_end) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(GET)
        assert await asyncio.wait_for(reader.readuntil(b"done"), HANG_S)
        writer.write(unfinished)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(_to_its_end(reader), HANG_S)
        writer.close()


async def test_bytes_one_by_one_win_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_PATIENCE_S", 0.05)
    async with serving(_answer_at_the_end) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        ending = asyncio.ensure_future(_to_its_end(reader))
        writer.write(GET[:-2] + b"x: ")

        def dripped() -> bool:
            writer.write(b"y")
            return ending.done()

        await until(dripped)
        assert isinstance(ending.exception(), ConnectionResetError)
        writer.close()


async def test_a_request_that_has_come_may_be_answered_late() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await go.wait()
        await _answer_at_the_end(scope, receive, send)

    async with serving(late) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(GET)
        await asyncio.wait_for(asked.wait(), HANG_S)
        assert server._server is not None
        (connection,) = server._server.server_state.connections
        assert isinstance(connection, module._Protocol)
        assert connection._request._timer is None  # nothing runs that would cut it
        go.set()
        assert await asyncio.wait_for(reader.readuntil(b"done"), HANG_S)
        writer.close()


async def _answer_at_the_end(scope: Scope, receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"done"})


async def _to_its_end(reader: asyncio.StreamReader) -> None:
    if await reader.read() == b"":
        raise ConnectionResetError


@pytest.mark.parametrize("silent", [b"", b"G", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nx", GET])
async def test_idle_connections_are_closed_for_busy_ones(monkeypatch: pytest.MonkeyPatch, silent: bytes) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 3)
    async with serving(_answer_at_the_end) as server:
        opened = []
        for _ in range(6):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(silent)
            if silent == GET:  # one that was answered and stays
                assert b"200" in await asyncio.wait_for(reader.readuntil(b"done"), HANG_S)
            opened.append((reader, writer))
        async with httpx.AsyncClient() as client:
            assert (await client.get(server.url)).text == "done"
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(_to_its_end(opened[0][0]), HANG_S)
        for _, writer in opened:
            writer.close()


async def test_requests_under_way_are_not_cut_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 2)
    go, asked = asyncio.Event(), []

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope)
        await go.wait()
        await _answer_at_the_end(scope, receive, send)

    async with serving(late) as server, httpx.AsyncClient() as client:
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
async def test_garbage_is_answered_400_and_the_next_one_is_served(garbage: bytes) -> None:
    page = Page(Desk(status=status()))
    async with page.client, serving(page.app) as server, httpx.AsyncClient() as client:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(garbage)
        try:
            answer = await asyncio.wait_for(reader.read(4096), HANG_S)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        except ConnectionResetError:
            pass  # more came than it cared to read
        writer.close()
        assert (await client.get(server.url)).status_code == 200


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (WebConfig(allow_hosts=("http://farm.lab",)), "web.allow_hosts"),
        (WebConfig(allow_hosts=("farm.lab:80",)), "web.allow_hosts"),
        (WebConfig(allow_hosts=("",)), "web.allow_hosts"),
    ],
)
def test_mistakes_in_the_configuration_are_told(config: WebConfig, where: str) -> None:
    (told,) = mistakes(FarmConfig(web=config))
    assert told is not None
    assert told[0].startswith(where)


def test_a_good_configuration_has_no_mistake() -> None:
    config = WebConfig(host="::1", port=0, allow_hosts=("farm.lab", "10.0.0.7", "[fd00::7]"))
    assert not list(mistakes(FarmConfig(web=config)))
