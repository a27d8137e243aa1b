"""Leases, rows and mailboxes of a lab in memory: nothing is lost, and the test says when each is read."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from farm.common.events import Event
from farm.model.job import Attempt
from farm.store.leases import LeaseRecord
from farm.store.mailbox import Letter
from tests.support.keeping import MemoryKeeper


class MemoryPost(MemoryKeeper):
    """`store.leases` and `store.mailbox` of all hosts and their head. It checks what the database would."""

    def __init__(self) -> None:
        super().__init__()
        self.to_host: list[Letter] = []
        self.states: dict[str, Letter] = {}  # by device
        self.requests: dict[str, Letter] = {}  # without an armed lease, in order of arrival
        self.armed: set[str] = set()  # leases, ended ones too
        self.fences: dict[str, int] = {}  # of the lease that was armed last, by device
        self.ends: Counter[str] = Counter()  # by lease
        self.beats: Counter[str] = Counter()  # by host
        self.drained: dict[str, str] = {}  # hosts, and why
        self.not_queued: set[str] = set()  # jobs that no attempt may claim
        self.let_through: dict[str, int] = {}  # by host, how many letters it finds; others: all

    def held(self) -> dict[str, str]:
        """The lease of each device that is held."""
        return {row.device: row.id for row in self.open() if row.id in self.armed}

    # --- leases ---

    async def arm(
        self,
        lease_id: str,
        at: datetime,
        request_id: str,
        letter: Letter,
        to_holder: Letter | None = None,
        *,
        begun: tuple[Attempt, int] | None = None,
        events: Sequence[Event] = (),
    ) -> bool:
        await self._commit(letter.host)
        row = self.rows.get(lease_id)
        if row is None or row.ended_at is not None or lease_id in self.armed:
            return False
        if begun is not None and begun[0].job in self.not_queued:
            return False
        assert row.fence > self.fences.get(row.device, 0), "a fence did not grow"
        self.fences[row.device] = row.fence
        self.armed.add(lease_id)
        self.rows[lease_id] = replace(row, armed_at=at)
        self._forget(self.requests, request_id)
        self.to_head.append(letter)
        if to_holder is not None:
            self.to_host.append(to_holder)
        return True

    async def publish_key(self, lease_id: str, match_sha256: str) -> bool:
        await self._commit("")
        self.rows[lease_id] = replace(self.rows[lease_id], match_sha256=match_sha256)
        return True

    async def keep_slot(self, lease_id: str, *, kept: bool, letter: Letter) -> None:
        await self._commit("")
        self.rows[lease_id] = replace(self.rows[lease_id], slot=kept)
        self.to_head.append(letter)

    def _keep(self, record: LeaseRecord, events: Sequence[Event]) -> None:
        self.ends[record.id] += record.ended_at is not None
        assert self.ends[record.id] <= 1 or record.cleaned_s, f"{record.id} ended twice"
        super()._keep(record, events)

    # --- rows and mailboxes ---

    def _write(self, rows: dict[str, Letter], name: str, message: Letter) -> None:
        """The head reads the row as it is when it reads."""
        self._forget(rows, name)
        rows[name] = message
        self.to_head.append(message)

    def _forget(self, rows: dict[str, Letter], name: str) -> None:
        gone = rows.pop(name, None)
        self.to_head = [each for each in self.to_head if each is not gone]

    async def begin(self, letter: Letter, protocol: int, version: str = "") -> None:
        await self._commit("")
        self.drained.pop(letter.host, None)
        self._forget_requests(letter.host)
        self.to_host = [each for each in self.to_host if each.host != letter.host]
        self.to_head.append(letter)

    async def leave(self, letter: Letter) -> None:
        await self._commit("")
        self._forget_requests(letter.host)
        self.to_head.append(letter)

    def _forget_requests(self, host: str) -> None:
        for name in [name for name, each in self.requests.items() if each.host == host]:
            self._forget(self.requests, name)

    async def beat(self, name: str, protocol: int) -> None:
        await self._commit("")
        self.beats[name] += 1

    async def drain(self, reason: str, letter: Letter) -> None:
        await self._commit("")
        self.drained[letter.host] = reason
        self.to_head.append(letter)

    async def send(self, *letters: Letter) -> None:
        await self._commit("")
        self.to_head += letters

    async def device_changed(self, name: str, letter: Letter) -> None:
        await self._commit("")
        self._write(self.states, name, letter)

    async def device_forgotten(self, name: str, letter: Letter) -> None:
        await self._commit("")
        self._forget(self.states, name)
        self.to_head.append(letter)

    async def request_added(self, request_id: str, letter: Letter) -> None:
        await self._commit("")
        self._write(self.requests, request_id, letter)

    async def request_withdrawn(self, request_id: str, letter: Letter) -> None:
        await self._commit("")
        self._forget(self.requests, request_id)
        self.to_head.append(letter)

    async def send_to_hosts(self, letters: Sequence[Letter]) -> None:
        await self._commit("")
        self.to_host += letters

    async def take(self, host: str, within_s: float = 0.0) -> tuple[Letter, ...]:
        await asyncio.sleep(0)
        mine = [each for each in self.to_host if each.host == host]
        taken = mine[: self.let_through.get(host, len(mine))]
        self.to_host = [each for each in self.to_host if each not in taken]
        return tuple(taken)

    def taken_by_head(self, host: str, most: int) -> tuple[Letter, ...]:
        """What the head reads next of one host: rows and letters, in order."""
        taken = [each for each in self.to_head if each.host == host][:most]
        self.to_head = [each for each in self.to_head if all(each is not one for one in taken)]
        return tuple(taken)


class TermTable:
    """`store.leases` of one head: writes nothing once another one has taken over."""

    def __init__(self, post: MemoryPost, is_head: Callable[[], bool]) -> None:
        self._post = post
        self._is_head = is_head

    async def grant(self, record: LeaseRecord, events: Sequence[Event] = (), letter: Letter | None = None) -> None:
        await self._hold_term()
        await self._post.grant(record, events, letter)

    async def end(self, lease_id: str, **ended: Any) -> bool:
        await self._hold_term()
        return await self._post.end(lease_id, **ended)

    async def add_cleaning(self, lease_id: str, seconds: float, events: Sequence[Event] = ()) -> bool:
        await self._hold_term()
        return await self._post.add_cleaning(lease_id, seconds, events)

    async def _hold_term(self) -> None:
        await self._post.gate.wait()
        if not self._is_head():
            await asyncio.get_running_loop().create_future()  # its process is gone
