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
from farm.devices.lifecycle.recovery import RecoveryContext
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Life
from farm.model.health import DeviceFault
from tests.support.errors import raises_code
from tests.support.lifecycle_story import GONE, Story

B = Bundle("new", "2" * 64, "x86_64", (), Path("files"), "default", (), "0.27.0", False)
READY = LifecycleState(Life.READY, adopted=True, identified=True, generation=5, follow=4, bundle="1" * 64)


class Phone(Story):
    """An agent whose work is answered by the test, and the board that shows it."""

    serial, name = "S1", "unit"

    def __init__(self):
        super().__init__()
        self.machine.state, self.listening = READY, []
        self.overrides = BundleOverride(self.find, self.subscribe)

    def find(self, name):
        if name != self.name:
            raise NoSuchDeviceError(f"there is no device {name}")
        return self

    def subscribe(self, callback):
        self.listening.append(callback)
        return lambda: self.listening.remove(callback)

    def override_bundle(self, bundle):
        self.on(m.BundleWanted(bundle.hash))

    def on_event(self, event):
        self.on(event)

    def on(self, *events):
        super().on(*events)
        for callback in self.listening:
            callback(SimpleNamespace(serial=self.serial))
        return self.last


@pytest.fixture
def phone():
    return Phone()


async def asked(phone):
    waiting = asyncio.create_task(phone.overrides.use("unit", B))
    await asyncio.sleep(0)
    assert phone.state.bundle_override == B.hash
    return waiting


async def test_it_is_there_when_the_check_is_passed(phone):
    waiting = await asked(phone)
    phone.until(Life.CHECKING, bundle=B.hash)
    await asyncio.sleep(0)
    assert not waiting.done()
    phone.until(Life.READY)
    await waiting
    assert phone.listening == []
    await phone.overrides.use("unit", B)  # it is there already


async def test_why_it_was_not_taken_is_said(phone):
    waiting = await asked(phone)
    phone.fails("no space left")
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
    phone.on(GONE)
    with raises_code(Code.BUNDLE_NOT_TAKEN, match="not listed by adb"):
        await phone.overrides.use("unit", B)
    with pytest.raises(NoSuchDeviceError):
        await phone.overrides.use("other", B)
    phone.overrides.give_back("forgotten")


OLD, NEW = "1" * 64, "2" * 64
ON_TRIAL = {"fallback": OLD, "on_trial": True}
GETTING_IT = [Life.PROVISIONING, Life.STARTING, Life.CHECKING]


def trial(life, **context):
    """A phone with a proven bundle that gets a candidate, as far as `life`."""
    story = Story()
    story.machine.state, story.context = replace(READY, proven=OLD), RecoveryContext(**ON_TRIAL, **context)
    story.on(m.PlainEvent.PROVISIONING_DUE)
    story.until(life, bundle=NEW)
    return story


@pytest.mark.parametrize("at", GETTING_IT)
@pytest.mark.parametrize(("fault", "at_fault"), [(DeviceFault.START, True), (DeviceFault.WRONG, True), (None, False)])
def test_a_new_bundle_that_fails_goes_back_before_any_recovery(at, fault, at_fault):
    story = trial(at)
    told = story.fails("it exits with 3", fault)
    assert told[0] == m.ReportBundle("it exits with 3", at_fault)
    assert isinstance(told[1], m.Provision)
    assert (story.life, story.state.proven, story.state.failures) == (Life.PROVISIONING, OLD, 0)
    assert story.state.progress.tried == ()


@pytest.mark.parametrize("at", GETTING_IT)
def test_a_new_bundle_is_not_to_blame_for_what_the_host_did(at):
    told = trial(at, external_cause="the adb server went away").fails("the link was lost", DeviceFault.START)
    assert not any(isinstance(each, m.ReportBundle) for each in told)
    assert isinstance(told[-1], m.RetryLater)


def test_a_candidate_proves_nothing_before_it_is_accepted_and_the_old_one_stays_on_the_phone():
    story = trial(Life.READY)
    assert story.state.proven == OLD
    assert story.on(m.BundleAccepted("3" * 64)) == ()
    assert story.on(m.BundleAccepted(NEW)) == (m.DropOldBundles(),)
    assert story.state.proven == NEW


def test_a_server_that_dies_twice_under_a_new_bundle_goes_back():
    story = trial(Life.READY)
    assert [type(each) for each in story.dies("it exited with 3")] == [m.StartServer]  # may be a user's doing
    story.until(Life.READY)
    assert story.dies("it exited with 3")[0] == m.ReportBundle("it exited with 3", at_fault=True)
