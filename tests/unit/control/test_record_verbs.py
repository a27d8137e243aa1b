"""Whose word counts for whom: a user's for themselves, an operator's for all; and what is no set of records."""

from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from farm.common.errors import Code, NotAllowedError, UserError
from farm.common.events import EventLog
from farm.control.callers import Role
from farm.control.verbs.records import PoisonVerbs, RecordsVerbs
from farm.jobs.poison import PoisonLedger
from farm.store.artifacts import MAX_BEST_BYTES, MAX_TARGET_BYTES, MAX_TASKS, BadSetError
from tests.support.errors import raises_code
from tests.support.verbs import ask

A = "a" * 64
FIELDS = {"model": A, "name": "net.onnx", "target": "llvm", "artifact": "b" * 64, "records": 1, "best": {"tasks": []}}


@pytest.fixture
def poison(store):
    """Everybody but bob holds the phone."""
    leases = [SimpleNamespace(device="pixel", request=SimpleNamespace(user=user, job="j")) for user in ("ann", "root")]
    holders = [SimpleNamespace(lease=lease) for lease in leases]
    return PoisonVerbs(PoisonLedger(store.poison, EventLog(store.epoch)), lambda: holders)


@pytest.fixture
def records(store):
    return RecordsVerbs(store.record_sets, SimpleNamespace(ensure=AsyncMock()))


@pytest.mark.parametrize(("user", "role", "refused"), [("ann", Role.USER, []), ("root", Role.OPERATOR, [A])])
async def test_a_users_word_decides_for_that_user_only(poison, user, role, refused):
    for _ in range(2):
        await ask(poison.report, user, role, artifact=A, device="pixel", what="SIGSEGV", kills=2)
    for who, found in ((user, [A]), ("carl", refused)):
        assert (await ask(poison.refused, who, Role.VIEWER, artifacts=[A]))["poisoned"] == found


async def test_who_holds_no_phone_tells_nothing(poison):
    with pytest.raises(NotAllowedError, match="pixel is not yours now"):
        await ask(poison.report, "bob", artifact=A, device="pixel", what="a lie")


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": 7},
        {"target": {"mattr": "x" * MAX_TARGET_BYTES}},
        {"best": {"x": "y" * MAX_BEST_BYTES}},
        {"best": {"tasks": [{}] * (MAX_TASKS + 1)}},
    ],
)
async def test_what_cannot_be_kept_beside_a_set_is_refused(records, wrong):
    with pytest.raises(BadSetError):
        await ask(records.keep, **FIELDS | wrong)


async def test_who_keeps_a_set_and_operators_may_remove_it_and_nobody_else(records):
    for user in ("ann", "bob"):
        await ask(records.keep, user, **FIELDS)
    with pytest.raises(NotAllowedError, match="set 1 is ann's"):
        await ask(records.remove, "mallory", set=1)
    assert (await ask(records.remove, set=1))["user"] == "ann"
    assert (await ask(records.remove, "root", Role.OPERATOR, set=2))["set"] == 2
    with raises_code(Code.NO_SUCH_RECORDS):
        await ask(records.remove, "root", Role.OPERATOR, set=2)
    with pytest.raises(UserError):
        await ask(records.remove, "root", Role.OPERATOR, set="net.onnx")
    assert (await ask(records.list))["sets"] == []


async def test_a_name_means_ones_own_set_or_the_only_one(records):
    """Whoever kept one last under a name decided what the others compiled with."""

    async def named(user):
        shown = await ask(records.show, user, set="net.onnx")
        assert shown["best"] == FIELDS["best"]
        return shown["set"]

    await ask(records.keep, "ann", **FIELDS)
    assert await named("bob") == 1
    await ask(records.keep, "mallory", **FIELDS)
    assert (await named("ann"), await named("mallory")) == (1, 2)
    with raises_code(Code.NO_SUCH_RECORDS, match="of several users") as caught:
        await named("bob")
    assert caught.value.hint == "say which: 2 (llvm, mallory), 1 (llvm, ann)"
