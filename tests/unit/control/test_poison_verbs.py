"""Whose word counts for whom: a user's for themselves, an operator's for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.common.errors import NotAllowedError
from farm.common.events import EventLog
from farm.control.callers import Role
from farm.control.verbs import handler
from farm.control.verbs.records import PoisonVerbs
from farm.jobs.poison import PoisonLedger
from farm.store.store import Store

A = "a" * 64


def call(verb: str, user: str, role: Role, **fields: object) -> Any:
    caller = SimpleNamespace(user=user, role=role)
    return SimpleNamespace(fields=fields, request=SimpleNamespace(kind=verb), caller=caller)


@pytest.fixture
def verbs(tmp_path: Path) -> Iterator[PoisonVerbs]:
    """Everybody but bob holds the phone."""
    store = Store.open(tmp_path / "farm.db")
    leases = [SimpleNamespace(device="pixel", request=SimpleNamespace(user=user, job="j")) for user in ("ann", "root")]
    holders: Any = [SimpleNamespace(lease=lease) for lease in leases]
    yield PoisonVerbs(PoisonLedger(store.poison, EventLog(store.epoch)), lambda: holders)
    store.close()


@pytest.mark.parametrize(("user", "role", "refused"), [("ann", Role.USER, []), ("root", Role.OPERATOR, [A])])
async def test_a_users_word_decides_for_that_user_only(
    verbs: PoisonVerbs, user: str, role: Role, refused: list[str]
) -> None:
    for _ in range(2):
        told = call("poison.report", user, role, artifact=A, device="pixel", what="SIGSEGV", kills=2)
        await handler(verbs.report)(told)

    async def poisoned(who: str) -> object:
        answer: Any = await handler(verbs.refused)(call("poison.check", who, Role.VIEWER, artifacts=[A]))
        return answer["poisoned"]

    assert await poisoned(user) == [A]
    assert await poisoned("carl") == refused


async def test_who_holds_no_phone_tells_nothing(verbs: PoisonVerbs) -> None:
    with pytest.raises(NotAllowedError, match="pixel is not yours now"):
        await handler(verbs.report)(call("poison.report", "bob", Role.USER, artifact=A, device="pixel", what="a lie"))
