"""A lease's phone: quiet once, changed back once, and left to the life cycle whenever that is not certain."""

import asyncio
from types import SimpleNamespace

import pytest

from farm.common.errors import PhoneError
from farm.devices.quiesce import Restored
from farm.devices.quiesce_policy import Level, QuiesceConfig, QuiesceResult, QuiesceStep
from farm.kinds.execution import DeviceQuiescer
from farm.model.requests import LeaseClass


class Phones(list):
    failing = ""
    wait = None
    restored = ("display=Asleep",)

    def __init__(self):
        self.begun = asyncio.Event()

    async def begin(self, name, level, owner, restore_after_s):
        self.append(("begin", name, level, owner, restore_after_s))
        self.begun.set()
        if self.wait is not None:
            await self.wait.wait()
        if self.failing == "begin":
            raise PhoneError("its settings do not answer")
        return QuiesceResult(level, (QuiesceStep("screen", "display=Awake", True),))

    async def end(self, name, owner):
        self.append(("end", name, owner))
        if self.failing == "end":
            raise PhoneError("the phone does not take back screen_brightness")
        return Restored(self.restored, complete=True)


@pytest.fixture
def phones():
    return Phones()


@pytest.fixture
def leases():
    """Whether the phone of each lease is changed; the lease may end."""

    def changed_phone(lease_id, *, changed):
        if known := lease_id in leases.changed:
            leases.changed[lease_id] = changed
        return known

    leases = SimpleNamespace(changed={"lease-1": False}, borrowed={}, changed_phone=changed_phone)
    return leases


@pytest.fixture
def logged():
    return []


@pytest.fixture
def make(phones, leases, logged):
    def make(asked=None, level=Level.GENTLE):
        spec = SimpleNamespace(lease_class=LeaseClass.BENCH, quiesce=asked)
        running = SimpleNamespace(spec=spec, log=lambda text, level="info": logged.append((level, text)))
        phones.config = QuiesceConfig(level=level, restore_after_s=90.0)

        async def elsewhere(host, lease, level, restore_after_s):
            return await phones.begin(f"one at {host}", level, lease, restore_after_s)

        lab = SimpleNamespace(quiesce=elsewhere)
        parts = SimpleNamespace(leasing=leases, fleet=SimpleNamespace(quiesce=phones), lab=lab)
        return DeviceQuiescer(parts, running, "lease-1", "pixel")

    return make


async def test_it_is_begun_once_however_many_sessions_there_are(make, phones, leases):
    quiet = make("gentle")
    for _ in range(2):
        await quiet.begin()
    assert phones == [("begin", "pixel", Level.GENTLE, "lease-1", 90.0)]
    assert leases.changed["lease-1"]
    assert quiet.notes() == ["quiesce gentle; in force: screen"]
    for _ in range(2):
        await quiet.end()
    assert phones[1:] == [("end", "pixel", "lease-1")]
    assert not leases.changed["lease-1"]
    assert quiet.to_wire()["took"] == {"screen": ["display=Awake"]}
    assert make().notes() == []


@pytest.mark.parametrize(("at_least_s", "restored_after_s"), [(30.0, 90.0), (400.0, 400.0)])
async def test_a_phone_without_contact_stays_quiet_as_long_as_it_is_away(make, phones, at_least_s, restored_after_s):
    await make().begin(at_least_s)
    assert phones == [("begin", "pixel", Level.GENTLE, "lease-1", restored_after_s)]


async def test_a_phone_of_another_host_is_made_quiet_there_and_changed_back_by_its_host(make, phones, leases):
    leases.changed.clear()
    leases.borrowed["lease-1"] = SimpleNamespace(host="lab2")
    quiet = make("full")
    await quiet.begin()
    await quiet.end()
    assert phones == [("begin", "one at lab2", Level.FULL, "lease-1", 90.0)]
    assert quiet.to_wire()["took"] == {"screen": ["display=Awake"]}


@pytest.mark.parametrize(("asked", "level"), [("off", Level.FULL), (None, Level.OFF)])
async def test_off_touches_nothing(make, phones, leases, asked, level):
    quiet = make(asked, level)
    await quiet.begin()
    await quiet.end()
    assert phones == []
    assert not leases.changed["lease-1"]
    assert quiet.to_wire()["level"] == "off"


async def test_a_phone_that_does_not_obey_is_measured_and_cleaned_afterwards(make, phones, leases, logged):
    phones.failing = "begin"
    quiet = make("full")
    await quiet.begin()
    assert quiet.to_wire()["refused"] == {"all": ["its settings do not answer"]}
    assert [level for level, _ in logged] == ["warning"]
    phones.failing = "end"
    await quiet.end()  # nobody knows what was changed, and it is not taken back
    assert phones[-1][0] == "end"
    assert leases.changed["lease-1"]
    assert "cleaned and checked" in logged[1][1]
    assert "its settings do not answer" in quiet.notes()[0]


@pytest.mark.parametrize("before", [True, False])
async def test_a_lease_that_has_ended_is_the_life_cycles(make, phones, leases, before):
    quiet = make()
    if before:
        leases.changed.clear()
    await quiet.begin()
    leases.changed.clear()  # taken away: the phone may be another's by now
    await quiet.end()
    assert [each[0] for each in phones] == ["begin"] * (not before)


async def test_a_begin_that_was_cut_leaves_the_phone_to_be_cleaned(make, phones, leases):
    phones.wait = asyncio.Event()
    quiet = make()
    beginning = asyncio.create_task(quiet.begin())
    await phones.begun.wait()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    await quiet.end()
    assert [each[0] for each in phones] == ["begin"]
    assert leases.changed["lease-1"]


async def test_a_phone_that_gave_up_meanwhile_was_not_quiet(make, phones):
    quiet = make()
    await quiet.begin()
    phones.restored = ()
    await quiet.end()
    assert quiet.to_wire()["level"] == "off"
    assert "changed itself back" in quiet.to_wire()["refused"]["all"][0]
