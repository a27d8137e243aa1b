"""A phone with a session of the daemon before this one: its server is taken over, and nothing else is done to it."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from farm.adb.shell import ShellResult
from farm.devices.agent import Agent
from farm.devices.lifecycle import messages as m
from farm.devices.lifecycle.state import LifecycleState
from farm.model.device import Life
from tests.support.waiting import until
from tests.unit.devices.test_agent import Watcher, agent_of

PROVISIONING = LifecycleState(Life.PROVISIONING, adopted=True, identified=True, generation=5)
SECRET = "the-secret"
SHA256 = hashlib.sha256(SECRET.encode()).hexdigest()


class Supervised:
    """A phone whose supervisor answers `status`; everything else is remembered and never answered."""

    def __init__(self, secret_sha256: str = SHA256, alive: str = "yes") -> None:
        self.commands: list[str] = []
        self._status = (
            f"port=5007\nbundle={'c' * 64}\nsecret_sha256={secret_sha256}\nsessions=2\nadoptable={alive}\nwhy=dead\n"
        )

    async def __call__(self, _serial: str, command: str, **_: object) -> Any:
        self.commands.append(command)
        if command.endswith(" status"):
            return ShellResult(self._status.encode(), b"", 0)
        return await asyncio.Event().wait()


def forget_server(agent: Agent) -> None:
    """As a daemon that has just begun knows of none."""
    agent.server = None


@pytest.fixture
def open_session(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The secret of the server, while a session is open; a test may empty it."""
    secrets = [SECRET]
    monkeypatch.setattr(Watcher, "outlived", lambda _self, _agent: "".join(secrets))
    return secrets


async def test_its_server_is_found_by_its_secret_and_followed_and_nothing_is_pushed_reaped_or_checked(
    open_session: list[str],
) -> None:
    phone = Supervised()
    async with agent_of(phone, PROVISIONING) as (agent, watcher):
        forget_server(agent)
        agent._perform(m.Provision(5))
        await watcher.until(Life.READY)
        assert agent.server is not None
        assert (agent.server.port, agent.server.secret) == (5007, SECRET)
        await until(lambda: len(phone.commands) == 2)
        assert [command.split()[-2] for command in phone.commands[1:]] == ["follow"]
        assert Life.CHECKING not in dict(watcher.seen)
        # Its bundle is no longer the farm's: at the first occasion after the session it is provisioned, not checked.
        open_session.clear()
        agent.on_event(m.SessionBroke("the client vanished"))
        assert agent.state.life is Life.RECOVERING
        agent.on_event(m.RecoveryFinished(agent.state.generation, server_alive=True))
        await until(lambda: "not its own any more" in agent.state.reason)


async def test_a_session_that_ends_while_its_server_is_taken_over_leaves_a_phone_that_is_checked(
    open_session: list[str],
) -> None:
    phone = Supervised()
    async with agent_of(phone, PROVISIONING) as (agent, watcher):
        forget_server(agent)
        provisioned = await agent._provision(5, deep=False)
        assert provisioned == m.Provisioned(5, "c" * 64, adoptable=True)
        open_session.clear()
        agent.on_event(provisioned)
        assert agent.state.life is Life.STARTING
        await until(lambda: any("reap" in command for command in phone.commands))
        assert Life.READY not in dict(watcher.seen)


@pytest.mark.parametrize("phone", [Supervised(secret_sha256="0" * 64), Supervised(alive="no")])
async def test_another_server_or_a_dead_one_is_not_taken_over(phone: Supervised, open_session: list[str]) -> None:
    assert open_session
    async with agent_of(phone, PROVISIONING) as (agent, watcher):
        forget_server(agent)
        agent._perform(m.Provision(5))
        assert "runtime bundle" in await watcher.until(Life.QUARANTINED)  # the ordinary way: there is none for it here
        assert agent.server is None
