"""Messages between hosts and a head apart from them, as JSON and back."""

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

import pytest

from farm.common.selector import Selector
from farm.head import messages as m
from farm.head import wire
from farm.head.queue.model import StopAttempt
from farm.model.device import Closed, DeviceState, Heat, Life, UsbPlace
from farm.model.identity import DeviceIdentity, Soc
from farm.model.job import Attempt, AttemptState, Job, JobState
from farm.model.requests import Lease, LeaseClass, LeaseRequest, LeaseSource

AT = datetime(2026, 11, 20, 12, 0, 0, 123457, tzinfo=UTC)
REQUEST = LeaseRequest(
    Selector.parse("fast,soc=sm8550"), "ann", LeaseSource.JOB, lease_class=LeaseClass.TUNE, avoid=frozenset({"b", "c"}),
    only=frozenset({"a"}), worker=True, longest_s=12.5, job="j1",
)  # fmt: skip
LEASE = Lease("lease-3-1", "a", 3 << 32 | 1, REQUEST, granted_at=90.0)
JOB = Job(
    "j1", "bench", "ann", {"shapes": {"x": [1, 3]}, "on": "fast"}, "fast", AT, JobState.QUEUED, avoid=frozenset({"b"}),
    after=("j0",), deadline=AT, error={"code": "worker_silent", "message": "ende \udcff"},
)  # fmt: skip
ATTEMPT = Attempt("j1.1", "j1", 1, "a", "lease-3-1", LEASE.fence, AT, facts={"pid": 7})
STATE = DeviceState(
    "a", "emulator-5554", Life.READY, heat=Heat.COOLING, adopted=True, labels={"soc": "sm8550"}, aliases=("fast",),
    identity=DeviceIdentity(model="A", soc=Soc("SM8550"), abis=("arm64-v8a",), targets={"cpu": {"kind": "llvm"}}),
    place=UsbPlace("1-4", 2, "1-4.2"), closed={LeaseClass.BENCH: Closed("41.0 C, at most 36", 300.0)},
)  # fmt: skip
ERROR = {"code": "timeout", "message": "no result"}
MESSAGES = (
    m.DeviceChanged(STATE), m.DeviceForgotten("a"), m.RequestAdded("request-2-1", REQUEST),
    m.RequestWithdrawn("request-2-1"), m.LeaseArmed("a", "lease-3-1"), m.LeaseRefused("a", "lease-3-1", "it is held"),
    m.LeaseRestored(LEASE), m.LeaseExtended("a", 60.0), m.LeaseEnded("a", "lease-3-1"), m.SlotKept("a", "lease-3-1"),
    m.SlotFreed("lease-3-1"), m.AttemptEnded(replace(ATTEMPT, state=AttemptState.FAILED, error=ERROR, ended_at=AT), 1),
    m.HostBegan(), m.HostLeft(), m.HostDrained("ann drains it"), m.Salvaged("j1"),
    m.LeaseGranted("request-2-1", LEASE, AT, m.AttemptClaim(JOB, ATTEMPT)), m.YieldWanted("a"),
    m.SlotWanted("lease-3-1"), m.LeaseUnwanted("lease-3-1", "the requester left"),
    m.LeaseLost("lease-3-1", "its cable was pulled"), m.SessionBroken("lease-3-1", "it hangs"),
    m.LeaseHeld("request-3-9", LEASE, "lab2"),
    StopAttempt("j1", AttemptState.CANCELLED, ERROR, "j1.1"), m.Salvage(JOB),
    m.Order("order-1", "hold", {"job_ids": ["j", "k"]}), m.OrderAnswer("order-1", ["j"]),
    m.OrderAnswer("order-2", error=ERROR), m.DialBack("lab2", "f00d"),
)  # fmt: skip


def sent(message, *, at_s=100.0, read_at_s=100.0):
    """The message as the other side reads it."""
    body = json.loads(json.dumps(wire.encode(message, at_s)))
    read = wire.to_head if isinstance(message, m.ToHead) else wire.to_host
    return read(body, read_at_s)


def test_every_message_is_tried():
    assert {type(each) for each in MESSAGES} == {*get_args(m.ToHead), *get_args(m.ToHost)}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    arrived = sent(message)
    assert arrived == message
    assert type(arrived) is type(message)


def test_a_lease_is_as_old_by_the_receivers_clock():
    assert sent(m.LeaseRestored(LEASE), at_s=100.0, read_at_s=5.0).lease.granted_at == -5.0


@pytest.mark.parametrize("body", [{"kind": "Unheard"}, {}, {"kind": "RunAttempt"}, {"kind": "LeaseEnded", "device": 5}])
def test_what_is_no_message_for_the_head_is_left_out(body, caplog):
    with caplog.at_level(logging.WARNING):
        assert wire.to_head(body, 0.0) is None
    (said,) = (each.getMessage() for each in caplog.records)
    assert "is left out" in said
    assert "\n" not in said


def test_fields_of_a_later_release_are_ignored():
    body = {"kind": "LeaseEnded", "device": "a", "lease": "lease-3-1", "since": 5}
    assert wire.to_head(body, 0.0) == m.LeaseEnded("a", "lease-3-1")
