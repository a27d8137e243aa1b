"""Who wants another bundle on a phone waits until it is ready with it, or hears why it is not; and falling back."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.bundle.model import Bundle
from farm.common.errors import Code, NoSuchDeviceError
from farm.devices.admin import BundleOverride
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.lifecycle import Lifecycle
from farm.devices.lifecycle.recovery import RecoveryAction, RecoveryContext
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Life
from farm.model.health import DeviceFault
from tests.support.errors import raises_code

B = Bundle("new", "2" * 64, "x86_64", (), Path("files"), "default", (), "0.27.0", False)
READY = LifecycleState(Life.READY, adopted=True, identified=True, generation=5, follow=4, bundle="1" * 64)


class Phone:
    """An agent whose work is answered by the test, and the board that shows it."""

    serial, name = "S1", "unit"

    def __init__(self):
        self._life = Lifecycle(READY)
        self.listening = []
        self.overrides = BundleOverride(self.find, self.subscribe)

    @property
    def state(self):
        return self._life.state

    def find(self, name):
        if name != self.name:
            raise NoSuchDeviceError(f"there is no device {name}")
        return self

    def subscribe(self, callback):
        self.listening.append(callback)
        return lambda: self.listening.remove(callback)

    def override_bundle(self, bundle):
        self.on_event(m.BundleWanted(bundle.hash))

    def on_event(self, event):
        self._life.handle(event, 0.0)
        for callback in self.listening:
            callback(SimpleNamespace(serial=self.serial))


@pytest.fixture
async def phone():
    return Phone()


async def asked(phone):
    waiting = asyncio.create_task(phone.overrides.use("unit", B))
    await asyncio.sleep(0)
    assert phone.state.bundle_override == B.hash
    return waiting


async def test_it_is_there_when_the_check_is_passed(phone):
    waiting = await asked(phone)
    phone.on_event(m.Provisioned(phone.state.generation, B.hash))
    phone.on_event(m.ServerStarted(phone.state.generation))
    await asyncio.sleep(0)
    assert not waiting.done()
    phone.on_event(m.CheckPassed(phone.state.generation))
    await waiting
    assert phone.listening == []
    await phone.overrides.use("unit", B)  # it is there already


async def test_why_it_was_not_taken_is_said(phone):
    waiting = await asked(phone)
    phone.on_event(m.WorkFailed(phone.state.generation, "no space left"))
    with raises_code(Code.BUNDLE_NOT_TAKEN, match="unit does not run with bundle new: no space left"):
        await waiting
    assert phone.listening == []


async def test_who_waits_does_not_outlast_the_loan(phone):
    waiting = await asked(phone)
    phone.overrides.give_back("unit")
    with raises_code(Code.BUNDLE_NOT_TAKEN, match="it was given back meanwhile"):
        await waiting


async def test_another_bundle_ends_the_wait_for_this_one(phone):
    waiting = await asked(phone)
    phone.override_bundle(replace(B, hash="3" * 64))
    with raises_code(Code.BUNDLE_NOT_TAKEN):
        await waiting


async def test_a_phone_that_is_gone_takes_none(phone):
    phone.on_event(m.PlainEvent.UNLISTED)
    with raises_code(Code.BUNDLE_NOT_TAKEN, match="not listed by adb"):
        await phone.overrides.use("unit", B)
    with pytest.raises(NoSuchDeviceError):
        await phone.overrides.use("other", B)
    phone.overrides.give_back("forgotten")


OLD, NEW = "1" * 64, "2" * 64
NEW_ON_IT = RecoveryContext(fallback=OLD, on_trial=True)


def getting_new(upto):
    """A phone with a proven bundle that gets a candidate, as far as `upto`."""
    life = Lifecycle(replace(READY, proven=OLD))
    life.handle(m.PlainEvent.PROVISIONING_DUE, 100.0)
    answers = (m.Provisioned, NEW), (m.ServerStarted,), (m.CheckPassed,)
    for answer, *values in answers:
        if life.state.life is upto:
            break
        life.handle(answer(life.state.generation, *values), 100.0, NEW_ON_IT)
    assert life.state.life is upto
    return life


@pytest.mark.parametrize("at", [Life.PROVISIONING, Life.STARTING, Life.CHECKING])
@pytest.mark.parametrize(("fault", "at_fault"), [(DeviceFault.START, True), (DeviceFault.WRONG, True), (None, False)])
def test_a_new_bundle_that_fails_goes_back_before_any_recovery(at, fault, at_fault):
    life = getting_new(at)
    told = life.handle(m.WorkFailed(life.state.generation, "it exits with 3", fault=fault), 101.0, NEW_ON_IT)
    assert told[0] == m.ReportBundle("it exits with 3", at_fault)
    assert isinstance(told[1], m.Provision)
    assert (life.state.life, life.state.proven, life.state.failures) == (Life.PROVISIONING, OLD, 0)
    assert life.state.progress.tried == ()


@pytest.mark.parametrize("at", [Life.PROVISIONING, Life.STARTING, Life.CHECKING])
def test_a_new_bundle_is_not_to_blame_for_what_the_host_did(at):
    life = getting_new(at)
    failed = m.WorkFailed(life.state.generation, "the link was lost", fault=DeviceFault.START)
    told = life.handle(failed, 101.0, replace(NEW_ON_IT, external_cause="the adb server went away"))
    assert not any(isinstance(each, m.ReportBundle) for each in told)
    assert isinstance(told[-1], m.RetryLater)


def test_a_candidate_proves_nothing_before_it_is_accepted_and_the_old_one_stays_on_the_phone():
    life = getting_new(Life.READY)
    assert life.state.proven == OLD
    assert life.handle(m.BundleAccepted("3" * 64), 120.0) == ()
    assert life.handle(m.BundleAccepted(NEW), 120.0) == (m.DropOldBundles(),)
    assert life.state.proven == NEW


def test_a_server_that_dies_twice_under_a_new_bundle_goes_back():
    life = getting_new(Life.READY)
    first = life.handle(m.ServerDied(life.state.follow, "it exited with 3"), 101.0, NEW_ON_IT)
    assert [type(each) for each in first] == [m.StartServer]  # one death may be a user's doing
    life.handle(m.ServerStarted(life.state.generation), 102.0, NEW_ON_IT)
    life.handle(m.CheckPassed(life.state.generation), 103.0, NEW_ON_IT)
    second = life.handle(m.ServerDied(life.state.follow, "it exited with 3"), 104.0, NEW_ON_IT)
    assert second[0] == m.ReportBundle("it exited with 3", at_fault=True)


def test_a_quarantined_phone_that_an_operator_reboots_takes_no_other_bundle():
    life = Lifecycle(READY)
    life.handle(m.BugFound("signal 11"), 1.0)
    life.handle(m.ActionOrdered(RecoveryAction.REBOOT, "ordered by ann"), 2.0)
    life.handle(m.BundleWanted(B.hash), 3.0)
    assert (life.state.life, life.state.bundle_override) == (Life.RECOVERING, "")
    assert life.state.quarantine is not None
