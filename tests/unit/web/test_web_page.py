"""The page in the daemon: where it is, and what becomes of a farm whose port is taken."""

import asyncio
import contextlib
import socket

import httpx
import pytest

from farm.common.events import EventLog
from farm.config import WebConfig, load
from farm.daemon import interfaces
from farm.daemon.interfaces import WebPage
from farm.daemon.problems import Problems
from farm.web.server import WebPortError
from tests.support.waiting import HANG_S
from tests.support.web_desk import Accounts, AccountStore, Desk, exposition, status


class DeskWithAccounts(Desk):
    accounts = Accounts(AccountStore())


@pytest.fixture
async def door(tmp_path):
    """Opens the page with a configuration; what of it is open ends with the test."""
    async with contextlib.AsyncExitStack() as stack:

        def opened(config):
            problems = Problems(
                load(None, environ={}, flags={"state_dir": str(tmp_path), "runtime_dir": str(tmp_path)})
            )
            page = WebPage(config, problems)
            page.open(stack, DeskWithAccounts(status=status()), EventLog(1), metrics=exposition)
            return page, [line for source in problems.sources for line in source()], stack

        yield opened


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other


async def test_the_page_is_there_until_the_daemon_ends(door):
    page, _, stack = door(WebConfig(port=0))
    await page.retry()
    async with httpx.AsyncClient() as client:
        assert (await client.get(page.url)).status_code == 200
        await stack.aclose()
        with pytest.raises(httpx.ConnectError):
            await client.get(page.url)


async def test_a_port_that_is_taken_costs_the_page_until_it_is_free(door, taken, numbers):
    numbers(interfaces, RETRY_PAGE_S=0.01)
    page, [problem], _ = door(WebConfig(port=taken.getsockname()[1]))
    assert (page.url, " cannot be opened: another program has it" in problem) == ("", True)
    retrying = asyncio.create_task(page.retry())
    taken.close()
    await asyncio.wait_for(retrying, HANG_S)
    async with httpx.AsyncClient() as client:
        assert (await client.get(page.url)).status_code == 200
    assert page._problem == ""


async def test_a_page_that_is_required_stops_the_daemon(door, taken):
    with pytest.raises(WebPortError) as refused:
        door(WebConfig(port=taken.getsockname()[1], required=True))
    assert "port" in refused.value.hint


async def test_no_page_where_none_is_wanted(door):
    page, problems, _ = door(WebConfig(enabled=False, port=1))
    assert (page.url, problems) == ("", [])
