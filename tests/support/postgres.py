"""This host's own PostgreSQL (Debian's) on a unix socket, run by a user of no rank."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from tests.support.needs import lacks, missing_packages

START_TIMEOUT_S = 60
SERVER_USER = "nobody"  # initdb refuses root
_COUNT = count(1)


def missing() -> str:
    """Why there is no server here; empty when there is."""
    if _programs() is None:
        return missing_packages("postgresql")
    if os.geteuid() == 0 and (why := lacks("setpriv")):
        return why
    if find_spec("psycopg") is None:
        return "psycopg is not installed (the extra `postgres`)"
    return ""


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[str]:
    """A new server, gone afterwards; the URL of its maintenance database. `durable`: it waits for the disk."""
    programs = _programs()
    assert programs is not None
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
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync={'on' if durable else 'off'}"
        run(programs / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-o", options, "start")
        try:
            yield f"postgresql+psycopg://farm@/postgres?host={folder}"
        finally:
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


def new_database(server: str) -> str:
    """The URL of a new, empty database."""
    import psycopg

    name = f"farm_{os.getpid()}_{next(_COUNT)}"
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.replace("/postgres?", f"/{name}?")


def _programs() -> Path | None:
    """The folder of the newest server installed here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None
