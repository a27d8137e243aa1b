"""A temporary PostgreSQL server on a unix socket, from the programs on this host; for the demo and tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from farm.common.errors import HostError
from farm.common.install import pip_install

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.02
SERVER_USER = "nobody"  # for a server that root starts: PostgreSQL refuses root
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}  # of postgres(1)


def programs() -> Path | None:
    """The folder with the programs of the newest PostgreSQL on this host; None: there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin/initdb"), key=_version)
    elsewhere = shutil.which("initdb")
    return found[-1].parent if found else Path(elsewhere).resolve().parent if elsewhere else None


def _version(program: Path) -> tuple[int, str]:
    """Of the folder /usr/lib/postgresql/VERSION; a beta's is 18beta1."""
    name = program.parts[4]
    return int("".join(takewhile(str.isdigit, name))), name


def missing_packages() -> list[str]:
    """The Debian packages for a server that this host lacks."""
    lacks = {"postgresql": programs() is None, "util-linux": shutil.which("setpriv") is None}
    return [package for package, lacking in lacks.items() if lacking]


def check_programs() -> None:
    """Check that this host can start a server, and farm can use it."""
    if packages := " ".join(missing_packages()):
        raise HostError(
            "this needs a PostgreSQL server's programs, which are not installed",
            hint=f"apt-get install {packages}   # the server that Debian starts is not used, and may be stopped",
        )
    if find_spec("psycopg") is None:
        raise HostError("this needs the package psycopg, which is not installed", hint=pip_install("postgres"))


def as_server_user() -> list[str]:
    """The words ahead of a command that refuses root; none if this process is not root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(SERVER_USER)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@dataclass
class PostgresServer:
    """A server's files and process; the process ends with the thread that started it."""

    folder: Path  # of its data, log and socket
    port: int = 0  # at its address; 0: its socket only
    superuser: str = "farm"
    address: str = "127.0.0.1"
    wrapper: tuple[str, ...] = ()  # a command ahead of the server's, such as nsenter
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The URL of its maintenance database."""
        return self.url_of("postgres", "postgresql+psycopg")

    def url_of(self, database: str, scheme: str = "postgresql") -> str:
        """The URL of one of its databases."""
        at = f"host={self.folder}" + (f"&port={self.port}" if self.port else "")
        return f"{scheme}://{self.superuser}@/{database}?{at}"

    @property
    def pid(self) -> int:
        """The server's first process, the parent of its others."""
        assert self._process is not None
        return self._process.pid

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs as the server's user."""
        done = subprocess.run(
            [*as_server_user(), self._program(program), *map(str, arguments)], check=False, timeout=START_TIMEOUT_S,
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise HostError(f"PostgreSQL's {program} ended with {done.returncode}", evidence=done.stderr)

    def start(self, options: str = "") -> None:
        """Start it; returns when it accepts connections."""
        tcp = f"listen_addresses={self.address if self.port else ''}"
        settings = [tcp, f"unix_socket_directories={self.folder}", *[f"port={self.port}"] * bool(self.port)]
        every = [word for setting in settings for word in ("-c", setting)]
        # A session of its own: Ctrl-C must reach only the program that started it, which stops it last.
        command = [*self.wrapper, *(as_server_user() or ["setpriv"]), "--pdeathsig=QUIT", self._program("postgres")]
        command += ["-D", str(self.folder / "data"), *options.split(), *every]
        with (self.folder / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self._admits():
            if process.poll() is not None or time.monotonic() > until_s:
                self.stop()
                said = (self.folder / "log").read_text(errors="replace").splitlines()
                why = next((line for line in reversed(said) if " FATAL: " in line), "".join(said[-1:]))
                raise HostError("the PostgreSQL server did not come up", evidence=why)
            time.sleep(POLL_S)

    def stop(self, mode: str = "immediate") -> None:
        """Stop it, if it runs; "immediate" is as a crash, "fast" writes everything to its files first."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(STOP_SIGNALS[mode])
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def copy_to(self, standby: PostgresServer) -> None:
        """Make another server its hot standby, with the name `standby`; start that one with `start`."""
        source = f"host={self.folder} user=farm application_name=standby" + (f" port={self.port}" if self.port else "")
        standby.run(
            "pg_basebackup",
            "-D",
            standby.folder / "data",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
            "-d",
            source,
        )

    def promote(self) -> None:
        """Let a standby become the primary."""
        self.run("pg_ctl", "-D", self.folder / "data", "-w", "promote")

    def _program(self, name: str) -> str:
        folder = programs()
        assert folder is not None  # check_programs
        return str(folder / name)

    def _admits(self) -> bool:
        """Whether it accepts connections, by the last line of its pid file, as pg_ctl does it."""
        try:
            lines = (self.folder / "data/postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and int(lines[0]) == self.pid and lines[7].strip() in ("ready", "standby")


@contextmanager
def server_folder() -> Iterator[Path]:
    """A new folder of the server's user, deleted afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="farm-pg-", dir="/tmp"))
    if os.geteuid() == 0:
        user = pwd.getpwnam(SERVER_USER)
        os.chown(folder, user.pw_uid, user.pw_gid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def new_server(
    *,
    durable: bool = False,
    port: int = 0,
    hba: str = "",
    options: str = "",
    superuser: str = "farm",
    address: str = "127.0.0.1",
) -> Iterator[PostgresServer]:
    """A new server, stopped and deleted afterwards.

    Args:
        durable: commits wait for the disk (fsync).
        port: also listen on this port of `address`; 0: on the socket only.
        hba: lines ahead of those of pg_hba.conf, which admit everyone.
        options: further options of postgres(1).
        superuser: name of its first role.
        address: of this host.
    """
    with server_folder() as folder:
        server, data = PostgresServer(folder, port, superuser, address), folder / "data"
        server.run("initdb", "--no-sync", "--auth=trust", f"--username={superuser}", "--encoding=UTF8", "-D", data)
        rules = data / "pg_hba.conf"
        rules.write_text(hba + rules.read_text(encoding="utf-8"), encoding="utf-8")
        try:
            server.start(f"-c fsync={'on' if durable else 'off'} {options}")
            yield server
        finally:
            server.stop()
