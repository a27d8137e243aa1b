"""Who may remove a kept set of tuning records, and what is refused as one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.control.callers import Role
from farm.control.records_verbs import NoSuchSetError, RecordsVerbs
from farm.core.errors import NotAllowedError, UserError
from farm.store.record_sets import MAX_BEST_BYTES, MAX_TARGET_BYTES, BadSetError
from farm.store.store import Store
from tests.unit.store.values import job

FIELDS: dict[str, Any] = {
    "model": "a" * 64, "name": "net.onnx", "target": "llvm", "artifact": "b" * 64, "records": 1, "best": {},
}  # fmt: skip


def call(user: str, role: Role, number: object) -> Any:
    request = SimpleNamespace(kind="records.remove")
    return SimpleNamespace(fields={"set": number}, request=request, caller=SimpleNamespace(user=user, role=role))


@pytest.mark.parametrize(
    "wrong",
    [{"target": 7}, {"target": {"mattr": "x" * MAX_TARGET_BYTES}}, {"best": {"x": "y" * MAX_BEST_BYTES}}],
)
async def test_what_cannot_be_kept_beside_a_set_is_refused(wrong: dict[str, Any]) -> None:
    verbs = RecordsVerbs(SimpleNamespace(), SimpleNamespace(path=lambda _: None))  # type: ignore[arg-type]
    asked: Any = SimpleNamespace(fields=FIELDS | wrong, request=SimpleNamespace(kind="records.keep"))
    with pytest.raises(BadSetError):
        await verbs.keep(asked)


async def test_the_owner_of_its_job_and_operators_may_and_nobody_else(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "farm.db")
    try:
        tuning: Any = job("j1")
        await store.jobs.add([tuning])
        await store.record_sets.keep(**FIELDS, job="j1")
        await store.record_sets.keep(**FIELDS, job="")
        by_hand, of_job = (each.id for each in store.record_sets.page(limit=2))
        verbs = RecordsVerbs(store.record_sets, SimpleNamespace())
        with pytest.raises(NotAllowedError, match=f"{tuning.user}'s"):
            await verbs.remove(call("mallory", Role.USER, of_job))
        with pytest.raises(NotAllowedError, match="kept by hand"):
            await verbs.remove(call(tuning.user, Role.USER, by_hand))
        assert (await verbs.remove(call(tuning.user, Role.USER, of_job)))["set"] == of_job
        assert (await verbs.remove(call("root", Role.OPERATOR, by_hand)))["set"] == by_hand
        with pytest.raises(NoSuchSetError):
            await verbs.remove(call("root", Role.OPERATOR, by_hand))
        with pytest.raises(UserError, match=r"records\.remove"):
            await verbs.remove(call("root", Role.OPERATOR, "net.onnx"))
        assert store.record_sets.page(limit=2) == ()
    finally:
        store.close()
