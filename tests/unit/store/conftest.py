"""The same suite on both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from farm.store.store import Store
from tests.support import postgres

MOST_AT_ONCE = 3


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL server of our own."""
    if why := postgres.missing():
        pytest.skip(why)
    with postgres.running_server() as url:
        yield url


@pytest.fixture(scope="session")
def databases(server: str) -> Iterator[str]:
    """A few in turn: each new one is thousands of files to make and to remove."""
    return cycle([postgres.new_database(server) for _ in range(MOST_AT_ONCE)])


@pytest.fixture
def new_database(databases: Iterator[str]) -> Callable[[], str]:
    """Makes empty databases on the server, at most MOST_AT_ONCE for a test."""
    return lambda: postgres.emptied(next(databases))


@pytest.fixture(scope="session")
def tables(server: str) -> postgres.TablesDatabase:
    """The database of tests that need farm's tables in it, and one database."""
    return postgres.TablesDatabase(postgres.new_database(server))


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a database without rows is to be, or is."""
    if request.param == "sqlite":
        return tmp_path / "farm.db"
    url: str = request.getfixturevalue("tables").as_new()
    return url


@pytest.fixture
def store(where: Path | str) -> Iterator[Store]:
    opened = Store.open(where)
    yield opened
    opened.close()
