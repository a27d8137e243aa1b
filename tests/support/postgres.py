"""Servers of PostgreSQL for tests: databases on one, and what stands between it and farm."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from farm.simulation.postgres import PostgresServer, as_server_user, missing_packages, new_server, server_folder
from farm.store.engine import server_engine
from farm.store.opening import create_tables
from tests.support.needs import INSTALL
from tests.support.tvm import free_port

SOCKET = ".s.PGSQL.5432"
END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
# Whatever changes a table, an index, a constraint or a trigger writes one of these rows.
SHAPE = "SELECT " + ", ".join(
    f"(SELECT sum(hashtext(each::text || each.xmin)) FROM {catalogue} AS each WHERE {of} >= 16384)"
    for catalogue, of in (("pg_attribute", "attrelid"), ("pg_constraint", "conrelid"), ("pg_trigger", "tgrelid"))
)
WRITTEN = (
    "SELECT string_agg(relname, ', ') FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0"
)
_COUNT = count(1)


def missing() -> str:
    """Why there is no server here; empty when there is."""
    if packages := missing_packages():
        return f"no PostgreSQL server: {INSTALL}{' '.join(packages)}"
    return "" if find_spec("psycopg") else "psycopg is not installed (the extra `postgres`)"


def need() -> None:
    """Skip the test where there is no server."""
    if why := missing():
        pytest.skip(why)


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[str]:
    """As `new_server`; the URL of its maintenance database."""
    with new_server(durable=durable) as server:
        yield server.url


@contextmanager
def guarded_server() -> Iterator[PostgresServer]:
    """A server as Debian sets it up: at a port of loopback it wants passwords; its superuser is `postgres`."""
    hba = "host all all 127.0.0.1/32 scram-sha-256\n"
    with new_server(port=free_port(), hba=hba, superuser="postgres") as server:
        yield server


@contextmanager
def pooler(server: str, *, ignores_options: bool) -> Iterator[Path]:
    """A pgbouncer in transaction mode before a server; the folder of its socket.

    `ignores_options`: as administrators set it for clients that send options at the start of a session.
    """
    with server_folder() as folder:
        (folder / "users").write_text('"farm" ""\n')
        (folder / "ini").write_text(
            f"[databases]\n* = host={server.partition('host=')[2]}\n[pgbouncer]\nlisten_addr =\nlisten_port = 5432\n"
            f"unix_socket_dir = {folder}\nauth_type = any\nauth_file = {folder}/users\npool_mode = transaction\n"
            + ("ignore_startup_parameters = options,extra_float_digits\n" if ignores_options else "")
        )
        (folder / "ini").write_text((folder / "ini").read_text().replace("* =", "* = user=farm", 1))
        running = subprocess.Popen([*as_server_user(), "pgbouncer", "-q", folder / "ini"], cwd=folder)
        try:
            while not (folder / SOCKET).exists():
                assert running.poll() is None
                time.sleep(0.02)
            yield folder
        finally:
            running.terminate()
            running.wait()


@contextmanager
def silent_proxy(url: str) -> Iterator[SilentProxy]:
    """A SilentProxy before a database."""
    with tempfile.TemporaryDirectory(prefix="farm-pg-", dir="/tmp") as folder:  # a socket's path must be short
        proxy = SilentProxy(url, Path(folder))
        try:
            yield proxy
        finally:
            proxy.close()


class SilentProxy:
    """A way to a server on which answers can be held up: both ends stay connected, and TCP acknowledges everything."""

    def __init__(self, url: str, folder: Path) -> None:
        before, _, real = url.partition("?host=")
        self.url = f"{before}?host={folder}"
        self.passing = threading.Event()
        self.passing.set()
        self.held = threading.Event()  # an answer is
        self.refusing = False  # new connections
        self.slow_s = 0.0  # the delay of each answer
        self.real_url = url
        self.lose = ""  # what is lost next, with its connection: "commit" before the server has it, or its "answer"
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
                if self.refusing:
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                try:
                    server.connect(self._real)
                except OSError:  # it is away
                    client.close()
                    continue
                lost = threading.Event()  # the next answer is
                self._begin(self._pass_on, client, server, False, lost)
                self._begin(self._pass_on, server, client, True, lost)

    def _pass_on(self, source: socket.socket, to: socket.socket, answers: bool, lost: threading.Event) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(to.shutdown, socket.SHUT_WR)
            while some := source.recv(1 << 16):
                if not answers and self.lose and b"COMMIT" in some:
                    before, self.lose = self.lose == "commit", ""
                    lost.set()
                    if before:
                        source.shutdown(socket.SHUT_RDWR)
                        break
                if answers and lost.is_set():
                    to.shutdown(socket.SHUT_RDWR)
                    break
                if answers and not self.passing.is_set():
                    self.held.set()
                    self.passing.wait()
                if answers and self.slow_s:
                    time.sleep(self.slow_s)
                to.sendall(some)


def run(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Execute statements as another client does; the rows of the last, if it has some."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for each in statements:
            cursor = connection.execute(each)
        return cursor.fetchall() if cursor.description else []


def new_database(server: str) -> str:
    """The URL of a new, empty database."""
    name = f"farm_{os.getpid()}_{next(_COUNT)}"
    run(server, f"CREATE DATABASE {name}")
    return server.replace("/postgres?", f"/{name}?")


def emptied(url: str) -> str:
    """The same database without what a test left in it."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), options="-c default_transaction_read_only=off") as connection:
        name = connection.info.dbname
        for change in ("RESET ALL", "CONNECTION LIMIT -1", "OWNER TO CURRENT_USER"):
            connection.execute(f"ALTER DATABASE {name} {change}")
        connection.execute(END_OTHERS)
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
    return url


class TablesDatabase:
    """A database with farm's tables for one test after the other: to make them takes several times as long."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._shape: object = None
        self._first: list[tuple[str, int]] = []  # the rows of `meta` in a new database

    def as_new(self) -> str:
        """Its URL; of the last test nothing is left in it."""
        import psycopg

        with psycopg.connect(self._url.replace("+psycopg", "")) as connection:
            connection.execute(END_OTHERS)
            if self._shape is not None and connection.execute(SHAPE).fetchone() == self._shape:
                [[written]] = connection.execute(WRITTEN)
                connection.execute(f"TRUNCATE {written} RESTART IDENTITY CASCADE")
                connection.cursor().executemany("INSERT INTO meta (name, value) VALUES (%s, %s)", self._first)
                return self._url
        engine = server_engine(emptied(self._url))
        with engine.begin() as made:
            create_tables(made)
            self._shape = tuple(made.exec_driver_sql(SHAPE).one())
            self._first = [(name, value) for name, value in made.exec_driver_sql("SELECT name, value FROM meta")]
        engine.dispose()
        return self._url
