"""Finding agents, and what is asked of one before an order is carried out."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from farm.core.errors import FarmError, NoSuchDeviceError, PhoneError, UserError
from farm.core.labels import normalise
from farm.core.lifecycle_state import LINK_DOWN
from farm.core.selector import did_you_mean
from farm.fleet.agent import Agent

log = logging.getLogger(__name__)


def find_agent(agents: Mapping[str, Agent], name: str) -> Agent:
    """One of `agents` (by serial) by its name or serial.

    Raises:
        NoSuchDeviceError: there is none; the hint names the nearest.
    """
    by_name = {agent.name: agent for agent in agents.values()}
    found = by_name.get(name) or agents.get(name) or by_name.get(normalise(name))
    if found is None:
        hint = did_you_mean(name, by_name, "see `farm device list`")
        raise NoSuchDeviceError(f"there is no device {name!r}", hint=hint)
    return found


async def part(agent: Agent, *, clean: bool) -> None:
    """Wait until the phone's server ended; only who wants it clean must hear that this did not work."""
    try:
        await agent.farewell()
    except FarmError as error:
        if clean:
            raise
        log.info("%s was forgotten, but its server may still run: %s", agent.name, error)


def require_adopted(agent: Agent) -> Agent:
    """The device, unless it is not farm's to touch.

    Raises:
        UserError: it is not adopted.
    """
    if not agent.state.adopted:
        raise UserError(f"{agent.name} is not adopted: farm leaves it alone", hint=f"farm device adopt {agent.name}")
    return agent


def require_reachable(agent: Agent) -> None:
    """Whether the device can be cleaned now.

    Raises:
        PhoneError: it is not connected, or nobody knows yet what it is.
    """
    if agent.state.life in LINK_DOWN or not agent.state.identified:
        raise PhoneError(
            f"{agent.name} cannot be cleaned: it is {agent.state.life}",
            hint="connect it and wait until it is identified, or forget it without --clean",
        )
