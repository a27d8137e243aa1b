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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    if programs() is None:
        return missing_packages("postgresql")
    if os.geteuid() == 0 and (why := lacks("setpriv")):
        return why
    if find_spec("psycopg") is None:
        return "psycopg is not installed (the extra `postgres`)"
    return ""


@dataclass(frozen=True)
class Server:
    """One server's files and programs."""

    folder: Path  # of its data, log and socket
    port: int = 0  # on loopback; 0: its socket only
    superuser: str = "farm"

    @property
    def url(self) -> str:
        """Of its maintenance database."""
        return f"postgresql+psycopg://{self.superuser}@/postgres?host={self.folder}" + (
            f"&port={self.port}" if self.port else ""
        )

    @property
    def pid(self) -> int:
        """Of the server's first process, which reaps all others."""
        return int((self.folder / "data/postmaster.pid").read_text().split()[0])

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs as the server's user."""
        folder = programs()
        assert folder is not None
        subprocess.run(
            [*as_server_user(), folder / program, *map(str, arguments)], check=True, timeout=START_TIMEOUT_S,
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self, options: str = "") -> None:
        """Start it; returns when it admits connections."""
        tcp = f"listen_addresses=127.0.0.1 -c port={self.port}" if self.port else "listen_addresses=''"
        every = f"{options} -c {tcp} -c unix_socket_directories={self.folder}"
        data, log = self.folder / "data", self.folder / "log"
        self.run("pg_ctl", "-D", data, "-l", log, "-w", "-o", every, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it, if it runs; "immediate" is as a crash."""
        if (self.folder / "data/postmaster.pid").exists():
            self.run("pg_ctl", "-D", self.folder / "data", "-m", mode, "-w", "stop")

    def copy_to(self, standby: Server) -> None:
        """Make another server its hot standby, of the name `standby`; that one is started with `start`."""
        source = f"host={self.folder} user=farm application_name=standby" + (f" port={self.port}" if self.port else "")
        standby.run("pg_basebackup", "-D", standby.folder / "data", "-R", "-X", "stream", "--no-sync", "-d", source)

    def promote(self) -> None:
        """Let a standby become the primary."""
        self.run("pg_ctl", "-D", self.folder / "data", "-w", "promote")


def as_server_user() -> list[str]:
    """The words ahead of a command that refuses root; none for others."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(SERVER_USER)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@contextmanager
def server_folder() -> Iterator[Path]:
    """A new folder of the server's user, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="farm-pg-", dir="/tmp"))  # a socket's path must be short
    if os.geteuid() == 0:
        user = pwd.getpwnam(SERVER_USER)
        os.chown(folder, user.pw_uid, user.pw_gid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def new_server(
    *, durable: bool = False, port: int = 0, hba: str = "", options: str = "", superuser: str = "farm"
) -> Iterator[Server]:
    """A new server, gone afterwards.

    Args:
        durable: it waits for the disk.
        port: it also listens there on loopback; 0: on its socket only.
        hba: lines ahead of those of pg_hba.conf, which admit everyone.
        options: more of postgres.
        superuser: the role that it has.
    """
    with server_folder() as folder:
        server, data = Server(folder, port, superuser), folder / "data"
        server.run("initdb", "--no-sync", "--auth=trust", f"--username={superuser}", "--encoding=UTF8", "-D", data)
        rules = data / "pg_hba.conf"
        rules.write_text(hba + rules.read_text())
        server.start(f"-c fsync={'on' if durable else 'off'} {options}")
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[str]:
    """As `new_server`; the URL of its maintenance database."""
    with new_server(durable=durable) as server:
        yield server.url


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


class SilentProxy:
    """A way to a server on which answers can be held up: both ends stay connected, and TCP acknowledges everything."""

    def __init__(self, url: str, folder: Path) -> None:
        before, _, real = url.partition("?host=")
        self.url = f"{before}?host={folder}"
        self.passing = threading.Event()
        self.passing.set()
        self.held = threading.Event()  # an answer is
        self.refusing = False  # new connections
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
                server.connect(self._real)
                lost = threading.Event()  # the next answer is
                self._begin(self._pass_on, client, server, False, lost)
                self._begin(self._pass_on, server, client, True, lost)

    def _pass_on(self, source: socket.socket, to: socket.socket, answers: bool, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
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

    with psycopg.connect(url.replace("+psycopg", ""), options="-c default_transaction_read_only=off") as connection:
        name = connection.info.dbname
        for change in ("RESET ALL", "CONNECTION LIMIT -1", "OWNER TO CURRENT_USER"):
            connection.execute(f"ALTER DATABASE {name} {change}")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
    return url


def programs() -> Path | None:
    """The folder of the newest server installed here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None
