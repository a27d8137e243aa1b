"""Verbs about kept sets of tuning records. What is in a set is the clients' business: here it is an artifact."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import Count, Sha256, Verbs, form, verb
from farm.control.server import ControlCall
from farm.core.errors import NotAllowedError, UserError
from farm.core.target_key import target_words
from farm.store.record_sets import KeptSet, RecordSets, check_set

SHOWN_SETS = 200

Name = Annotated[str, Field(min_length=1, max_length=255)]


@form
class ListSets:
    """`records.list`."""

    name: str = ""  # of a model; "": all
    job: str = ""  # whose end they were; "": all
    limit: Annotated[int, Field(ge=1, le=1000)] = SHOWN_SETS


@form
class OneSet:
    """A set: its number, or a model's name for the caller's newest one; of who has none, for the only one there is."""

    set: Name


@form
class KeepSet:
    """`records.keep`: as a tune job keeps its own."""

    model: Sha256
    name: Name
    target: Any
    artifact: Sha256
    records: Count
    best: dict[str, Any]


@form
class RemoveSet:
    """`records.remove`: a set by its number; a model's name would mean another one tomorrow."""

    set: Annotated[int, Field(ge=1, lt=1 << 63)]


class NoSuchSetError(UserError):
    """There is no such set of records."""

    code = "no_such_records"


class Artifacts(Protocol):
    """The artifact folder, as far as a set needs it."""

    def path(self, sha256: str) -> object:
        """Where it is.

        Raises:
            UserError: it is not there.
        """
        ...


class RecordsVerbs(Verbs):
    """Verbs about kept sets."""

    def __init__(self, sets: RecordSets, artifacts: Artifacts) -> None:
        self._sets = sets
        self._artifacts = artifacts

    @verb("records.list", Role.VIEWER)
    async def list(self, asked: ListSets) -> Mapping[str, Any]:
        """The newest sets."""
        found = await asyncio.to_thread(self._sets.page, name=asked.name, job=asked.job, limit=asked.limit)
        return {"sets": [row(each) for each in found]}

    @verb("records.show", Role.VIEWER)
    async def show(self, asked: OneSet, call: ControlCall) -> Mapping[str, Any]:
        """One set."""
        return row(await asyncio.to_thread(self._found, asked.set, call.caller.user), whole=True)

    @verb("records.keep", Role.USER)
    async def keep(self, asked: KeepSet, call: ControlCall) -> Mapping[str, Any]:
        """Keep an artifact as a version of a model's records.

        Raises:
            UserError: there is no such artifact, or target or best are none or too large.
        """
        check_set(asked.target, asked.best)
        await asyncio.to_thread(self._artifacts.path, asked.artifact)
        version = await self._sets.keep(
            model=asked.model,
            name=asked.name,
            target=asked.target,
            artifact=asked.artifact,
            records=asked.records,
            best=asked.best,
            user=call.caller.user,
            job="",
        )
        return {"version": version}

    @verb("records.remove", Role.USER)
    async def remove(self, asked: RemoveSet, call: ControlCall) -> Mapping[str, Any]:
        """Forget a set: who keeps it may, and operators; answers with what was removed."""
        number = asked.set
        kept = await asyncio.to_thread(self._found, str(number), call.caller.user)
        if call.caller.role < Role.OPERATOR and call.caller.user != kept.user:
            whose = f"{kept.user}'s" if kept.user else "nobody's: its job is forgotten"
            raise NotAllowedError(f"set {number} is {whose}", hint="its owner or an operator may remove it")
        if not await self._sets.remove(number):
            raise NoSuchSetError(f"there is no set of records {number}", hint="farm records list")
        return row(kept)

    def _found(self, which: str, user: str) -> KeptSet:
        if which.isascii() and which.isdigit() and len(which) < 19:
            found = self._sets.get(int(which))
            if found is None:
                raise NoSuchSetError(f"there is no set of records {which}", hint="farm records list")
            return found
        newest = self._sets.newest(which)
        if not newest:
            raise NoSuchSetError(f"there are no records of a model {which!r}", hint="farm records list")
        newest = tuple(each for each in newest if each.user == user) or newest
        if len(newest) > 1:
            numbers = ", ".join(f"{each.id} ({target_words(each.target)}, {each.user or '-'})" for each in newest[:8])
            raise NoSuchSetError(
                f"{which} has records for several models or targets, or of several users", hint=f"say which: {numbers}"
            )
        return self._found(str(newest[0].id), user)


def row(kept: KeptSet, *, whole: bool = False) -> dict[str, Any]:
    """A set as the door tells it; `whole`: with the best of each task."""
    fields: dict[str, Any] = {
        "set": kept.id,
        "name": kept.name,
        "version": kept.version,
        "target": kept.target,
        "records": kept.records,
        "user": kept.user,
        "job": kept.job,
        "at": kept.at.isoformat(),
        "model": kept.model,
        "artifact": kept.artifact,
    }
    return {**fields, "best": dict(kept.best)} if whole else fields
