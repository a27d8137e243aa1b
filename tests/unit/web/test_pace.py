"""Readers that ask much: one rendering for all who ask at once, and a part of the daemon's time for each caller."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from starlette.requests import HTTPConnection

from farm.control.callers import Role
from farm.web import guard
from farm.web.guard import Pace, network_of
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until
from tests.support.web_desk import Desk, Page, status

READERS = 20


class SlowDesk(Desk):
    """It answers when the test says so."""

    go = None

    async def ask(self, caller, kind, fields):
        answer = await super().ask(caller, kind, fields)
        if self.go is not None:
            await self.go.wait()
        return answer


async def asked_at_once(farm, paths, *cookies):
    """The verbs of first pages' readers that ask at once."""
    farm.desk.go, before = asyncio.Event(), len(farm.desk.asked)
    reading = [asyncio.ensure_future(farm.get(path, cookie=each)) for path in paths for each in cookies]
    guarded = farm.app.state.web.pace._under_way
    await until(lambda: guarded.taken == len(reading) and len(farm.desk.asked) > before)
    farm.desk.go.set()
    assert {(await each).status_code for each in reading} == {200}
    farm.desk.go = None
    return farm.desk.kinds[before:].count("status")


async def test_one_rendering_serves_all_who_ask_at_once(numbers):
    numbers(guard, FREE_AT_ONCE=READERS)
    farm = Page(SlowDesk(status=status()))
    assert await asked_at_once(farm, ["/"], *[""] * READERS) == 1
    assert await asked_at_once(farm, ["/", "/?sort=name"], "", "") == 2
    await farm.sign_in("ann", Role.OPERATOR)
    farm.client.cookies.clear()
    assert await asked_at_once(farm, ["/"], "", f"farm_session={farm.session.id}") == 2, "they see different pages"


async def test_metrics_are_rendered_once_for_all_who_ask_at_once(numbers):
    numbers(guard, FREE_AT_ONCE=READERS)
    rendered = []

    async def metrics(accept):
        rendered.append(accept)
        await until(lambda: farm.app.state.web.pace._under_way.taken == READERS)
        return b"farm_up 1\n", accept

    farm = Page(metrics=metrics)
    answers = await asyncio.gather(*(farm.get("/metrics", accept=f"text/plain;q={n}") for n in range(READERS)))
    assert ({each.text for each in answers}, len(rendered)) == ({"farm_up 1\n"}, 1)


@virtual_time
async def test_a_caller_with_many_requests_has_its_part_of_the_time_and_others_do_not_wait():
    clock = asyncio.get_running_loop().time
    pace = Pace(clock)
    begun, most = clock(), 2000
    async with AsyncExitStack() as stack:

        async def ask(caller):
            async with pace.turn(caller) as admitted:
                if admitted:
                    await asyncio.sleep(guard.REQUEST_S)
                return admitted

        async def ask_on(caller):
            return sum([await ask(caller) for _ in range(most)])

        many = [asyncio.ensure_future(ask_on("10.0.0.7")) for _ in range(READERS)]
        for each in many:
            stack.callback(each.cancel)
        assert await ask("10.0.0.8")
        before = clock()
        assert await ask("10.0.0.8")
        assert clock() - before == pytest.approx(guard.REQUEST_S)
        answered = sum(await asyncio.gather(*many))
        assert answered * guard.REQUEST_S <= guard.SHARE * (clock() - begun + guard.SAVED_S + guard.MAX_WAIT_S) + 1
        assert len(pace._until) == 2


def test_a_login_of_this_host_is_one_client_at_every_address_of_loopback():
    """It has 16 million, each with a part of the daemon's time."""
    charged = Page().web.client_of(HTTPConnection({"type": "http", "headers": [], "client": ("127.9.8.7", 1)}))
    assert {charged, *map(network_of, ("127.0.0.1", "::1", "::ffff:127.0.0.2"))} == {"loopback"}
    assert [network_of(each) for each in ("10.0.0.7", "2001:db8::2:1", "nowhere")] == [
        "10.0.0.7", "2001:db8::/64", "nowhere",
    ]  # fmt: skip


@virtual_time
async def test_more_requests_than_may_wait_are_refused_at_once():
    pace = Pace(asyncio.get_running_loop().time)
    async with AsyncExitStack() as stack:
        for _ in range(guard.MAX_AT_ONCE):
            assert await stack.enter_async_context(pace.turn("ann"))
        assert not await stack.enter_async_context(pace.turn("ann"))
        assert await stack.enter_async_context(pace.turn("bob"))


async def test_orders_for_chosen_jobs_do_not_wait_for_each_other():
    farm = Page(SlowDesk(**{"job.cancel": lambda job: {"changed": [job], "jobs": []}}))
    await farm.sign_in()
    farm.desk.go = asyncio.Event()
    ordered = asyncio.ensure_future(farm.order("/chosen/cancel", {"job": ["bench-1", "bench-2", "bench-3"]}))
    await until(lambda: farm.kinds().count("job.cancel") == 3)
    farm.desk.go.set()
    assert await ordered == (303, "/jobs")
