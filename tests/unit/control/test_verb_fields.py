"""The fields that verbs refuse, in one line: numbers and paths that nothing behind them could take."""

from functools import wraps
from types import SimpleNamespace

import pytest

from farm.common.errors import Code, UserError
from farm.common.limits import MAX_AFTER, MIN_TIME_S
from farm.common.verbs import MAX_COUNT, FieldError
from farm.control.server import ControlCall
from farm.control.verbs.bundle import ToolchainVerbs
from farm.control.verbs.job import JobVerbs
from farm.control.verbs.store import EventVerbs
from farm.head.planning import resolve_after
from farm.kinds import KINDS
from farm.model.specs import spec_from_wire
from tests.support.errors import raises_code
from tests.support.verbs import ask

HUGE = 10**30
SHELL = {"kind": "shell", "on": "android", "command": "id"}


async def read(verbs, method, /, **fields):
    """The checked fields that the verb's method is called with."""

    @wraps(getattr(verbs.__new__(verbs), method))
    async def echo(**given):
        given.pop("call", None)
        return given

    return await ask(echo, **fields)


@pytest.mark.parametrize(
    ("verbs", "name", "fields"),
    [
        (EventVerbs, "events", {"since": -1}),
        (EventVerbs, "events", {"since": -HUGE}),
        (EventVerbs, "events", {"since": HUGE}),
        (JobVerbs, "watch", {"jobs": ["a"], "since": HUGE}),
        (JobVerbs, "logs", {"job": "a", "after": HUGE}),
        (JobVerbs, "logs", {"job": "a", "after": -1}),
        (JobVerbs, "logs", {"job": "a", "number": HUGE}),
        (ToolchainVerbs, "add", {"name": "x", "python": "/tmp/\0x"}),
        (ToolchainVerbs, "add", {"name": "x", "python": "/tmp/\x1b[31m"}),
        (ToolchainVerbs, "add", {"name": "x", "python": "/tmp/\udcff"}),
        (ToolchainVerbs, "add", {"name": "x", "python": "/tmp/" + "a" * 256}),
        (ToolchainVerbs, "add", {"name": "x", "python": "/tmp/" + "ä" * 128}),
        (ToolchainVerbs, "add", {"name": "x", "python": "/a" * 3000}),
        (ToolchainVerbs, "add", {"name": "x", "python": "/" + "a" * 5000}),
    ],
)
async def test_what_nothing_can_take_is_refused_in_one_line(verbs, name, fields):
    with pytest.raises(UserError) as caught:
        await read(verbs, name, **fields)
    assert "\n" not in str(caught.value)
    assert caught.value.message.isprintable()


async def test_what_is_possible_is_taken():
    assert (await read(EventVerbs, "events", since=MAX_COUNT))["since"] == MAX_COUNT
    assert (await read(JobVerbs, "logs", job="a", after=MAX_COUNT, number=1))["after"] == MAX_COUNT
    path = "/tmp/" + "a" * 255 + "/b c ä"
    assert (await read(ToolchainVerbs, "add", name="x", python=path))["python"] == path


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "lend: device is missing"),
        ({"device": "x", "colour": "red"}, "lend: colour is not known here"),
        ({"device": 5}, "lend: device must be a text (got 5)"),
    ],
)
async def test_missing_unknown_and_wrong_fields_are_named(fields, said):
    with pytest.raises(FieldError) as caught:
        await ask(lend, **fields)
    assert caught.value.message == said


async def lend(call: ControlCall, device: str, *, pool: str = "") -> dict:
    return {"device": device, "pool": pool, "kind": call.request.kind}


async def test_a_parameter_gets_the_call():
    assert await ask(lend, device="a") == {"device": "a", "pool": "", "kind": "lend"}


@pytest.mark.parametrize(
    "wrong", [{"deadline_s": 1e-300}, {"timeout_s": 1e-300}, {"timeout_s": 0.09}, {"after": ["a"] * (MAX_AFTER + 1)}]
)
def test_a_spec_that_could_only_fail_or_hold_up_everybody(wrong):
    with raises_code(Code.BAD_SPEC):
        spec_from_wire(KINDS, SHELL | wrong)
    least = spec_from_wire(
        KINDS, SHELL | {"deadline_s": MIN_TIME_S, "timeout_s": MIN_TIME_S, "after": ["a"] * MAX_AFTER}
    )
    assert least.deadline_s == least.timeout_s == MIN_TIME_S


def test_each_name_that_a_submit_waits_for_is_looked_up_once():
    looked_up = []
    jobs = SimpleNamespace(get=lambda name: looked_up.append(name) or name, states=None, find=None)
    assert resolve_after(jobs, ("a", "b", "a")) == ("a", "b")
    assert looked_up == ["a", "b"]
