"""The audit log: one row per call that changes something, or was refused; written before the caller is answered.

A row names what the call was about and what was ordered: switches, choices and names of the request, never free text,
since a spec, a label or a note may hold a secret. A caller who is refused again and again fills no disk: of the same
refusal only the first few of a minute are written, and after them one row that counts the rest.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from farm.common.errors import Code, FarmError, NotAllowedError
from farm.common.tasks import BackgroundTasks
from farm.common.verbs import Verb
from farm.control.callers import Caller
from farm.store.accounts import AuditRecord, AuditTable

OK = "ok"
WRONG_TOKEN, WRONG_KEY = "wrong_token", "wrong_key"
FORGED = "forged"  # of the page: from another site
REFUSED = frozenset({NotAllowedError.code, WRONG_TOKEN, WRONG_KEY, FORGED, Code.FORM_EXPIRED})
SUBJECT_CHARS = 120
LONGEST = 3 * SUBJECT_CHARS  # of a subject with its order
SHOWN = 4  # of several
NOTHING: Mapping[str, Any] = MappingProxyType({})
REFUSALS_WRITTEN = 10  # of the same caller, verb and outcome in a window
WINDOW_S = 60.0
MAX_WINDOWS = 4096  # refusals are remembered of so many callers and verbs at once; beyond that each is only counted

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Window:
    began: float
    latest: AuditRecord
    written: int = 0
    dropped: int = 0


class AuditTrail:
    """Writes audit rows. A database that cannot be written delays no call: the row goes to the log instead."""

    def __init__(
        self,
        store: AuditTable,
        host: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`host`: this host's name in a lab, whose hosts share the table; "": without a lab. `wall`: of the rows."""
        self._store = store
        self._host = host
        self._clock = clock
        self._wall = wall
        self._refusals: dict[tuple[str, str, str], _Window] = {}
        self._later = BackgroundTasks()
        self.outcomes: Counter[str] = Counter()  # calls, by outcome: ok, refused, failed
        self.dropped = 0  # refusals that were counted, not written
        self.unwritten = 0  # rows the store did not take

    async def record(self, caller: Caller, kind: str, subject: str, outcome: str = OK) -> None:
        """Write one row."""
        self.outcomes[outcome if outcome == OK else "refused" if outcome in REFUSED else "failed"] += 1
        about = _short(subject, LONGEST)
        at_host = f" at host {self._host}" if self._host and not caller.host else ""  # a call of another host names it
        origin = f"{caller.origin}{at_host}"
        record = AuditRecord(self._wall(), caller.user, caller.role.word, origin, kind, about, outcome)
        await self._write([record] if outcome == OK else self._refusal(caller, record))

    def record_later(self, caller: Caller, kind: str, subject: str, outcome: str) -> None:
        """The same for a call that is being cancelled and may wait for nothing."""
        self._later.spawn(self.record(caller, kind, subject, outcome), "audit row")

    async def close(self) -> None:
        """Write the rows that are left, and the counts of refusals."""
        await self._later.end(math.inf)
        open_windows = [window for window in self._refusals.values() if window.dropped]
        self._refusals.clear()
        await self._write([_counted(window) for window in open_windows])

    def _refusal(self, caller: Caller, record: AuditRecord) -> list[AuditRecord]:
        now = self._clock()
        rows = self._ended(now)
        source = (caller.user or caller.origin) if caller.peer is None else str(caller.peer.quota_key)
        key = (source, record.kind, record.outcome)
        window = self._refusals.get(key)
        if window is None and len(self._refusals) < MAX_WINDOWS:
            window = self._refusals[key] = _Window(now, record)
        if window is not None and window.written < REFUSALS_WRITTEN:
            window.written += 1
            return [*rows, record]
        self.dropped += 1
        if window is not None:
            window.dropped += 1
            window.latest = record
        return rows

    def _ended(self, now: float) -> list[AuditRecord]:
        """Counts of the windows that are over. The oldest stand first, so that a look costs nothing."""
        over = list(takewhile(lambda each: now - each[1].began >= WINDOW_S, self._refusals.items()))
        for key, _ in over:
            del self._refusals[key]
        return [_counted(window) for _, window in over if window.dropped]

    async def _write(self, records: list[AuditRecord]) -> None:
        if not records:
            return
        try:
            await self._store.add(records)
        except FarmError as error:
            self.unwritten += len(records)
            for record in records:
                logger.error("not in the audit log (%s): %s", error, record)  # noqa: TRY400 (no trace: the store logged it)


def about_call(declared: Verb, fields: Mapping[str, Any], answer: Mapping[str, Any] = NOTHING) -> str:
    """A call's subject, of its request or else its answer, with its order: `ann role=operator web=true`."""
    subject = _name(declared.subject_in(fields)) or _name(declared.subject_in(answer))
    order = [f"{name}={value}".lower() for name, value in fields.items() if isinstance(value, bool)]
    for path in declared.order:
        group, _, name = path.rpartition(".")  # "spec.kind" is the field `kind` of the field `spec`
        given = fields.get(group) if group else fields
        value = given.get(name) if isinstance(given, Mapping) else None
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != "":
            order.append(f"{name}={value}")
    return " ".join(filter(None, (subject, _short(" ".join(order), 2 * SUBJECT_CHARS))))


def _name(value: object) -> str:
    """A name, or the first few of a list's names and ids."""
    if isinstance(value, str):
        return _short(value)
    if not isinstance(value, (list, tuple)):
        return ""
    ids: list[Any] = [each.get("id") if isinstance(each, Mapping) else each for each in value[:SHOWN]]
    if not all(isinstance(each, str) for each in ids):
        return ""
    return _short(" ".join(ids) + (f" and {len(value) - SHOWN} more" if len(value) > SHOWN else ""))


def _short(text: str, most: int = SUBJECT_CHARS) -> str:
    kept = "".join(character if character.isprintable() else "?" for character in text[:most])
    return kept if len(text) <= most else f"{kept}..."


def _counted(window: _Window) -> AuditRecord:
    return replace(window.latest, outcome=f"{window.latest.outcome} ({window.dropped} times more)")
