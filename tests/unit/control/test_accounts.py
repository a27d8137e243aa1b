"""Accounts: what is kept of a secret, who is found by it, and what wrong ones cost."""

import hashlib
import logging
import os
from datetime import UTC, datetime, timedelta

import pytest
from zmq.utils import z85

from farm.common.errors import Code, UserError
from farm.control.callers import (
    FREE_TRIES,
    MAX_PLACES,
    MAX_WAIT_S,
    Accounts,
    FailedAttempts,
    Operators,
    Principal,
    Role,
)
from tests.support.errors import raises_code


@pytest.fixture
def accounts(store):
    return Accounts(store.accounts)


async def test_no_secret_is_on_the_disk(accounts, store, tmp_path):
    token = (await accounts.new("ann", Role.OPERATOR, web=True, by="root")).token
    key = await accounts.new("ann", Role.OPERATOR, web=False, by="root")
    assert len(token) > 40
    assert store.accounts.get("ann").token_sha256 == hashlib.sha256(token.encode()).hexdigest()
    assert await accounts.by_curve_key(z85.decode(key.public_key)) == Principal("ann", Role.OPERATOR)
    store.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert token.encode() not in stored
    assert key.secret_key.encode() not in stored


async def test_the_right_token_finds_its_account_and_no_other_does(accounts):
    made = await accounts.new("ann", Role.USER, web=True, by="root")
    assert await accounts.by_token(made.token) == Principal("ann", Role.USER)
    digest = hashlib.sha256(made.token.encode()).hexdigest()
    for wrong in ("", made.token[:-1], made.token + "x", digest, "x" * 10_000, "\udcff", "ä", "' OR 1=1 --"):
        assert await accounts.by_token(wrong, "10.0.0.3") is None
    assert accounts.tokens.wrong == 8


async def test_an_operators_key_is_without_a_share_until_it_is_revoked(accounts):
    operators = Operators(accounts)

    async def connected(name, role):
        made = await accounts.new(name, role, web=False, by="root")
        assert name not in operators
        await accounts.by_curve_key(z85.decode(made.public_key))
        return name in operators

    assert await connected("ann", Role.OPERATOR)
    assert not await connected("vic", Role.VIEWER)
    assert [name in operators for name in ("nobody", os.geteuid(), 0, 12345)] == [False, True, True, False]
    await accounts.revoke("ann")
    assert not await connected("ann", Role.VIEWER)


async def test_revoking_takes_both_and_tells(accounts, store):
    gone = []
    accounts.on_revoked(gone.append)
    token = (await accounts.new("ann", Role.USER, web=True, by="root")).token
    key = (await accounts.new("ann", Role.USER, web=False, by="root")).public_key
    await accounts.revoke("ann")
    assert gone == ["ann"]
    assert await accounts.by_token(token) is None
    assert await accounts.by_curve_key(z85.decode(key)) is None
    assert await accounts.named("ann") is None
    assert store.accounts.get("ann").revoked_at is not None
    with raises_code(Code.NO_SUCH_ACCOUNT):
        await accounts.revoke("ann")
    await accounts.new("ann", Role.VIEWER, web=True, by="root")
    assert await accounts.by_token(token) is None


@pytest.mark.parametrize("name", ["", "Ann", "uid-1000", "a b", "a\n", "../a", "1ann", "a" * 33, "ä", "a;b", "-a"])
async def test_names_are_plain(accounts, name):
    with pytest.raises(UserError, match="is no name"):
        await accounts.new(name, Role.USER, web=True, by="root")


async def test_an_account_has_one_role_and_one_secret_of_a_kind(accounts):
    await accounts.new("ann", Role.USER, web=True, by="root")
    for role, web, said in ((Role.USER, True, "has a token"), (Role.OPERATOR, False, "ann is user")):
        with pytest.raises(UserError, match=said):
            await accounts.new("ann", role, web=web, by="root")


async def test_a_use_is_noted_once_a_minute(store):
    now = datetime(2026, 11, 22, tzinfo=UTC)
    accounts = Accounts(store.accounts, now=lambda: now)
    ann = (await accounts.new("ann", Role.USER, web=True, by="root")).account
    await accounts.noted(ann)
    first, now = now, now + timedelta(seconds=59)
    await accounts.noted(ann)
    assert store.accounts.get("ann").used_at == first
    now += timedelta(seconds=1)
    await accounts.noted(ann)
    assert store.accounts.get("ann").used_at == now


def test_wrong_tokens_are_logged_once_and_wait_longer_each_time(caplog):
    now = 0.0
    tries = FailedAttempts("token", clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        waits = [tries.failed("10.0.0.3") for _ in range(FREE_TRIES + 10)]
    assert waits[: FREE_TRIES - 1] == [0.0] * (FREE_TRIES - 1)
    assert waits[FREE_TRIES - 1 : FREE_TRIES + 3] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == MAX_WAIT_S
    assert tries.wait_s("10.0.0.4") == 0.0
    assert len(caplog.records) == 1
    now = MAX_WAIT_S
    assert tries.wait_s("10.0.0.3") == 0.0
    assert tries.wrong == FREE_TRIES + 10


def test_places_are_forgotten_and_bounded():
    now = 0.0
    tries = FailedAttempts("key", clock=lambda: now)
    for number in range(MAX_PLACES + 100):
        tries.failed(str(number))
    assert len(tries._places) == MAX_PLACES
    for _ in range(FREE_TRIES):
        tries.failed("again")
    now = 601.0
    assert tries.failed("again") == 0.0
