"""What a verb's form refuses, in one line: numbers and paths that nothing behind it could take."""

from types import SimpleNamespace

import pytest

from farm.control.forms import MAX_COUNT, read_fields
from farm.control.verbs.event import Since
from farm.control.verbs.job_forms import Logs, Watch
from farm.control.verbs.store import Backup
from farm.control.verbs.toolchain import AddToolchain
from farm.core.errors import UserError
from farm.core.limits import MAX_AFTER, MIN_TIME_S
from farm.jobs.admission import resolve_after
from farm.jobs.specs import BadSpecError, spec_from_wire

HUGE = 10**30
SHELL = {"kind": "shell", "on": "android", "command": "id"}


def read(form, **fields):
    return read_fields(SimpleNamespace(fields=fields, request=SimpleNamespace(kind="verb")), form)


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (Since, {"since": -1}),
        (Since, {"since": -HUGE}),
        (Since, {"since": HUGE}),
        (Watch, {"jobs": ["a"], "since": HUGE}),
        (Logs, {"job": "a", "after": HUGE}),
        (Logs, {"job": "a", "after": -1}),
        (Logs, {"job": "a", "number": HUGE}),
        (Backup, {"path": "/tmp/\0x"}),
        (Backup, {"path": "/tmp/\x1b[31m"}),
        (Backup, {"path": "/tmp/\udcff"}),
        (Backup, {"path": "/tmp/" + "a" * 256}),
        (Backup, {"path": "/tmp/" + "ä" * 128}),
        (Backup, {"path": "/a" * 3000}),
        (AddToolchain, {"name": "x", "python": "/tmp/\0"}),
        (AddToolchain, {"name": "x", "python": "/" + "a" * 5000}),
    ],
)
def test_what_nothing_can_take_is_refused_in_one_line(form, fields):
    with pytest.raises(UserError) as caught:
        read(form, **fields)
    assert "\n" not in str(caught.value)
    assert caught.value.message.isprintable()


def test_what_is_possible_is_taken():
    assert read(Since, since=MAX_COUNT).since == MAX_COUNT
    assert read(Logs, job="a", after=MAX_COUNT, number=1).after == MAX_COUNT
    assert read(Backup).path == ""
    assert read(Backup, path="/tmp/" + "a" * 255 + "/b c ä").path.endswith("ä")


@pytest.mark.parametrize(
    "wrong", [{"deadline_s": 1e-300}, {"timeout_s": 1e-300}, {"timeout_s": 0.09}, {"after": ["a"] * (MAX_AFTER + 1)}]
)
def test_a_spec_that_could_only_fail_or_hold_up_everybody(wrong):
    with pytest.raises(BadSpecError):
        spec_from_wire(SHELL | wrong)
    least = spec_from_wire(SHELL | {"deadline_s": MIN_TIME_S, "timeout_s": MIN_TIME_S, "after": ["a"] * MAX_AFTER})
    assert least.deadline_s == least.timeout_s == MIN_TIME_S


def test_each_name_that_a_submit_waits_for_is_looked_up_once():
    looked_up = []
    jobs = SimpleNamespace(get=lambda name: looked_up.append(name) or name, states=None, find=None)
    assert resolve_after(jobs, ("a", "b", "a")) == ("a", "b")
    assert looked_up == ["a", "b"]
