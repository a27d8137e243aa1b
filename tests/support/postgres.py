"""This host's own PostgreSQL (Debian's) on a unix socket, run by a user of no rank."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from tests.support.needs import lacks, missing_packages

START_TIMEOUT_S = 60
SOCKET = ".s.PGSQL.5432"
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


class SilentProxy:
    """A way to a server on which answers can be held up: both ends stay connected, and TCP acknowledges everything."""

    def __init__(self, url: str, folder: Path) -> None:
        before, _, real = url.partition("?host=")
        self.url = f"{before}?host={folder}"
        self.passing = threading.Event()
        self.passing.set()
        self.held = threading.Event()  # an answer is
        self._real = f"{real}/{SOCKET}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/{SOCKET}")
        self._listener.listen()
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def close(self) -> None:
        """End every connection."""
        self.passing.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                server.connect(self._real)
                self._begin(self._pass_on, client, server, False)
                self._begin(self._pass_on, server, client, True)

    def _pass_on(self, source: socket.socket, to: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(1 << 16):
                if answers and not self.passing.is_set():
                    self.held.set()
                    self.passing.wait()
                to.sendall(some)
            to.shutdown(socket.SHUT_WR)


def new_database(server: str) -> str:
    """The URL of a new, empty database."""
    import psycopg

    name = f"farm_{os.getpid()}_{next(_COUNT)}"
    with psycopg.connect(server.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.replace("/postgres?", f"/{name}?")


def emptied(url: str) -> str:
    """The same database without what a test left in it."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return url


def _programs() -> Path | None:
    """The folder of the newest server installed here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None
