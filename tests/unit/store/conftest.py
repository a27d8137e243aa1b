"""The same suite on both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from math import inf
from pathlib import Path

import pytest

from farm.store.store import Store
from tests.support import postgres

MAX_AT_ONCE = 3


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL server of our own."""
    postgres.need()
    with postgres.running_server() as url:
        yield url


@pytest.fixture(scope="session")
def databases(server: str) -> Iterator[str]:
    """A few in turn: each new one is thousands of files to make and to remove."""
    return cycle([postgres.new_database(server) for _ in range(MAX_AT_ONCE)])


@pytest.fixture
def new_database(databases: Iterator[str]) -> Callable[[], str]:
    """Makes empty databases on the server, at most MAX_AT_ONCE for a test."""
    return lambda: postgres.emptied(next(databases))


@pytest.fixture(scope="session")
def tables(server: str) -> postgres.TablesDatabase:
    """The database of tests that need farm's tables in it, and one database."""
    return postgres.TablesDatabase(postgres.new_database(server))


@pytest.fixture
def proxy(tables: postgres.TablesDatabase) -> Iterator[postgres.SilentProxy]:
    """A way to that database on which answers can be held up or lost."""
    with postgres.silent_proxy(tables.as_new()) as proxy:
        yield proxy


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database without rows is to be, or is."""
    if request.param == "sqlite":
        return tmp_path / "farm.db"
    url: str = request.getfixturevalue("tables").as_new()
    return url


@pytest.fixture
def opened() -> Iterator[Callable[..., Store]]:
    """As `Store.open`; the store is closed after the test, if not before."""
    with ExitStack() as stack:

        def open_store(*arguments: object, **options: object) -> Store:
            store = Store.open(*arguments, **options)
            stack.callback(lambda: store.database.writer.silent_s() < inf and store.close())
            return store

        yield open_store


@pytest.fixture
def store(opened: Callable[..., Store], where: Path | str) -> Store:
    return opened(where)


@pytest.fixture
def server_store(opened: Callable[..., Store], tables: postgres.TablesDatabase) -> Store:
    """A store on the server only."""
    return opened(tables.as_new())
