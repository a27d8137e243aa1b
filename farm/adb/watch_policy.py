"""When to try again, and which changes to report: decisions over plain values. Time is passed in, in seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from farm.adb.devices import AdbState
from farm.common.durations import BackOff
from farm.common.errors import UserError

DEFAULT_NETWORK_PORT = 5555  # of `adb tcpip`

_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9_.-]{1,15})?\]")  # RFC 1035, RFC 4007
_PORT = re.compile(r"[0-9]{1,5}")
_SERVER = BackOff(0.05, 5.0)  # a killed server is back in 0.1 s; a missing binary needs no storm
_NETWORK = BackOff(1.0, 30.0)  # a phone that left the room; adb itself tries every 3-10 s


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """The watcher's numbers."""

    server: BackOff = _SERVER
    network: BackOff = _NETWORK
    tick_s: float = 0.5  # how often network phones and the probe's time are looked at
    wanted_every_s: float = 2.0  # a network phone that a request waits for, or that an operator views
    probe_every_s: float = 5.0  # a silent stream proves nothing: ask for the list
    probe_timeout_s: float = 2.0
    probes_lost: int = 2  # in a row, then the server counts as wedged; one may drown in a burst of plugging
    trips_lost: int = 3  # the same for phones while the list still comes; each asks all of them
    trip_timeout_s: float = 2.0  # for one round trip to a phone; a busy one takes a tenth
    life_s: float = 10.0  # a byte from any phone within it proves life, with or without a list
    hurt_after_s: float = 30.0  # with leases running: nothing at all may have worked for so long before it is replaced
    replacements: int = 6  # an hour: a server that hangs more often has a cause that replacing does not cure
    adb_gives_up_s: float = 70.0  # adb retries a lost network phone for 60 s, then drops it
    settled_s: float = 30.0  # a server up for so long has recovered: the next failure is reported again


REPLACEMENTS_WITHIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """Use of the adb server."""

    leases: int = 0  # leased devices: replacing the server ends their streams
    last_byte_at: float = 0.0  # of a phone in a session, monotonic seconds


@dataclass(frozen=True, slots=True)
class ServerEvidence:
    """The adb server's health at one moment."""

    lists_lost: int  # lists in a row that it did not answer; 0: it answers
    usable: int  # phones it lists as usable (listed last)
    trips_lost: int  # times in a row that not one of them answered a command
    silent_s: float  # since the last byte of any phone
    dead_s: float  # how long nothing at all has worked; 0: something does
    leases: int
    replaced: int  # how often it was replaced within the last hour


class Remedy(StrEnum):
    """The action on the adb server."""

    WAIT = "wait"
    REPORT = "report"  # a person should know; the server is left alone
    REPLACE = "replace"


def judge(seen: ServerEvidence, policy: WatchPolicy) -> tuple[Remedy, str]:
    """Whether the server is dead enough to be replaced; the text is the reason, "" when all is well.

    A list alone proves nothing: transports may be dead behind it, and a slow list may come from a server that still
    carries sessions. One phone that does not answer is that phone's matter.
    """
    if seen.lists_lost:
        if seen.silent_s < policy.life_s:
            late = seen.lists_lost > policy.probes_lost
            reason = "it is slow: it lists no phones in time, yet phones answer through it"
            return (Remedy.REPORT, reason) if late else (Remedy.WAIT, "")
        wedged, reason = seen.lists_lost >= policy.probes_lost, "it hangs: it takes connections but answers nothing"
    else:
        alive = seen.trips_lost == 0 or seen.usable < 2 or seen.silent_s < policy.life_s
        wedged, reason = (
            not alive and seen.trips_lost >= policy.trips_lost,
            (f"it lists {seen.usable} phones and not one of them answers a command"),
        )
    if not wedged:
        return Remedy.WAIT, ""
    if seen.replaced >= policy.replacements:
        return Remedy.REPORT, f"{reason}; it was replaced {seen.replaced} times within an hour, which did not help"
    if seen.leases and seen.dead_s < policy.hurt_after_s:
        left_s = policy.hurt_after_s - seen.dead_s
        return Remedy.REPORT, (
            f"{reason}; {seen.leases} leased phones would lose their sessions, so it is replaced"
            f" only if nothing works for {left_s:.0f} s more"
        )
    return Remedy.REPLACE, reason


@dataclass(frozen=True, slots=True)
class Outage:
    """Failures in a row of one thing, and the kind that was reported."""

    failures: int = 0
    reported: str = ""

    def failed(self, kind: str) -> tuple[Outage, bool]:
        """One more failure. The bool: whether to report it, as the first of its kind."""
        return Outage(self.failures + 1, kind), kind != self.reported


class NetworkAction(StrEnum):
    """The action on a network phone now."""

    NONE = "none"
    CONNECT = "connect"
    RECONNECT = "reconnect"  # disconnect, then connect: adb has given up but still lists it
    REPORT_BACK = "report_back"  # it was reported lost and is listed again


@dataclass(frozen=True, slots=True)
class NetworkPhone:
    """One phone that farm keeps connected, forever."""

    address: str  # HOST:PORT, as adb lists it
    outage: Outage = Outage()
    next_try_at: float = 0.0  # monotonic seconds
    tried_at: float = 0.0  # when the last attempt ended, monotonic seconds
    offline_since: float | None = None
    busy: bool = False  # an attempt is under way

    def step(
        self, listed: AdbState | None, now: float, policy: WatchPolicy, *, wanted: bool = False
    ) -> tuple[NetworkPhone, NetworkAction]:
        """Decides from its state in adb's list (None: not listed). `wanted`: a request waits for it."""
        due = min(self.next_try_at, self.tried_at + policy.wanted_every_s) if wanted else self.next_try_at
        if listed in (AdbState.OFFLINE, AdbState.CONNECTING):
            since = self.offline_since if self.offline_since is not None else now
            phone = replace(self, offline_since=since)
            if self.busy or now < max(since + policy.adb_gives_up_s, due):
                return phone, NetworkAction.NONE  # adb's own attempts continue
            return replace(phone, busy=True, offline_since=now), NetworkAction.RECONNECT
        if listed is not None:
            phone = replace(self, outage=Outage(), offline_since=None, next_try_at=now)
            return phone, NetworkAction.REPORT_BACK if self.outage.reported else NetworkAction.NONE
        phone = replace(self, offline_since=None)
        if self.busy or now < due:
            return phone, NetworkAction.NONE
        return replace(phone, busy=True), NetworkAction.CONNECT

    def on_attempt(self, failure: str, now: float, policy: WatchPolicy) -> tuple[NetworkPhone, bool]:
        """An attempt ended; `failure` is its kind, empty for success. The bool: whether to report it.

        A success is not reported: the list shows the phone, perhaps before the attempt has ended.
        """
        if not failure:
            return replace(self, busy=False, next_try_at=now + policy.network.first_s, tried_at=now), False
        outage, new = self.outage.failed(failure)
        next_try_at = now + policy.network.delay_s(outage.failures)
        return replace(self, busy=False, outage=outage, next_try_at=next_try_at, tried_at=now), new


def network_address(text: str) -> str:
    """`HOST[:PORT]` as adb lists it, with the port that `adb connect` would take.

    Raises:
        UserError: no host, or an impossible port.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or (text.endswith("]")):
        host, port = text.strip(), str(DEFAULT_NETWORK_PORT)
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) <= 0xFFFF:
        raise UserError(
            f"{text[:80]!r} is not a network phone's address", hint="Write HOST:PORT, for example 10.0.0.7:5555."
        )
    return f"{host}:{port}"
