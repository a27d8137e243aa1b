"""The allocator beside the plainest model of its rules: a machine that checks every invariant after every step."""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farm.common.selector import Selector
from farm.head.allocator.allocator import Allocator
from farm.head.allocator.model import AllocatorPolicy
from farm.head.allocator.waiting import WHOLE_REQUEST, RequestTerms
from farm.model.device import Closed, Life, UsbPlace
from farm.model.requests import LeaseClass
from tests.support.allocator import Asks, phone
from tests.support.allocator_model import Model, means, queue_of

NAMES = ("a", "b", "c")
ALIASES = ("adreno", "mali")
HUB = UsbPlace("1-4", 1, "1-4.1")
KEYS = ("android", *ALIASES, *NAMES, "name=a", "gpu=mali,android", "unknown")
USERS = ("ann", "bob", "cleo")
POLICY = AllocatorPolicy(
    workers=2, starved_s=100.0, usage_half_life_s=500.0, held_counts_s=40.0, min_slice_s=20.0, reservation_guard_s=30.0,
    cooling_hold_s=70.0, cleaning_counts_s=1e6,
)  # fmt: skip

users = st.sampled_from(USERS)
names = st.sampled_from(NAMES)
lives = st.sampled_from([Life.READY] * 4 + [Life.GONE, Life.CHECKING])
requested = {
    "text": st.sampled_from((*KEYS, "android", "android")),
    "priority": st.sampled_from((1, 1, 1, 2)),
    "device": st.sampled_from(("", "", "", "b")),
    "user": users,
    "worker": st.booleans(),
    "lease_class": st.sampled_from(LeaseClass),
    "quiet_hub": st.sampled_from((False, False, False, True)),
    "personal": st.sampled_from((False, False, False, True)),
    "longest_s": st.sampled_from((None, 1.0, 40.0, 200.0)),
    "avoid": st.sampled_from((frozenset(), frozenset(), frozenset("a"), frozenset("bc"))),
    "only": st.sampled_from((None, None, frozenset(), frozenset("ab"))),
}


class Beside(RuleBasedStateMachine):
    """An allocator beside the model: leases end and time passes; how requests come is for machines below."""

    PLACES: ClassVar[Mapping[str, UsbPlace]] = {}
    WARM: ClassVar[Mapping[LeaseClass, Closed]] = {}
    POLICY = POLICY

    @initialize(present=st.lists(st.sampled_from(ALIASES), min_size=1, max_size=len(NAMES)))
    def begin(self, present):
        self.allocator = Allocator(self.POLICY)
        self.yields, self.slots = Asks(), Asks()
        self.model = Model(self.POLICY)
        self.count = 0
        for name, alias in zip(NAMES, present, strict=False):
            self.model.views[name] = phone(name, alias, place=self.PLACES.get(name), closed=self.WARM)
            self.model.told_s[name] = self.model.now_s
            self.step(Allocator.device_changed, self.model.views[name])

    def step(self, happened, *facts):
        model = self.model
        for name in tuple(model.cleaned):
            model.cleaning_ends(name)
        model.keep_cool()
        expected, close = model.who_is_served()
        # A phone that was kept for somebody who is served with another one may be claimed again before it is given.
        close |= any(queue_of(model.waiting[name]) in dict(model.kept.values()) for name in expected)
        # Those are served one after the other, and which device each gets decides who is next.
        close |= any(request.quiet_hub for request in model.waiting.values())
        grants = happened(self.allocator, *facts, model.now_s)
        yields, kept = self.yields.news(self.allocator.held), self.slots.news(self.allocator.slots)
        served = [grant.request_id for grant in grants]
        assert close or served == expected
        for grant in grants:
            request, view = model.waiting[grant.request_id], model.views[grant.device]
            assert not model.paused
            assert view.serves(request.lease_class)
            assert grant.device not in model.held
            assert means(request, view)
            assert not model.reserved(request, grant.device)
            assert not (request.quiet_hub and model.loud(grant.device))
            assert not model.hushed(request, grant.device)
            model.granted(grant.request_id, grant.device)
            having = Counter(lease.request.user for lease in model.held.values())
            limit = model.share(request.user).devices
            assert not limit or having[request.user] <= limit
            if request.worker:
                slots = len(model.slots) + sum(lease.request.worker for lease in model.held.values())
                assert slots <= POLICY.workers
        model.keep_cool()
        due = [] if model.paused else model.looked_at()
        if happened is Allocator.device_changed and not model.paused and self.too_warm(facts[0].name):
            assert facts[0].name in {ask.name for ask in yields}
        for ask in yields:
            self.check_ask(ask)
        new_request = facts[0] if happened is Allocator.request_added else ""
        if kept:
            self.check_place_asks(kept)
        elif new_request in model.waiting and not model.paused:
            self.check_that_no_slot_should_be_asked(new_request)
        if not model.paused and not any(lease.asked for lease in model.held.values()):
            self.check_that_nobody_should_be_asked(due, new_request)

    def check_ask(self, ask):
        model = self.model
        lease = model.held[ask.name]
        assert not model.paused
        assert lease.id == ask.request_id
        assert lease.request.lease_class is LeaseClass.TUNE
        assert not lease.asked
        lease.asked = True
        if ask.reason.startswith("it is reserved"):
            assert any(
                each.covers(model.views[ask.name])
                and each.starts_s <= model.now_s < each.ends_s
                and lease.request.user not in each.users
                for each in model.reservations
            )
            return
        if ask.reason.startswith("it is to cool for "):
            (user, *_), _ = model.kept[ask.name]
            assert ask.reason.startswith(f"it is to cool for {user}'s ")
            assert model.now_s >= lease.since_s + POLICY.min_slice_s
            return
        if ask.reason.startswith("it is too warm"):
            assert LeaseClass.TUNE in model.views[ask.name].closed
            return
        assert model.now_s >= lease.since_s + POLICY.min_slice_s
        # Somebody gains by it who then goes before the holder's next request, and is named.
        lease.asked = False
        entitled, close = model.entitled(ask.name)
        lease.asked = True
        assert close or ask.reason in {f"{model.waiting[name].user} waits for it" for name in entitled}

    def too_warm(self, device):
        """Whether a tune lease that was not asked to yield is on a device that is closed to tuning."""
        return device in self.model.tuning() and LeaseClass.TUNE in self.model.views[device].closed

    def check_place_asks(self, asks):
        """One at a time, of one who has had its slice, for somebody who gains by it and is named."""
        (ask,) = asks
        model = self.model
        slot = model.slots[ask.name]
        assert not model.paused
        assert not any(each.asked for each in model.slots.values())
        assert model.now_s >= slot.since_s + POLICY.min_slice_s
        entitled, close = model.entitled_to_slot(ask.name)
        slot.asked = True
        names = {f"{model.waiting[name].user} waits for its worker slot" for name in entitled}
        assert close or ask.reason in names

    def check_that_no_slot_should_be_asked(self, new_request):
        model = self.model
        if any(each.asked for each in (*model.slots.values(), *model.held.values())):
            return
        for name, slot in tuple(model.slots.items()):
            if slot.since_s + POLICY.min_slice_s <= model.now_s:
                entitled, close = model.entitled_to_slot(name)
                assert close or new_request not in entitled

    def check_that_nobody_should_be_asked(self, due, new_request):
        """No lease was asked so far, so whoever waits was promised nothing."""
        model = self.model
        for device in due:
            entitled, close = model.entitled(device)
            assert close or not entitled
        came = model.waiting.get(new_request)
        for device in model.tuning() if came is not None and model.may_hold_more(came.user) else ():
            if model.held[device].since_s + POLICY.min_slice_s <= model.now_s:
                entitled, close = model.entitled(device)
                assert close or new_request not in entitled

    # --- requests and leases ---

    def comes(self, request):
        self.count += 1
        self.model.came(f"r{self.count}", request)
        self.step(Allocator.request_added, f"r{self.count}", request)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def request_is_withdrawn(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.model.waiting)))
        self.model.left(request_id)
        self.step(Allocator.request_withdrawn, request_id)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), longest_s=st.sampled_from((None, 5.0, 500.0)))
    def lease_is_extended(self, data, longest_s):
        self.step(Allocator.lease_extended, data.draw(st.sampled_from(sorted(self.model.held))), longest_s)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def lease_ends(self, data):
        device = data.draw(st.sampled_from(sorted(self.model.held)))
        self.model.ended(device)
        self.step(Allocator.lease_ended, device, "")

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def place_is_kept(self, data):
        self.count += 1
        device = data.draw(st.sampled_from(sorted(self.model.held)))
        self.model.keeps_slot(device, f"p{self.count}")
        self.step(Allocator.slot_kept, device, f"p{self.count}")

    @precondition(lambda self: self.model.slots)
    @rule(data=st.data())
    def place_is_freed(self, data):
        slot = data.draw(st.sampled_from(sorted(self.model.slots)))
        del self.model.slots[slot]
        self.step(Allocator.slot_freed, slot)

    @rule(seconds=st.sampled_from((0.5, 5.0, 25.0, 60.0, 400.0)))
    def time_passes(self, seconds):
        until_s = self.model.now_s + seconds
        while (look_s := self.allocator.next_check_s()) is not None and look_s <= until_s:
            assert look_s > self.model.now_s
            self.model.now_s = look_s
            self.step(Allocator.clock_advanced)
        self.model.now_s = until_s

    # --- what is always true ---

    @invariant()
    def nobody_waits_for_what_is_free(self):
        served, _ = self.model.who_is_served()
        assert not served

    @invariant()
    def it_knows_what_the_model_knows(self):
        allocator, model = self.allocator, self.model
        assert {name: each.request_id for name, each in allocator.held.items()} == {
            name: lease.id for name, lease in model.held.items()
        }
        assert {name: bool(each.asked) for name, each in allocator.held.items()} == {
            name: lease.asked for name, lease in model.held.items()
        }
        assert dict(allocator.waiting()) == model.waiting
        for key in KEYS:
            selector = Selector.parse(key)
            expected = {name for name, view in model.views.items() if selector.matches(view.labels, view.aliases)}
            assert allocator.matching(selector) == expected

    @invariant()
    def phones_are_kept_cool_for_those_who_starve(self):
        model = self.model
        kept = {device: (queue_of(each.queue.first.request), each.until_s) for device, each in self.kept().items()}
        assert kept == model.kept
        if not model.reservations:  # else a window that comes nearer takes a phone out of reach, which nobody looks for
            model.keep_cool()
            assert kept == model.kept

    def kept(self):
        return self.allocator._state.cooling_claims

    @invariant()
    def tune_leases_make_way_for_those_who_starve(self):
        model = self.model
        for device in () if model.paused else model.kept:
            lease = model.held.get(device)
            assert lease is None or lease.asked or model.now_s <= lease.look_s

    @invariant()
    def the_index_adds_up(self):
        index = self.allocator._state.index
        demand = Counter()
        for terms, group in index._groups.items():
            assert group.waiting or group.recent
            assert group.devices == {name for name, view in self.model.views.items() if terms.suits(view)}
            assert group.waiting == sum(RequestTerms.of(each) == terms for each in self.model.waiting.values())
            assert all(group in index._groups_of[name] for name in group.devices)
            orders = [queue.served_order for queue in group.queues.values()]
            assert orders == sorted(orders)
            for name in group.devices:
                demand[name] += (group.waiting + group.recent) * (WHOLE_REQUEST // len(group.devices))
        for group in index._unweighed:
            for name in group.devices:
                demand[name] -= group.unweighed * (WHOLE_REQUEST // len(group.devices))
        assert index._demand == {name: demand[name] for name in self.model.views}
        known = {(word, view.name) for view in index.views.values() for word in (*view.aliases, *view.labels.items())}
        assert {(word, name) for word, names in index._known_by.items() for name in names or {""}} == known
        for groups in index._groups_of.values():
            assert groups <= set(index._groups.values())
        assert self.allocator._state.free == set(self.model.free())

    @invariant()
    def slots_add_up(self):
        state, model = self.allocator._state, self.model
        assert {name: bool(each.asked) for name, each in state.slots.items()} == {
            name: each.asked for name, each in model.slots.items()
        }
        assert state._workers.total() == len(model.slots) + sum(each.request.worker for each in model.held.values())

    @invariant()
    def promises_are_to_those_who_wait(self):
        yields = self.allocator._yields
        assert yields._promised.items() == {(request, device) for device, request in yields._asked_for.items()}
        assert yields._promised.keys() <= self.model.waiting.keys()
        asked = {name for name, lease in self.model.held.items() if lease.asked}
        assert yields._asked_for.keys() | yields._unclaimed == asked

    @invariant()
    def tune_leases_are_looked_at_in_time(self):
        model = self.model
        if model.waiting and not model.paused and (tuning := model.tuning()):
            assert self.allocator.next_check_s() <= min(model.held[device].look_s for device in tuning)

    @invariant()
    def usage_is_what_was_held(self):
        state = self.allocator._state
        for user in USERS:
            assert abs(state.ledger.usage_s(user, self.model.now_s) - self.model.usage_s(user)) < 1e-3

    @invariant()
    def everything_is_explained(self):
        now_s = self.model.now_s
        for request_id, request in self.model.waiting.items():
            reasons = self.allocator.explain(request, now_s, request_id)
            assert {each.device for each in reasons} == set(self.model.views)
            for reason in reasons:
                assert reason.matches == means(request, self.model.views[reason.device])
                assert reason.reason
                assert reason.reason != "free" or self.allocator.limits(request)
            estimate_s = self.allocator.estimate_s(request_id, now_s)
            assert estimate_s is None or estimate_s >= 0
