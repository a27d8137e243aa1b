"""Rows and mailboxes between the hosts and a head apart from them, in a database on a server.

A row says what a host has (`device_state`, `request`), and which transaction wrote it. The head reads those that its
latest snapshot did not show; a head that takes over begins with a snapshot that showed nothing.

A letter carries what no such row says, once: that a row was deleted, an order, or a change of `lease`, `attempt` or
`job`, whose rows the same transaction writes. So a head that takes over empties its mailbox and reads the rows: no
change is lost, and none counts twice. Rows and letters come in the order in which they were written.
The receiver remembers the letters that it has taken until its next commit has deleted them: a cursor over their numbers
would lose letters that are committed late. The one writer of a host commits one transaction after the other, so its
numbers are in order.

This module knows no message: farm.head.wire makes the body of a letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable, Row, Table, TextClause, bindparam, delete, select, update
from sqlalchemy import text as sql
from sqlalchemy.exc import SQLAlchemyError

from farm.common.errors import HostError
from farm.store.appended_rows import AppendedRows
from farm.store.columns import ObjectJson, Word
from farm.store.database import Database, TableAccess
from farm.store.schema import device_state, host, lease, meta, metadata, request, to_head, to_host
from farm.store.server_rules import REMOVED

MAX_AT_ONCE = 500  # letters that are taken at once: the loop serves others before the next ones
POLL_S = 0.5  # the delay of a letter whose wake-up was lost
EXPECTED_S = 0.03  # a host that expects an answer of the head polls for so long, without a wake-up
EXPECTED_POLL_S = 0.002  # between its polls

logger = logging.getLogger(__name__)
_NOTIFY = sql("SELECT pg_notify(channel, '') FROM unnest(CAST(:channels AS text[])) AS channel")
_BEGIN = sql(
    "INSERT INTO host (name, beat_at, protocol, version) "
    "VALUES (:name, extract(epoch FROM clock_timestamp()), :protocol, :version) ON CONFLICT (name) DO UPDATE "
    "SET beat_at = excluded.beat_at, protocol = excluded.protocol, version = excluded.version "
    "WHERE host.removed_at IS NULL"
)
_BEATS = sql("host.beat_at > extract(epoch FROM clock_timestamp()) - 10")
_DEVICE = sql(
    "INSERT INTO device_state (host, name, body, changed) "
    "VALUES (:host, :name, :body, pg_current_xact_id()::text::bigint) "
    "ON CONFLICT (host, name) DO UPDATE SET body = excluded.body, changed = excluded.changed"
).bindparams(bindparam("name", type_=Word()), bindparam("body", type_=ObjectJson()))
# What hosts have written, in order: letters, and rows of transactions that the snapshot `seen` did not show. `meta` is
# locked first, as in the transaction that gives the tables to another role: no deadlock. PostgreSQL expects few rows of
# a range with two ends, and goes through the index.
NEWS = sql("""
(SELECT id, host, body, changed, 0 AS place, pg_current_snapshot()::text AS seen
    FROM meta JOIN to_head ON name = 'epoch' ORDER BY id LIMIT :most)
UNION ALL SELECT NULL, host, body, changed, place, pg_current_snapshot()::text FROM (
    SELECT host, body, changed, 0 AS place FROM device_state UNION ALL SELECT host, body, changed, seq FROM request
) AS of_hosts WHERE NOT pg_visible_in_snapshot(changed::text::xid8, CAST(:seen AS pg_snapshot))
    AND changed BETWEEN pg_snapshot_xmin(CAST(:seen AS pg_snapshot))::text::bigint AND 9223372036854775807
ORDER BY changed, id NULLS FIRST, place
""").columns(body=ObjectJson())
NOTHING = "1:1:"  # a snapshot (PostgreSQL's pg_snapshot) in which no transaction was visible
_BEAT = sql(
    "UPDATE host SET beat_at = extract(epoch FROM clock_timestamp()), protocol = :protocol "
    "WHERE name = :name AND removed_at IS NULL"
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message on its way from the host to the head, or from the head to the host."""

    host: str
    body: Mapping[str, Any]  # JSON


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host as its row says."""

    name: str
    beat_at: datetime | None  # its latest beat, by the server's clock; None: it was stopped, or never started
    protocol: int  # of its messages (farm.head.wire)
    drained: str = ""  # the operator's reason to hand out none of its phones; "": they are handed out
    address: str = ""  # HOST:PORT where other hosts dial it; "": nowhere
    certificate: str = ""  # PEM, of its connections with other hosts; "": it has none
    version: str = ""  # of farm there
    role: str = ""  # its own role in the database; "": it uses the owner's
    removed_at: datetime | None = None  # None: it belongs to the lab
    # Client's CIDR -> HOST:PORT of its TVM port, for clients of other hosts' ports that may come to it directly.
    advertise: Mapping[str, str] = field(default_factory=dict)


class HostRemovedError(HostError):
    """This host was removed from the lab."""

    code = "host_removed"


def _note_life(connection: Connection, statement: TextClause, **values: object) -> None:
    if connection.execute(statement, values).rowcount == 0:
        raise HostRemovedError(hint=REMOVED)


def post(box: Table, *letters: Letter | None) -> AppendedRows:
    """Letters into a mailbox (`to_head`, `to_host`), for the write of the changes that they report; None: no letter."""
    return [(box, {"host": letter.host, "body": letter.body}) for letter in letters if letter is not None]


def _channel_of(host: str) -> str:
    """The channel of NOTIFY for a host's wake-ups: a name that PostgreSQL accepts for any host's name."""
    return f"farm_host_{hashlib.sha256(host.encode()).hexdigest()[:16]}"


class Mailbox(TableAccess):
    """Statements over both mailboxes and the state rows of hosts."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.seen = NOTHING  # a snapshot: the head has the rows of hosts that it showed
        self._taken: dict[str, set[int]] = {}  # by host; "": of all hosts, to the head
        mine = database.writer.own_mark() & (to_host.c.host == bindparam("of"))  # and no later start has this name
        letters = select(to_host).join_from(meta, to_host, mine)  # `meta` is locked first, as by `NEWS`
        self._of_host = letters.order_by(to_host.c.id).limit(bindparam("most"))

    # --- at a host ------------------------------------------------------------------------------------------------

    async def begin(self, letter: Letter, protocol: int, version: str = "") -> None:
        """A host begins again: delete its requests, its letters and its phones, which it reports again.

        It is not drained any more. `version`: of farm there.

        Raises:
            HostRemovedError: it was removed from the lab.
        """

        def begin(connection: Connection) -> None:
            for box in (request, to_host, device_state):
                connection.execute(delete(box).where(box.c.host == letter.host))
            _note_life(connection, _BEGIN, name=letter.host, protocol=protocol, version=version)
            connection.execute(update(host).where(host.c.name == letter.host).values(drained=""))
            connection.execute(update(lease).where(lease.c.host == letter.host, lease.c.slot == 1).values(slot=False))

        await self._database.write(begin, appended=post(to_head, letter))

    async def leave(self, letter: Letter) -> None:
        """The letter's host stops: delete its requests; the head misses no beat of it. Its phones stay in the lists."""

        def leave(connection: Connection) -> None:
            connection.execute(delete(request).where(request.c.host == letter.host))
            connection.execute(update(host).where(host.c.name == letter.host).values(beat_at=None))

        await self._database.write(leave, appended=post(to_head, letter))

    async def beat(self, name: str, protocol: int) -> None:
        """Write a host's beat.

        Raises:
            HostRemovedError: it was removed from the lab.
        """
        await self._database.write(lambda connection: _note_life(connection, _BEAT, name=name, protocol=protocol))

    async def publish(self, name: str, address: str, certificate: str, advertise: Mapping[str, str]) -> None:
        """Write a host's address for other hosts, its certificate (PEM), and its `advertise`."""
        values = {"address": address, "certificate": certificate, "advertise": dict(advertise)}
        await self._database.execute(update(host).where(host.c.name == name).values(values))

    async def drain(self, reason: str, letter: Letter) -> None:
        """Hand out no phone of the letter's host, for this reason; "": hand them out again."""
        drained = update(host).where(host.c.name == letter.host).values(drained=reason)
        await self._database.execute(drained, appended=post(to_head, letter))

    async def send(self, *letters: Letter) -> None:
        """Send letters to the head that report no change of a row."""
        await self._database.write(lambda _: None, appended=post(to_head, *letters), last=True)

    async def device_changed(self, name: str, message: Letter) -> None:
        """Write the state of a phone of the message's host."""
        await self._database.execute(_DEVICE.bindparams(host=message.host, name=name, body=message.body))

    async def device_forgotten(self, name: str, letter: Letter) -> None:
        """Delete a phone of the letter's host."""
        gone = device_state.c.host == letter.host, device_state.c.name == name
        await self._database.execute(delete(device_state).where(*gone), appended=post(to_head, letter))

    async def request_added(self, request_id: str, message: Letter) -> None:
        """Write a request of the message's host."""
        row = {"id": request_id, "host": message.host, "body": message.body}
        await self._database.write(lambda _: None, appended=[(request, row)])

    async def request_withdrawn(self, request_id: str, letter: Letter) -> None:
        """Delete a request."""
        withdrawn = delete(request).where(request.c.id == request_id)
        await self._database.execute(withdrawn, appended=post(to_head, letter), last=True)

    async def take(self, host: str, within_s: float = 0.0) -> tuple[Letter, ...]:
        """Take the letters to a host, in order; at most `MAX_AT_ONCE`. Polls until there are some, for `within_s`."""
        return await self._take(self._of_host, to_host, host, within_s, EXPECTED_POLL_S)

    async def hosts(self) -> tuple[HostRecord, ...]:
        """Every host, by name."""
        rows = await self.in_thread(self._database.rows, select(host).order_by(host.c.name))
        return tuple(HostRecord(**row) for row in rows)

    def devices_elsewhere(self, hosts: Collection[str]) -> Callable[[], Awaitable[Mapping[str, Mapping[str, Any]]]]:
        """Reads the latest message about each device of other hosts than these, by name; of hosts that beat."""
        wanted = (
            select(device_state.c.name, device_state.c.body)
            .join(host, host.c.name == device_state.c.host)
            .where(host.c.name.not_in(hosts), host.c.beat_at.is_not(None), host.c.drained == "", _BEATS)
        )

        async def read() -> Mapping[str, Mapping[str, Any]]:
            return {row["name"]: row["body"] for row in await self.in_thread(self._database.rows, wanted)}

        return read

    # --- at the head ----------------------------------------------------------------------------------------------

    async def look_at_hosts(self) -> tuple[HostRecord, ...]:
        """Every host. It is a write, though it changes no row: only its commit shows that hosts could beat."""

        def look(connection: Connection) -> tuple[HostRecord, ...]:
            return tuple(HostRecord(**row) for row in connection.execute(select(host).order_by(host.c.name)).mappings())

        return await self._database.write(look)

    async def forget_host(self, name: str) -> None:
        """Delete the rows of a removed host, about its phones and about itself."""

        def forget(connection: Connection) -> None:
            of_hosts = [each for each in metadata.sorted_tables if "host" in each.primary_key.columns]
            for table in (*of_hosts, request, to_head, to_host):
                connection.execute(delete(table).where(table.c.host == name))
            connection.execute(update(lease).where(lease.c.host == name, lease.c.slot == 1).values(slot=False))
            connection.execute(delete(host).where(host.c.name == name, host.c.removed_at.is_not(None)))

        await self._database.write(forget)

    async def send_to_hosts(self, letters: Sequence[Letter]) -> None:
        """Send letters to hosts that report no change of a row."""
        await self._database.write(lambda _: None, appended=post(to_host, *letters), last=True)

    async def take_all(self, within_s: float = 0.0, every_s: float = 0.0) -> tuple[Letter, ...]:
        """Take what hosts have written, in order: letters, at most `MAX_AT_ONCE`, and changed phones and requests.

        Polls every `every_s` until there is some, for `within_s` at most.
        """
        return await self._take(NEWS, to_head, "", within_s, every_s)

    async def _take(
        self, wanted: Executable, box: Table, host: str, within_s: float, every_s: float
    ) -> tuple[Letter, ...]:
        """Read what was not taken yet, and have the next commit delete the letters.

        A taken letter that is still there is not read again, but its deletion is asked for again: that commit failed.
        As long as there are more letters, no row is taken: what a host wrote before would come after it.
        """
        taken = self._taken.get(host, set())
        most = MAX_AT_ONCE + len(taken)
        parameters = {"of": host, "most": most, "seen": self.seen}
        rows = await self.in_thread(self._poll, wanted, parameters, taken, within_s, every_s)
        letters = {row.id for row in rows} - {None}
        more = len(letters) == most
        self._taken[host] = letters | taken if more else letters  # no more: what is not there was deleted
        if letters:
            self._database.writer.delete_letters(box, host, sorted(letters))
        if more:
            rows = [row for row in rows if row.id is not None]
        elif rows and box is to_head and self.seen == parameters["seen"]:  # nobody wants to read all of it again
            self.seen = rows[0].seen
        return tuple(Letter(row.host, row.body) for row in rows if row.id not in taken)

    def _poll(
        self, wanted: Executable, parameters: Mapping[str, Any], taken: Collection[int], within_s: float, every_s: float
    ) -> Sequence[Row[Any]]:
        """Read until there is something that was not taken before, for `within_s` at most.

        In one thread and on one connection: a further reading costs half as much as the first one.
        """
        until_s = time.monotonic() + within_s
        with self._database.reading() as connection:
            while True:
                if within_s:
                    time.sleep(every_s)
                rows = connection.execute(wanted, parameters).all()
                if any(row.id not in taken for row in rows) or time.monotonic() >= until_s:
                    return rows


class WakeUps:
    """Wakes hosts after the commit of letters to them. Used on the event loop.

    A wake-up is a transaction of its own: NOTIFY inside that of the letters would make commits wait for each other.
    Wake-ups that come together are sent as one, as each signals the connections of all hosts that listen. The head,
    which gets most letters, is not woken for this reason: it looks often.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wanted: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    def wake(self, host: str) -> None:
        """Wake a host, after the commit of its letters."""
        self._wanted.add(_channel_of(host))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="wake-ups")

    async def close(self) -> None:
        """Send those under way."""
        if self._sending is not None:
            await self._sending

    async def _send(self) -> None:
        while self._wanted:
            channels, self._wanted = sorted(self._wanted), set()
            with contextlib.suppress(HostError):  # the writer reports it, and the receivers poll
                await self._database.in_thread(self._notify, channels)

    def _notify(self, channels: Sequence[str]) -> None:
        with self._database.reading() as connection:
            connection.execute(_NOTIFY, {"channels": list(channels)})


class WakeUpListener:
    """Says when a host is to look into its mailbox: at a wake-up, at least every `POLL_S`. Used on the event loop.

    A host that expects an answer (`expect`) polls instead of being woken: a wake-up costs the server more, the more
    hosts listen.
    """

    def __init__(self, database: Database, host: str) -> None:
        """Listen for the host's wake-ups."""
        self._engine = database.engine
        self._channel = _channel_of(host)
        self._loop = asyncio.get_running_loop()
        self._some = asyncio.Event()
        self._expected = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farm-listen", daemon=True)
        self._thread.start()

    def expect(self) -> None:
        """An answer of the head is due: poll until it comes, for `EXPECTED_S` at most."""
        self._expected = True
        self._some.set()

    async def wait(self) -> float:
        """Wait until it is time to look again; returns for how many seconds to poll then."""
        await self._some.wait()
        self._some.clear()
        expected, self._expected = self._expected, False
        return EXPECTED_S if expected else 0.0

    async def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except (SQLAlchemyError, OSError) as error:
                logger.debug("wake-ups are not heard: %s", error)
                self._wake()
                self._stop.wait(POLL_S)

    def _listen(self) -> None:
        from psycopg import Error

        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.detach()  # it continues listening: the pool must not give it away
            driver: Any = connection.connection.dbapi_connection
            try:
                driver.execute(f'LISTEN "{self._channel}"')
                while not self._stop.is_set():
                    self._wake()
                    list(driver.notifies(timeout=POLL_S, stop_after=1))
            except Error as error:
                driver.close()
                connection.invalidate()  # to reset it would fail, and be logged with its trace
                raise OSError(str(error)) from error

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # that loop is closed
            self._loop.call_soon_threadsafe(self._some.set)
