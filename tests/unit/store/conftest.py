"""The same suite on both engines. PostgreSQL is this host's own (Debian's), run by a user of no rank; never in CI."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from farm.store.store import Store

START_TIMEOUT_S = 60
SERVER_USER = "nobody"  # initdb refuses root
COUNT = count(1)


def server_programs() -> Path | None:
    """The folder of the newest server installed here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL server on a unix socket; the URL of its maintenance database."""
    if os.environ.get("CI"):
        pytest.skip("CI installs no PostgreSQL")
    programs = server_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install farm[postgres])")
    folder = Path(tempfile.mkdtemp(prefix="farm-pg-", dir="/tmp"))  # a socket's path must be short
    as_user: list[str] = []
    if os.geteuid() == 0:
        user = pwd.getpwnam(SERVER_USER)
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    data = folder / "data"

    def run(*command: str | Path) -> None:
        subprocess.run(
            [*as_user, *map(str, command)], check=True, timeout=START_TIMEOUT_S, cwd=folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    try:
        run(programs / "initdb", "--no-sync", "--auth=trust", "--username=farm", "--encoding=UTF8", "-D", data)
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        run(programs / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://farm@/postgres?host={folder}"
        finally:
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def new_database(server: str) -> Callable[[], str]:
    """Makes empty databases on the server."""

    def make() -> str:
        import psycopg

        name = f"farm_{os.getpid()}_{next(COUNT)}"
        with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return server.replace("/postgres?", f"/{name}?")

    return make


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
