"""Random histories of the allocator beside the model: all that can happen, and closer looks at one thing each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.reservations import Reservation
from farm.head.config import UserConfig
from farm.model.device import Closed, Heat, Service, UsbPlace
from farm.model.requests import LeaseClass
from tests.support.allocator import lease_request, phone
from tests.support.allocator_machine import ALIASES, HUB, NAMES, POLICY, Beside, lives, names, requested, users


class Everything(Beside):
    """All that can happen."""

    # --- devices ---

    @rule(
        name=names,
        alias=st.sampled_from(ALIASES),
        life=lives,
        service=st.sampled_from([Service.IN] * 4 + [Service.DRAINING]),
        heat=st.sampled_from([Heat.OK] * 4 + [Heat.COOLING]),
        closed=st.sampled_from(
            [()] * 3 + [(LeaseClass.BENCH,), (LeaseClass.BENCH, LeaseClass.TUNE), tuple(LeaseClass)]
        ),
        opens_in_s=st.sampled_from((None, 30.0)),
        warm=st.booleans(),
        place=st.sampled_from((None, HUB, HUB, UsbPlace("2", 1, "2.1"))),
    )
    def device_changes(self, name, alias, life, service, heat, closed, opens_in_s, warm, place):
        shut = {each: Closed("it is too warm", opens_in_s, heat=warm) for each in closed}
        self.model.views[name] = phone(name, alias, life=life, service=service, heat=heat, closed=shut, place=place)
        self.model.told_s[name] = self.model.now_s
        self.step(Allocator.device_changed, self.model.views[name])

    @rule(name=names)
    def device_is_forgotten(self, name):
        self.model.views.pop(name, None)
        self.step(Allocator.device_forgotten, name)

    # --- requests and leases ---

    @rule(**requested)
    def request_comes(self, **wanted):
        self.comes(lease_request(**wanted))

    @rule(on=names, **requested | {"device": st.just("")})
    def lease_is_restored(self, on, **wanted):
        if on in self.model.held:
            return
        self.count += 1
        request = lease_request(**wanted)
        self.model.begins(on, f"r{self.count}", request)
        self.step(Allocator.lease_restored, on, f"r{self.count}", request)

    # --- rules of the house ---

    @rule(weight=st.sampled_from((1.0, 2.0, 5.0)), devices=st.integers(0, 3), user=users)
    def shares_change(self, weight, devices, user):
        self.model.shares[user] = UserConfig(weight, devices)
        self.step(Allocator.quotas_changed, self.model.default, self.model.shares)

    @rule(
        names=st.lists(
            st.tuples(
                st.sampled_from(("android", *ALIASES, *NAMES)),
                st.sets(users, min_size=1, max_size=2),
                st.sampled_from((-5.0, 0.0, 10.0, 35.0, 100.0)),
                st.sampled_from((1.0, 20.0, 300.0)),
            ),
            max_size=3,
        )
    )
    def reservations_change(self, names):
        now_s = self.model.now_s
        self.model.reservations = tuple(
            Reservation(f"{index}", Selector.parse(key), frozenset(who), now_s + offset_s, now_s + offset_s + length_s)
            for index, (key, who, offset_s, length_s) in enumerate(names)
        )
        self.step(Allocator.reservations_changed, self.model.reservations)

    @rule(paused=st.sampled_from((True, False, False)))
    def store_fails_or_works(self, paused):
        self.model.paused = paused
        self.step(Allocator.paused, "the disk is full" if paused else "")


class TunersAndOthers(Beside):
    """Few phones, always there, and many tune leases: somebody is asked to yield all the time."""

    @rule(
        user=users,
        lease_class=st.sampled_from((LeaseClass.TUNE, LeaseClass.TUNE, LeaseClass.BENCH)),
        priority=st.sampled_from((1, 1, 1, 2)),
        key=st.sampled_from(("android", "android", "a")),
        worker=st.booleans(),
    )
    def request_comes(self, **wanted):
        self.comes(lease_request(wanted.pop("key"), **wanted))


class Hubs(Beside):
    """Two phones share a hub, and many requests need a quiet one."""

    PLACES: ClassVar[Mapping[str, UsbPlace]] = {"a": HUB, "b": HUB, "c": UsbPlace("2", 1, "2.1")}

    @rule(
        user=users,
        quiet_hub=st.booleans(),
        lease_class=st.sampled_from(LeaseClass),
        key=st.sampled_from(("android", "android", "a", "b")),
    )
    def request_comes(self, **wanted):
        self.comes(lease_request(wanted.pop("key"), **wanted))

    @rule(name=names, alias=st.sampled_from(ALIASES), place=st.sampled_from((None, HUB)), life=lives)
    def device_changes(self, name, alias, place, life):
        self.model.views[name] = phone(name, alias, place=place, life=life)
        self.step(Allocator.device_changed, self.model.views[name])

    @rule(name=names)
    def device_is_forgotten(self, name):
        self.model.views.pop(name, None)
        self.step(Allocator.device_forgotten, name)

    @rule(paused=st.booleans())
    def store_fails_or_works(self, paused):
        self.model.paused = paused
        self.step(Allocator.paused, "the disk is full" if paused else "")


class Warm(Beside):
    """Warm phones that users of all classes want, and queues that soon starve: those have one kept cool."""

    WARM: ClassVar[Mapping[LeaseClass, Closed]] = {LeaseClass.BENCH: Closed("it is too warm", 50.0)}
    POLICY = replace(POLICY, starved_s=20.0)

    @rule(
        user=users,
        lease_class=st.sampled_from((LeaseClass.TUNE, LeaseClass.BENCH, LeaseClass.BENCH, LeaseClass.INTERACTIVE)),
        personal=st.sampled_from((False, False, True)),
        priority=st.sampled_from((1, 1, 2)),
        key=st.sampled_from(("android", "android", "a", "b")),
    )
    def request_comes(self, **wanted):
        self.comes(lease_request(wanted.pop("key"), **wanted))

    @rule(
        name=names,
        warm_for=st.sampled_from(((), *[(LeaseClass.BENCH,)] * 3, (LeaseClass.BENCH, LeaseClass.TUNE))),
        opens_in_s=st.sampled_from((None, 30.0, 100.0)),
        heat=st.sampled_from((True, True, True, False)),
    )
    def device_changes(self, name, warm_for, opens_in_s, heat):
        shut = {each: Closed("it is too warm", opens_in_s, heat=heat) for each in warm_for}
        self.model.views[name] = phone(name, closed=shut)
        self.model.told_s[name] = self.model.now_s
        self.step(Allocator.device_changed, self.model.views[name])

    @rule(devices=st.integers(0, 2), user=users)
    def shares_change(self, devices, user):
        self.model.shares[user] = UserConfig(1.0, devices)
        self.step(Allocator.quotas_changed, self.model.default, self.model.shares)


TestEverything = Everything.TestCase
TestEverything.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestWarm = Warm.TestCase
TestWarm.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestHubs = Hubs.TestCase
TestHubs.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestTunersAndOthers = TunersAndOthers.TestCase
TestTunersAndOthers.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
