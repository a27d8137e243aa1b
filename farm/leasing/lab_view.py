"""The whole lab as any of its hosts shows it: the hosts, and the phones of the others. Read from the database."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from farm.common.errors import HostError
from farm.common.selector import natural
from farm.common.tasks import SharedCall
from farm.head import wire
from farm.head.host_rules import AWAY, SILENT_S, HostState, gone_with_host, state_of
from farm.head.messages import DeviceChanged
from farm.head.reports import summarise
from farm.leasing.lab_readings import ShownReadings, decode_readings, with_readings
from farm.model.device import DeviceState, DeviceView, Life
from farm.model.sessions import FleetSummary
from farm.store.lab_table import HostTokenRecord, LabRows, LabTable
from farm.store.leases import LeaseRecord
from farm.store.mailbox import HostRecord, Letter

LOOK_LIMIT_S = 1.0  # for people's questions: a database that does not answer is given up after ten seconds and more
KEPT_S = 1.0  # looks are shared for so long: one at 1,000 phones takes some milliseconds
_STATES = DeviceState.__dataclass_fields__
_ROW = HostRecord.__dataclass_fields__


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView(HostRecord):
    """A host as people see it: its row, and what follows from it."""

    state: HostState
    silent_s: float | None = None  # since its latest beat; None: it does not run
    phones: int = 0
    unreached: str | None = None  # why this host cannot connect to it; "": it can; None: it was not tried


@dataclass(frozen=True, slots=True)
class RemotePhone:
    """A phone of another host."""

    host: str
    view: DeviceView  # with the few readings that its host writes
    holder: str  # user, or source of the lease if it has none; "": it is free
    unused: bool = False  # its host does not use it, because another one has it


@dataclass(frozen=True, slots=True)
class LabPicture:
    """The lab at about one moment."""

    hosts: tuple[HostView, ...] = ()
    tokens: tuple[HostTokenRecord, ...] = ()
    phones: tuple[RemotePhone, ...] = ()  # of other hosts
    leases: tuple[LeaseRecord, ...] = ()  # of other hosts
    letters: int = 0  # in the head's mailbox
    waiting: int = 0  # requests without a phone
    term: int = 0  # number of the head's term
    has_head: bool = True
    summary: FleetSummary = field(default_factory=FleetSummary)  # the tracker's rows of other hosts
    old_s: float = 0.0  # how long the database has given no newer one; 0: this is of now, or was a moment ago

    def host_of(self, word: str) -> str:
        """The other host that has the phone of that name or serial; "": none, or several do."""
        found = {each.host for each in self.phones if word in (each.view.name, each.view.serial)}
        named = {each.host for each in self.phones if word == each.view.name}
        fitting = named or found
        return fitting.pop() if len(fitting) == 1 else ""

    def host_of_lease(self, word: str) -> str:
        """The other host that holds the lease of that id or job, a unique beginning of one suffices; "": none."""
        named = [each for each in self.leases if word in (each.id, each.job)]
        begins = [each for each in self.leases if word and (each.id.startswith(word) or each.job.startswith(word))]
        found = named or begins
        return found[0].host if len(found) == 1 else ""

    def host(self, name: str) -> HostView | None:
        """The host of that name."""
        return next((each for each in self.hosts if each.name == name), None)


class LabView:
    """Looks at the lab, once for all callers within a second."""

    def __init__(
        self, own: str = "", table: LabTable | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`own`: this host's name; "", or no table: this host belongs to no lab, and the picture stays empty."""
        self.own = own if table is not None else ""
        self._table = table
        self._shared = SharedCall(self._look, keep_s=KEPT_S)
        self._clock = clock
        self._looked_s = clock()
        self._seen = LabPicture()  # by the latest look that the database answered, which ended at `_looked_s`
        self.latest = self._seen  # the same, or how old it is
        self.unreached: Callable[[str], str | None] = lambda _: None  # see `HostView.unreached`
        self.still_unreached: Callable[[str], Awaitable[str]] = _reached  # the same, by another try
        # By host and device: row and state of the latest look.
        self._states: dict[tuple[str, str], tuple[Mapping[str, Any], DeviceState]] = {}

    async def look(self) -> LabPicture:
        """The lab now; while the database is away or does not answer, the latest picture with its age."""
        if self.own:
            try:
                async with asyncio.timeout(LOOK_LIMIT_S):
                    self.latest = self._seen = await self._shared(None)
                self._looked_s = self._clock()
            except (HostError, TimeoutError):  # the writer reports it
                self.latest = _of_before(self._seen, self._clock() - self._looked_s)
        return self.latest

    async def _look(self, _: None) -> LabPicture:
        assert self._table is not None
        return await self._table.in_thread(lambda table: self._read(table.look()), self._table)

    def _read(self, rows: LabRows) -> LabPicture:
        states = self._read_states(rows)
        phones = Counter(host for (host, _), (_, state) in states.items() if state.adopted)
        holders = {each.device: each.user or each.source.value for each in rows.leases}
        hosts = {each.name: each for each in _hosts_of(rows, phones, self.unreached)}
        self._states = states
        readings = {host: decode_readings(body) for host, body in rows.readings.items() if host != self.own}
        views = {
            (host, name): _as_view(state, hosts.get(host), readings.get(host, {}).get(name))
            for (host, name), (_, state) in sorted(states.items(), key=lambda each: (each[0][0], natural(each[0][1])))
        }
        there = {name for (_, name), view in views.items() if view.life is not Life.GONE}
        phones_of_others = tuple(
            RemotePhone(host, view, holders.get(name, ""), bool(states[host, name][1].withheld))
            for (host, name), view in views.items()
            if host != self.own and not (view.life is Life.GONE and name in there)  # else it has moved
        )
        pending = Counter(_key_of(each) for each in rows.requests if each.host != self.own)
        return LabPicture(
            tuple(hosts.values()),
            rows.tokens,
            phones_of_others,
            tuple(each for each in rows.leases if each.host != self.own),
            rows.letters,
            len(rows.requests),
            rows.term,
            rows.term_holds,
            summarise((each.view for each in phones_of_others), holders, pending),
        )

    def _read_states(self, rows: LabRows) -> dict[tuple[str, str], tuple[Mapping[str, Any], DeviceState]]:
        """Parse only rows that have changed: parsing takes longest."""
        states = {}
        for letter in rows.devices:
            name = letter.host, str(_part(letter, "state").get("name", ""))
            known = self._states.get(name)
            if known is not None and known[0] == letter.body:
                states[name] = known
            elif isinstance(message := wire.to_head(letter.body, 0.0), DeviceChanged):
                states[name] = letter.body, message.state
        return states


def _of_before(picture: LabPicture, old_s: float) -> LabPicture:
    """A picture that was of now so long ago: once a beat is missed, nothing is known of the hosts."""
    if old_s <= SILENT_S:
        return picture
    hosts = (
        replace(each, state=HostState.UNKNOWN, silent_s=None if each.silent_s is None else each.silent_s + old_s)
        for each in picture.hosts
    )
    return replace(picture, hosts=tuple(hosts), old_s=old_s)


async def _reached(_host: str) -> str:
    return ""


def _hosts_of(rows: LabRows, phones: Mapping[str, int], unreached: Callable[[str], str | None]) -> Iterator[HostView]:
    for row in rows.hosts:
        silent_s = None if row.beat_at is None else max(0.0, (rows.now - row.beat_at).total_seconds())
        state = state_of(silent_s, drained=bool(row.drained), removed=row.removed_at is not None)
        fields = {name: getattr(row, name) for name in _ROW}
        tried = None if state in AWAY else unreached(row.name)
        yield HostView(**fields, state=state, silent_s=silent_s, phones=phones.get(row.name, 0), unreached=tried)


def _as_view(state: DeviceState, host: HostView | None, readings: ShownReadings | None) -> DeviceView:
    """A phone as its host reported it; a phone of a host that is away is gone."""
    view = with_readings(DeviceView(**{name: getattr(state, name) for name in _STATES}), readings)
    if host is not None and host.state in AWAY:
        return gone_with_host(view, host.name, host.state, host.beat_at)
    if host is not None and host.state is HostState.DRAINED:
        return replace(view, reason=view.reason or host.drained, withheld=host.drained)
    return view


def _key_of(letter: Letter) -> str:
    """The stock TVM key of a client's request, or the job of a request for a further phone."""
    request = _part(letter, "request")
    return str(request.get("key") or request.get("job") or "")


def _part(letter: Letter, name: str) -> Mapping[str, Any]:
    part = letter.body.get(name)
    return part if isinstance(part, Mapping) else {}
