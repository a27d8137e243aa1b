"""A phone leased by a script: its addresses and keys, for as long as a `with` block lasts."""

from __future__ import annotations

import socket
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self

from farm.client.connection import DaemonConnection, OnNotice
from farm.client.streams import Reasons, watched, with_idle
from farm.common.durations import format_duration
from farm.common.errors import NoPhoneError, ProtocolError
from farm.model.requests import NoSuchLeaseError

if TYPE_CHECKING:
    from adbutils import AdbDevice

GRANTED = "granted"  # step of job.progress when the phone is the user's
EXPIRING = "lease.expiring"
CONNECT_S = 3.0  # to the lease's adb server
IDLE_S = 2.0  # without an event: then ask whether the grant was missed, and why the lease waits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPhone:
    """One phone under a personal lease."""

    job: str  # id of the job that holds it
    lease: str
    device: str
    serial: str
    tvm_host: str  # tvm.rpc.connect(tvm_host, tvm_port, key=tvm_key); one session at a time
    tvm_port: int
    tvm_key: str = field(repr=False)
    adb_port: int  # ANDROID_ADB_SERVER_PORT: shows only this phone
    expires_at: datetime

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which adb and TVM find the phone.

        ADB_SERVER_SOCKET names the same place as ANDROID_ADB_SERVER_PORT: with a host in it, adb never starts a server
        of its own there once the lease is over (docs/leases.md).
        """
        return {
            "ANDROID_ADB_SERVER_PORT": str(self.adb_port),
            "ADB_SERVER_SOCKET": f"tcp:127.0.0.1:{self.adb_port}",
            "ANDROID_SERIAL": self.serial,
            "TVM_TRACKER_HOST": self.tvm_host,
            "TVM_TRACKER_PORT": str(self.tvm_port),
            "TVM_TRACKER_KEY": self.tvm_key,
            "FARM_LEASE": self.lease,
            "FARM_DEVICE": self.device,
        }

    @property
    def adb(self) -> AdbDevice:
        """The phone for adbutils, on the lease's adb server. Calls block: `asyncio.to_thread(lease.adb.shell, ...)`.

        Once the lease is over they raise `adbutils.errors.AdbConnectionError`.
        """
        return _adb_device(self.adb_port, self.serial)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncLease(HeldPhone):
    """A phone held by an `AsyncClient`."""

    connection: DaemonConnection = field(repr=False)
    offset: timedelta = field(default=timedelta(), repr=False, compare=False)  # the farm's clock minus ours

    @property
    def now(self) -> datetime:
        """The time by the clock of `expires_at`."""
        return datetime.now(UTC) + self.offset

    @classmethod
    async def of(cls, connection: DaemonConnection, name: str) -> Self:
        """A lease by its id, its job's, or its device.

        Raises:
            NoSuchLeaseError: no phone of that name is leased (yet, or any more).
            ProtocolError: the daemon's answer has another form.
        """
        answer = await connection.call("lease.show", lease=name)
        try:
            facts = {each.name: answer[each.name] for each in fields(HeldPhone)}
            facts["expires_at"] = datetime.fromisoformat(facts["expires_at"])
            here = datetime.now(UTC)
            offset = datetime.fromisoformat(answer.get("now", here.isoformat())) - here  # an older daemon says no time
            return cls(**facts, connection=connection, offset=offset)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(
                "the daemon described a lease in a form that this version does not know",
                hint="client and daemon must be the same farm release",
                evidence=f"{type(error).__name__}: {error}",
            ) from error

    async def extend(self, seconds: float) -> datetime:
        """Keep it `seconds` longer; returns when it ends now. Asked over a restart of the daemon, it may count twice.

        Raises:
            FarmError: it has ended, is another's next (a reservation), or would be longer than allowed.
        """
        answer = await self.connection.call("lease.extend", lease=self.lease, seconds=seconds)
        return datetime.fromisoformat(answer["expires_at"])

    async def ended(self) -> None:
        """Return when it is over. The client's `on_notice` is called before its time is over."""
        async with aclosing(watched(self.connection, (self.job,), 0)) as stream:
            async for each in stream:
                if not isinstance(each, tuple) and each.kind == EXPIRING:
                    left_s = (datetime.fromisoformat(str(each.data["expires_at"])) - self.now).total_seconds()
                    if left_s > 0:  # else it was extended since
                        left = format_duration(left_s)
                        self.connection.on_notice(f"the lease on {self.device} ends in {left}, unless it is extended")

    async def release(self) -> None:
        """Give it back, if it has not ended already; it is cleaned for the next one. Leaving `with` does it."""
        try:
            await self.connection.call("lease.release", lease=self.lease)
        except NoSuchLeaseError:
            # A daemon just started may not have resumed it yet. A job that has ended stays as it is.
            await self.connection.call("job.cancel", job=self.job)


async def granted(
    connection: DaemonConnection, job: str, on_wait: OnNotice | None = None, *, for_operator: bool = True
) -> AsyncLease | None:
    """The lease of a job as soon as there is one; None when the job ended without.

    Args:
        connection: to the daemon.
        job: of kind `lease`.
        on_wait: called with the reason why there is none yet, when it is news.
        for_operator: whether to wait also where only an operator can free a phone.

    Raises:
        NoPhoneError: only an operator can free a phone, and `for_operator` is false.
    """
    reasons = Reasons()
    async with aclosing(with_idle(watched(connection, (job,), 0, attended=True), IDLE_S)) as stream:
        async for each in stream:
            if isinstance(each, tuple):
                break
            # Progress is not kept: over a restart it may be missed, so silence is a reason to look too.
            if each is None or (each.kind == "job.progress" and each.data.get("step") == GRANTED):
                try:
                    return await AsyncLease.of(connection, job)
                except NoSuchLeaseError:
                    pass
            if (each is None or each.kind == "job.waits") and (on_wait is not None or not for_operator):
                waits = (await connection.call("job.show", job=job))["job"]["waits"]
                if not reasons.is_news(job, waits):
                    continue
                if not for_operator:
                    await _check_operator(connection, job, waits)
                if on_wait is not None:
                    on_wait(waits)
    return None


async def _check_operator(connection: DaemonConnection, job: str, waits: str) -> None:
    todo = (await connection.call("explain", what="job", name=job)).get("operator")
    if todo:
        message = f"only an operator can free a phone: {waits}"
        raise NoPhoneError(message, hint=f"{todo} (an operator), or choose others: farm device list")


def _adb_device(port: int, serial: str) -> AdbDevice:
    from adbutils import AdbClient, AdbConnection  # 164 ms
    from adbutils.errors import AdbConnectionError

    class LeaseConnection(AdbConnection):  # type: ignore[misc]
        def _safe_connect(self) -> socket.socket:
            """Connect. adbutils' own would start an adb server at port 5037, which takes the phones of USB."""
            try:
                connected = socket.create_connection(("127.0.0.1", port), CONNECT_S)
            except OSError as error:
                raise AdbConnectionError(f"the adb server of the lease of {serial} is gone: {error}") from error
            connected.settimeout(None)
            return connected

    def connect(timeout: float | None = None) -> AdbConnection:
        connection = LeaseConnection("127.0.0.1", port)
        connection.conn.settimeout(timeout)
        return connection

    server = AdbClient("127.0.0.1", port)
    server.make_connection = connect
    return server.device(serial)
