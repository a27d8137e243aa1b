"""A host of a lab under systemd: what `farm lab create` and `farm host join --listen` write, run and wait for."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from farm.cli.connection import call
from farm.cli.install_service import DROP_INS, SYSTEM, UNIT_FOLDER, FileStep, run_commands, systemd_runs, write_file
from farm.cli.output import table
from farm.common.errors import DaemonUnreachableError, HostError, NotAllowedError, UserError
from farm.common.files import write_durably
from farm.config.consistency import address_of

LAB_PORT = 9194
ADMINISTRATOR = Path("/etc/farm/administrator.url")
MAX_HEADS = 3  # one decides, the others wait to take over
START_LIMIT_S, POLL_S = 90.0, 0.5
SERVER_USER = "postgres"
SERVER_LIMIT_S = 60.0
OWN_SERVER = "on this host: apt install postgresql; or name another server: --url postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where other hosts dial this one, and the network that they are in."""

    address: str
    port: int
    network: str  # CIDR

    @classmethod
    def parse(cls, text: str) -> Listen:
        """From ADDRESS or ADDRESS:PORT.

        Raises:
            UserError: it is no address, or none of this host.
        """
        found = address_of(f"tcp://{text}") or address_of(f"tcp://{text}:{LAB_PORT}")
        if found is None:
            raise UserError(f"--listen {text!r} is no address", hint="a number, as in --listen 192.0.2.10")
        networks = {
            address.address.partition("%")[0]: address.netmask
            for addresses in psutil.net_if_addrs().values()
            for address in addresses
            if address.family in (socket.AF_INET, socket.AF_INET6)
        }
        if found[0] not in networks or ipaddress.ip_address(found[0]).is_loopback:
            others = ", ".join(each for each in networks if not ipaddress.ip_address(each).is_loopback)
            raise UserError(
                f"--listen: other hosts cannot dial {found[0]} of this host", hint=f"it has: {others or 'no other one'}"
            )
        own, mask = ipaddress.ip_address(found[0]), networks[found[0]]  # a point-to-point interface may have no mask
        ones = int(ipaddress.ip_address(mask)).bit_count() if mask else own.max_prefixlen
        return cls(*found, str(ipaddress.ip_network(f"{own}/{ones}", strict=False)))

    @property
    def url(self) -> str:
        """As in [lab] listen."""
        return f"tcp://{self.address}:{self.port}" if ":" not in self.address else f"tcp://[{self.address}]:{self.port}"


class HostSetup:
    """The set-up of this host, in the order of its methods.

    Raises:
        NotAllowedError: its user is not root.
        UserError: the service is not installed.
    """

    def __init__(self, listen: Listen, config: Path) -> None:
        if os.geteuid() != 0:
            raise NotAllowedError("setting up a host of a lab takes root", hint="sudo")
        if not systemd_runs() or not (SYSTEM / UNIT_FOLDER / "farm.service").exists():
            raise UserError(
                "the service is not installed on this host",
                hint="farm install-service; without systemd: docs/many-hosts.md",
            )
        self.listen, self._config = listen, config

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The daemon is stopped; it is started again only if what is done meanwhile fails."""
        active = subprocess.run(("systemctl", "is-active", "--quiet", "farm"), check=False).returncode == 0
        run_commands([("systemctl", "stop", "farm", "farm-head")])
        try:
            yield
        except BaseException:
            if active:
                run_commands([("systemctl", "start", "farm")])
            raise

    def configure(self, lines: Sequence[str], database: str) -> None:
        """Write the configuration, and let the units reach the hosts' network and the database.

        Args:
            lines: to append to the configuration.
            database: address of the lab's database.
        """
        networks = [self.listen.network, *_outside(database, self.listen.network)]
        text = "".join(("[Service]\n", *(f"IPAddressAllow={each}\n" for each in networks)))
        for path in DROP_INS:
            write_file(SYSTEM, FileStep("write", path, text))
        append_lines(self._config, lines)  # last: a host whose configuration names a lab is not set up again

    def start(self, *, head: bool) -> dict[str, Any]:
        """Start the service with the new configuration.

        Returns:
            The answer of `host.list`, as soon as every host that runs was tried; at the latest after START_LIMIT_S.

        Raises:
            HostError: it did not start, or does not answer.
        """
        gate = ("systemctl", "try-restart", "farm-gate")  # what its sandbox may reach has changed
        units = ("farm", "farm-head") if head else ("farm",)  # a first start of farm.service makes the state folder
        enabled = (("systemctl", "enable", "--now", unit) for unit in units)
        run_commands([("systemctl", "daemon-reload"), gate, *enabled])
        until, answer = time.monotonic() + START_LIMIT_S, None
        while time.monotonic() < until and (answer is None or not _is_settled(answer)):
            with suppress(DaemonUnreachableError):  # it is starting
                answer = call("host.list")
            time.sleep(POLL_S)
        if answer is None:
            raise HostError("the daemon does not answer", hint="systemctl status farm; journalctl -u farm -n 20")
        return answer

    def lines(self, answer: dict[str, Any]) -> Iterator[str]:
        """What was written, and the hosts of the lab as this one sees them."""
        yield f"wrote {self._config} and {', '.join(f'/{path}' for path in DROP_INS)}"
        yield f"the service may reach {self.listen.network}; other hosts dial {self.listen.url}"
        rows = ((row["name"], row["address"] or "-", row["state"], row["reach"] or "-") for row in answer["hosts"])
        yield from table(("HOST", "ADDRESS", "STATE", "REACH"), rows)
        yield from (f"warning: {each}" for each in answer["problems"])


def append_lines(file: Path, lines: Sequence[str]) -> None:
    """Append lines to a file that people edit; it has its old content or its new one. Raises OSError."""
    before = file.read_text() if file.is_file() else ""
    mode = file.stat().st_mode & 0o777 if file.is_file() else 0o644
    text = "\n".join((before.rstrip("\n"), "", *lines)).lstrip("\n")
    write_durably(file, f"{text}\n".encode(), mode)


def keep_administrator(url: str) -> None:
    """Keep the URL of the database's administrator on this host, for root alone. Raises OSError."""
    write_durably(ADMINISTRATOR, f"{url}\n".encode(), 0o600)


def administrator_url(given: str) -> str:
    """The URL of the database's administrator: the one given, or the one that `farm lab create` kept here.

    Raises:
        UserError: there is neither, or this user may not read it.
    """
    if given:
        return given
    try:
        return ADMINISTRATOR.read_text().strip()
    except OSError as error:
        raise UserError(
            f"the database's administrator is unknown: {ADMINISTRATOR}: {error.strerror}",
            hint="as root on the host where the lab was created; elsewhere --url postgresql://USER@HOST/DATABASE",
        ) from error


def make_database(listen: Listen) -> str:
    """Make an empty database on this host's PostgreSQL server, and let the hosts' network reach it. May be repeated.

    Returns:
        The URL of its administrator, with a new password.

    Raises:
        HostError: no server runs here, or it refuses.
    """
    if _ask_server("SHOW ssl") != "on":
        raise HostError("the PostgreSQL server of this host has no TLS", hint="ALTER SYSTEM SET ssl = on; restart it")
    password = secrets.token_urlsafe(24)
    if not _ask_server("SELECT 1 FROM pg_roles WHERE rolname = 'farm_admin'"):
        _ask_server("CREATE ROLE farm_admin LOGIN CREATEROLE")
    _ask_server(f"ALTER ROLE farm_admin PASSWORD '{password}'")
    if not _ask_server("SELECT 1 FROM pg_database WHERE datname = 'farm'"):
        _ask_server("CREATE DATABASE farm OWNER farm_admin ENCODING 'UTF8' TEMPLATE template0")
    rule = f"hostssl farm all {listen.network} scram-sha-256"
    rules = Path(_ask_server("SHOW hba_file"))
    if rule not in rules.read_text().splitlines():
        owner = rules.stat()
        append_lines(rules, [rule])
        os.chown(rules, owner.st_uid, owner.st_gid)
        _ask_server("SELECT pg_reload_conf()")
    addresses = [each.strip() for each in _ask_server("SHOW listen_addresses").split(",")]
    if not {"*", "0.0.0.0", listen.address} & set(addresses):
        _ask_server(f"ALTER SYSTEM SET listen_addresses = '{','.join((*addresses, listen.address))}'")
        run_commands([("systemctl", "restart", "postgresql")])
    port = _ask_server("SHOW port")
    host = f"[{listen.address}]" if ":" in listen.address else listen.address
    return f"postgresql://farm_admin:{password}@{host}:{port}/farm"


def _ask_server(statement: str) -> str:
    """What this host's server answers to a statement of its superuser. It stands on stdin: users can read arguments."""
    command = ("psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1")
    try:
        done = subprocess.run(
            command, input=statement, capture_output=True, text=True, timeout=SERVER_LIMIT_S, check=False,
            user=SERVER_USER, group=SERVER_USER, extra_groups=(), cwd="/",
        )  # fmt: skip
    except (OSError, KeyError, subprocess.TimeoutExpired) as error:  # KeyError: no such user
        raise HostError(f"PostgreSQL cannot be asked: {error}", hint=OWN_SERVER) from error
    if done.returncode != 0:
        raise HostError("PostgreSQL refuses", hint=OWN_SERVER, evidence=done.stderr)
    return done.stdout.strip()


def _outside(database: str, network: str) -> list[str]:
    """Addresses of the database's server that are outside of `network` and of this host.

    Raises:
        HostError: its name has none.
    """
    from farm.store.engine import server_hosts, server_url

    url = server_url(database)
    addresses = {ipaddress.ip_address(each) for name in server_hosts(url) for each in _addresses_of(name)}
    return sorted(str(each) for each in addresses if not each.is_loopback and each not in ipaddress.ip_network(network))


def _addresses_of(name: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(name, 0)]
    except OSError as error:
        raise HostError(
            f"the database's host {name} has no address: {error.strerror}",
            hint="correct --url, or this host's resolver",
        ) from error


def _is_settled(answer: dict[str, Any]) -> bool:
    """Whether there is nothing to wait for: a head decides, and the other hosts that run were dialled."""
    running = [row for row in answer["hosts"] if row["silent_s"] is not None]
    own = any(row["name"] == answer["own"] for row in running)
    return own and not answer["problems"] and all(row["reach"] for row in running if row["name"] != answer["own"])
