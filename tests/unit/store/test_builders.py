"""Builders and their tokens."""

from datetime import UTC, datetime, timedelta

from farm.store.builders import BuilderRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = BuilderRecord("ci-3", "token's", "alice", NOW + timedelta(days=1))


async def test_a_token_is_good_once_for_its_time_and_until_a_later_one(store):
    builders = store.builders
    assert await builders.invite(TOKEN)
    assert not await builders.join("ci-3", "another's", "own", NOW)
    assert not await builders.join("ci-3", "token's", "own", NOW + timedelta(days=1))
    assert await builders.invite(BuilderRecord("ci-3", "later", "bob", TOKEN.expires_at))
    assert not await builders.join("ci-3", "token's", "own", NOW)
    assert await builders.join("ci-3", "later", "own", NOW)
    assert not await builders.join("ci-3", "own", "stolen", NOW)
    assert builders.all() == (BuilderRecord("ci-3", "own", "bob"),)


async def test_a_builder_keeps_its_name_and_counts_until_it_is_removed(store):
    builders = store.builders
    await builders.invite(TOKEN)
    await builders.join("ci-3", "token's", "own", NOW)
    assert not await builders.invite(TOKEN)
    for _ in range(2):
        await builders.note("ci-3", 5, NOW, {"tvm": "0.27.0"})
    assert builders.all() == (BuilderRecord("ci-3", "own", "alice", None, 10, NOW, {"tvm": "0.27.0"}),)
    assert await builders.remove("ci-3")
    assert not await builders.remove("ci-3")
    assert await builders.invite(TOKEN)
    assert builders.all() == (TOKEN,)
