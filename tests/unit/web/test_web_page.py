"""The page in the daemon: where it is, and what becomes of a farm whose port is taken."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from farm.common.events import EventLog
from farm.config import WebConfig, load
from farm.daemon.interfaces import WebPage
from farm.daemon.problems import Problems
from farm.web.server import WebPortError
from tests.support.web_desk import Accounts, AccountStore, Desk, exposition, status


class DeskWithAccounts(Desk):
    accounts = Accounts(AccountStore())


def open_door(
    config: WebConfig, tmp_path: Path
) -> tuple[Problems, WebPage, Callable[[contextlib.AsyncExitStack], None]]:
    problems = Problems(load(None, environ={}, flags={"state_dir": str(tmp_path), "runtime_dir": str(tmp_path)}))
    door = WebPage(config, problems)
    desk = cast("Any", DeskWithAccounts(status=status()))
    return problems, door, lambda stack: door.open(stack, desk, EventLog(1), metrics=exposition)


async def test_the_page_is_there_until_the_daemon_ends(tmp_path: Path) -> None:
    _, door, opened = open_door(WebConfig(port=0), tmp_path)
    async with httpx.AsyncClient() as client:
        async with contextlib.AsyncExitStack() as stack:
            opened(stack)
            assert (await client.get(door.url)).status_code == 200
        with pytest.raises(httpx.ConnectError):
            await client.get(door.url)


async def test_a_port_that_is_taken_costs_the_page_and_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        problems, door, opened = open_door(WebConfig(port=port), tmp_path)
        async with contextlib.AsyncExitStack() as stack:
            opened(stack)
    assert door.url == ""
    (problem,) = [line for source in problems.sources for line in source()]
    assert f"127.0.0.1:{port} cannot be opened: another program has it" in problem


async def test_a_page_that_is_required_stops_the_daemon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        _, _, opened = open_door(WebConfig(port=other.getsockname()[1], required=True), tmp_path)
        async with contextlib.AsyncExitStack() as stack:
            with pytest.raises(WebPortError):
                opened(stack)


async def test_no_page_where_none_is_wanted(tmp_path: Path) -> None:
    _, door, opened = open_door(WebConfig(enabled=False, port=1), tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        opened(stack)
    assert door.url == ""
