"""The agent when its helpers fail; recovery's harder actions; a phone with a server that outlived a daemon."""

import asyncio
import hashlib
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from farm.adb.errors import AdbLinkLost, AdbServerUnreachable, AdbTimeout
from farm.bundle.model import Bundle
from farm.common.errors import Code, FarmError, PhoneError, ProtocolError
from farm.devices import agent_work
from farm.devices.agent import Agent
from farm.devices.agent_work import AgentContext
from farm.devices.health.probe_round import ProbeRound
from farm.devices.identity.identity import READ_COMMAND
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.recovery import RecoveryAction
from farm.devices.lifecycle.state import LifecycleState
from farm.devices.server.rpc_server import RunningServer, StuckProcessError
from farm.model.device import Life, UsbPlace
from farm.model.health import DeviceFault
from tests.support.errors import raises_code
from tests.support.fake_phone import IDENTITY, FakeClient, FakeFleet, FakeSwitch, for_ever
from tests.support.virtual_time import virtual_time
from tests.support.waiting import until
from tests.unit.devices.captures import answer

SILENT = AdbTimeout("no answer")


@asynccontextmanager
async def agent_of(answers, life, *, fleet=None, power=None, **state):
    """An adopted agent whose phone gives those answers."""
    fleet = fleet or FakeFleet()
    context = AgentContext(FakeClient(answers), fleet, fleet, fleet, fleet, fleet, power=power)
    known = {"adopted": True, "identified": True, "generation": 5} | state
    agent = Agent("S1", "unit", context, LifecycleState(life, **known))
    agent.identity = IDENTITY
    agent.server = RunningServer(5000, "b" * 64, "secret")
    try:
        yield agent, fleet
    finally:
        await agent.close()


@pytest.mark.parametrize(
    ("begun", "event"),
    [
        (Life.OFFLINE, m.Listed(m.LinkState.USABLE)),
        (Life.PROVISIONING, m.Provisioned(5, "b" * 64, adoptable=False)),
    ],
)
@virtual_time
async def test_a_phone_of_another_host_is_left_alone_and_asked_about_again(begun, event):
    """Its server there continues: nothing runs on the phone but what reads its identity."""
    async with agent_of({READ_COMMAND: answer("poco-f6-peridot"), "": SILENT}, begun) as (agent, fleet):
        fleet.host = "host lab1 has the same phone, as a"
        agent.on_event(event)
        assert await fleet.until(Life.RECOVERING) == agent.withheld == fleet.host
        assert set(agent._context.client.commands) <= {READ_COMMAND}
        fleet.host = ""
        await fleet.until(Life.PROVISIONING)
        assert begun is Life.PROVISIONING or agent.withheld == ""


@pytest.mark.parametrize("error", [ProtocolError("adb said nonsense"), ValueError("nonsense")])
async def test_a_follower_that_fails_is_a_lost_link_not_silence(error):
    async with agent_of(error, Life.STARTING) as (agent, fleet):
        agent.on_event(m.ServerStarted(5))
        assert "nonsense" in await fleet.until(Life.PROVISIONING)


@pytest.mark.parametrize(("trouble", "acted"), [("", True), ("the adb server does not answer", False)])
@virtual_time
async def test_nobody_acts_on_a_silent_phone_before_its_host_was_asked(trouble, acted):
    async with agent_of(SILENT, Life.GONE, identified=False) as (agent, fleet):
        fleet.host_trouble = trouble
        agent.on_event(m.Listed(m.LinkState.USABLE))
        await until(lambda: fleet.blamed >= 4 or fleet.climbs)
        assert (bool(fleet.climbs), agent.state.progress.spent != ()) == (acted, acted)


async def test_a_server_that_started_meanwhile_is_not_blamed_for_a_phone_that_did_not_answer():
    def silent(command):
        if agent.state.life is Life.STARTING:
            agent.on_event(m.ServerStarted(5))
        return for_ever() if "rpc_supervise" in command else SILENT

    async with agent_of(silent, Life.STARTING) as (agent, _):
        await ProbeRound(FakeClient(silent), lambda: (agent,), lambda _: None).read(agent)
        (told,) = (step for step in agent.transitions if "LinkLost" in step)
        assert told.endswith("[]")  # nothing came of it


async def test_a_probe_that_cannot_be_shown_end_nothing(caplog):
    async with agent_of(for_ever, Life.STARTING) as (agent, _):
        broken = FakeClient(ValueError("no such sensor"))
        await ProbeRound(broken, lambda: (agent,), lambda _: None).read(agent)
        assert agent.state.life is Life.STARTING
    assert "no such sensor" in caplog.text


async def test_a_farewell_to_a_phone_that_is_let_go_fails_as_an_error():
    async with agent_of(for_ever, Life.READY) as (agent, fleet):
        agent.on_event(m.Unadopted(clean=True))
        await fleet.until(Life.NEW)
        waiting = asyncio.create_task(agent.finish_cleanup())
        await asyncio.sleep(0)
        await agent.close()
        with pytest.raises(PhoneError, match="went away"):
            await waiting


async def test_a_phone_that_is_away_is_not_rebooted():
    async with agent_of(for_ever, Life.GONE) as (agent, fleet):
        with pytest.raises(PhoneError, match="cannot be rebooted: it is gone"):
            await agent.reboot("ann wants it rebooted")
        assert fleet.climbs == []


async def test_whoever_orders_a_reboot_hears_that_the_phone_did_not_answer():
    async with agent_of(SILENT, Life.READY) as (agent, fleet):
        with pytest.raises(AdbTimeout, match="no answer"):
            await agent.reboot("ann wants it rebooted")
        await fleet.until(Life.RECOVERING)
        assert [each.progress.under_way is None for each in fleet.climbs] == [True, False]


async def test_a_reboot_that_is_overtaken_before_it_began_says_so_at_once():
    async with agent_of(for_ever, Life.READY) as (agent, _):
        reboot = asyncio.create_task(agent.reboot("ann wants it rebooted"))
        await asyncio.sleep(0)
        assert agent.state.progress.under_way is not None
        agent.on_event(m.QuarantineOrdered("it smokes"))
        with pytest.raises(PhoneError, match="it smokes"):
            await reboot


@virtual_time
async def test_a_power_cycle_takes_as_long_as_its_switch_needs():
    switch = FakeSwitch(off_takes_s=600.0)  # longer than a farewell may take
    async with agent_of(for_ever, Life.OFFLINE, power=switch) as (agent, _):
        agent.place = UsbPlace("1-4", 2, "1-4.2")
        agent.on_event(m.ActionOrdered(RecoveryAction.POWER_CYCLE, "ann wants its power cycled"))
        await asyncio.sleep(0)  # its work begins
        await agent.finish_cleanup()
        assert switch.done == ["off 1-4.2", "on 1-4.2"]
        assert not [step for step in agent.transitions if "ActionFailed" in step]


async def test_what_watchers_get_wrong_quarantines_the_phone_and_reaches_nobody(caplog):
    async with agent_of(for_ever, Life.STARTING) as (agent, fleet):
        fleet.changed = lambda _: 1 // 0
        agent.on_event(m.ServerStarted(5))
        assert agent.state.life is Life.QUARANTINED
        assert "ZeroDivisionError" in agent.state.reason
    assert "ServerStarted(generation=5)" in caplog.text


async def test_a_bundle_on_its_way_is_announced_until_the_phone_has_it_or_lost_it():
    bundle = Bundle("one", "c" * 64, "arm64-v8a", (), Path("/nowhere"), "default", (), "0.27", False)
    late = asyncio.get_running_loop().create_future()
    async with agent_of(lambda _: late, Life.NEW, fleet=FakeFleet(bundle), adopted=False) as (agent, fleet):
        agent.on_event(m.PlainEvent.ADOPTED)
        await until(lambda: agent._context.client.commands)
        assert agent.installing == "c" * 64
        late.set_exception(SILENT)
        await fleet.until(Life.RECOVERING)
        assert agent.installing == ""


# --- a phone with a session of the daemon before this one

SECRET = "the-secret"


@pytest.mark.parametrize("work", [m.Pause(5, 3600.0), m.RetryLater(5, 3), m.StartServer(5)])
@virtual_time
async def test_work_that_asks_no_phone(work):
    async with agent_of(SILENT, Life.STARTING) as (agent, _):
        event = await agent._answer(work)
        assert (event.generation, type(event)) == (5, m.WorkFailed if work == m.StartServer(5) else m.WaitEnded)


async def test_a_bug_found_while_a_phone_was_asked_is_in_the_log(caplog):
    async with agent_of(FarmError("nobody thought of this"), Life.IDENTIFYING) as (agent, fleet):
        agent._perform(m.Identify(5))
        assert await fleet.until(Life.RECOVERING) == "nobody thought of this"
    assert "Traceback" in caplog.text


@asynccontextmanager
async def outlived(secret=SECRET, alive="yes"):
    """An agent that knows of no server; its phone's supervisor tells of one, and answers nothing else."""
    sha256 = hashlib.sha256(secret.encode()).hexdigest()
    status = f"port=5007\nbundle={'c' * 64}\nsecret_sha256={sha256}\nsessions=2\nadoptable={alive}\nwhy=dead\n"
    async with agent_of({" status": status, "": for_ever}, Life.PROVISIONING) as (agent, fleet):
        agent.server, fleet.secret = None, SECRET
        yield agent, fleet, agent._context.client.commands


async def test_its_server_is_found_by_its_secret_and_followed_and_nothing_is_pushed_reaped_or_checked():
    async with outlived() as (agent, fleet, commands):
        agent._perform(m.Provision(5))
        await fleet.until(Life.READY)
        assert (agent.server.port, agent.server.secret) == (5007, SECRET)
        await until(lambda: len(commands) == 2)
        assert commands[1].split()[-2] == "follow"
        assert Life.CHECKING not in dict(fleet.seen)
        # Its bundle is no longer the farm's: at the first occasion after the session it is provisioned, not checked.
        fleet.secret = ""
        agent.on_event(m.SessionBroke("the client vanished"))
        agent.on_event(m.RecoveryFinished(agent.state.generation, server_alive=True))
        await until(lambda: "not its own any more" in agent.state.reason)


async def test_a_session_that_ends_while_its_server_is_taken_over_leaves_a_phone_that_is_checked():
    async with outlived() as (agent, fleet, commands):
        provisioned = await agent._provision(5, deep=False)
        assert provisioned == m.Provisioned(5, "c" * 64, adoptable=True)
        fleet.secret = ""
        agent.on_event(provisioned)
        await until(lambda: any("reap" in command for command in commands))
        assert Life.READY not in dict(fleet.seen)


@pytest.mark.parametrize("said", [{"secret": "another"}, {"alive": "no"}])
async def test_another_server_or_a_dead_one_is_not_taken_over(said):
    async with outlived(**said) as (agent, fleet, _):
        agent._perform(m.Provision(5))
        assert "runtime bundle" in await fleet.until(Life.QUARANTINED)  # the ordinary way: there is none for it here
        assert agent.server is None


@virtual_time
async def test_a_reboot_is_over_when_another_boot_answers():
    phone, heard = FakeClient(["one\n", AdbLinkLost("down"), "", "two\n"]), []
    await agent_work.reboot(phone, "S1", "one", lambda: heard.append(True))
    assert (phone.rebooted, heard, phone.answer) == (["S1"], [True], ["two\n"])


@virtual_time
async def test_a_phone_that_does_not_go_down_refused_to_reboot():
    with raises_code(Code.REBOOT_REFUSED):
        await agent_work.reboot(FakeClient("one"), "S1", "one", lambda: None)


@pytest.mark.parametrize(
    ("work", "error", "fault"),
    [
        (m.Reap(1), StuckProcessError("pid 7"), DeviceFault.STUCK),
        (m.AdoptServer(1), StuckProcessError("pid 7"), DeviceFault.STUCK),
        (m.Identify(1), AdbTimeout("silent"), DeviceFault.MUTE),
        (m.Provision(1), AdbLinkLost("gone"), None),
        (m.Provision(1), AdbServerUnreachable("no adb"), None),
        (m.StartServer(1), PhoneError("no Bind to", Code.SERVER_NOT_STARTED), DeviceFault.START),
        (m.RunCheck(1), PhoneError("the session failed"), DeviceFault.CHECK),
        (m.RunCheck(1), FarmError("a bug"), None),
    ],
)
def test_what_a_failure_says_of_the_phone(work, error, fault):
    event = agent_work.failed(work, error)
    assert (type(event), event.generation, event.reason, event.fault) == (m.WorkFailed, 1, error.message, fault)
