"""Who may remove a kept set of tuning records, and what is refused as one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from farm.common.errors import Code, NotAllowedError, UserError
from farm.control.callers import Role
from farm.control.verbs import handler
from farm.control.verbs.records import RecordsVerbs
from farm.store.artifacts import MAX_BEST_BYTES, MAX_TARGET_BYTES, MAX_TASKS, BadSetError
from farm.store.store import Store
from tests.support.errors import raises_code

FIELDS: dict[str, Any] = {
    "model": "a" * 64, "name": "net.onnx", "target": "llvm", "artifact": "b" * 64, "records": 1, "best": {"tasks": []},
}  # fmt: skip


def call(user: str, role: Role, *, verb: str = "records.remove", **fields: object) -> Any:
    request = SimpleNamespace(kind=verb)
    return SimpleNamespace(fields=fields, request=request, caller=SimpleNamespace(user=user, role=role))


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": 7},
        {"target": {"mattr": "x" * MAX_TARGET_BYTES}},
        {"best": {"x": "y" * MAX_BEST_BYTES}},
        {"best": {"tasks": [{}] * (MAX_TASKS + 1)}},
    ],
)
async def test_what_cannot_be_kept_beside_a_set_is_refused(wrong: dict[str, Any]) -> None:
    verbs = RecordsVerbs(SimpleNamespace(), SimpleNamespace(ensure=AsyncMock()))  # type: ignore[arg-type]
    asked: Any = SimpleNamespace(fields=FIELDS | wrong, request=SimpleNamespace(kind="records.keep"))
    with pytest.raises(BadSetError):
        await handler(verbs.keep)(asked)


@pytest.fixture
def verbs(tmp_path: Path) -> Iterator[RecordsVerbs]:
    store = Store.open(tmp_path / "farm.db")
    yield RecordsVerbs(store.record_sets, SimpleNamespace(ensure=AsyncMock()))
    store.close()


async def test_who_keeps_it_and_operators_may_and_nobody_else(verbs: RecordsVerbs) -> None:
    for user in ("ann", "bob"):
        await handler(verbs.keep)(call(user, Role.USER, verb="records.keep", **FIELDS))
    with pytest.raises(NotAllowedError, match="set 1 is ann's"):
        await handler(verbs.remove)(call("mallory", Role.USER, set=1))
    assert (await handler(verbs.remove)(call("ann", Role.USER, set=1)))["user"] == "ann"
    assert (await handler(verbs.remove)(call("root", Role.OPERATOR, set=2)))["set"] == 2
    with raises_code(Code.NO_SUCH_RECORDS):
        await handler(verbs.remove)(call("root", Role.OPERATOR, set=2))
    with pytest.raises(UserError, match=r"records\.remove"):
        await handler(verbs.remove)(call("root", Role.OPERATOR, set="net.onnx"))
    assert (await handler(verbs.list)(call("ann", Role.VIEWER, verb="records.list")))["sets"] == []


async def test_a_name_means_ones_own_set_or_the_only_one(verbs: RecordsVerbs) -> None:
    """Whoever kept one last under a name decided what the others compiled with."""

    async def named(user: str) -> object:
        shown = await handler(verbs.show)(call(user, Role.USER, verb="records.show", set="net.onnx"))
        assert shown["best"] == FIELDS["best"]
        return shown["set"]

    await handler(verbs.keep)(call("ann", Role.USER, verb="records.keep", **FIELDS))
    assert await named("bob") == 1
    await handler(verbs.keep)(call("mallory", Role.USER, verb="records.keep", **FIELDS))
    assert (await named("ann"), await named("mallory")) == (1, 2)
    with raises_code(Code.NO_SUCH_RECORDS, match="of several users") as caught:
        await named("bob")
    assert caught.value.hint == "say which: 2 (llvm, mallory), 1 (llvm, ann)"
