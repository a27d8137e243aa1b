"""The same suite on both engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farm.store.store import Store
from tests.support import postgres


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL server of our own."""
    if why := postgres.missing():
        pytest.skip(why)
    with postgres.running_server() as url:
        yield url


@pytest.fixture
def new_database(server: str) -> Callable[[], str]:
    """Makes empty databases on the server."""
    return lambda: postgres.new_database(server)


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where an empty database is to be."""
    if request.param == "sqlite":
        return tmp_path / "farm.db"
    url: str = request.getfixturevalue("new_database")()
    return url


@pytest.fixture
def store(where: Path | str) -> Iterator[Store]:
    opened = Store.open(where)
    yield opened
    opened.close()
