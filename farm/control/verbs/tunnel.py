"""Verbs about `adb forward` and `adb reverse` entries that farm keeps for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.adb.tunnels import Tunnel, TunnelKind
from farm.control.callers import Role
from farm.control.forms import Verbs, form, verb
from farm.core.errors import UserError
from farm.fleet.fleet import Fleet
from farm.fleet.tunnels import TunnelKeeper


@form
class AddTunnel:
    """`forward.add`: adb's socket specs, `tcp:9000`."""

    device: str
    listen: str
    dial: str
    reverse: bool = False


@form
class RemoveTunnel:
    """`forward.remove`."""

    device: str
    listen: str
    dialler_stopped: bool = False


class TunnelVerbs(Verbs):
    """Verbs about tunnels."""

    def __init__(self, fleet: Fleet, keeper: TunnelKeeper) -> None:
        self._fleet = fleet
        self._keeper = keeper

    @verb("forward.add", Role.OPERATOR)
    async def add(self, asked: AddTunnel) -> Mapping[str, Any]:
        """Own a tunnel and set it up; it comes back after every replug, reboot and restart."""
        kind = TunnelKind.REVERSE if asked.reverse else TunnelKind.FORWARD
        view = self._fleet.view(asked.device)
        if not view.adopted:
            raise UserError(f"{view.name} is not adopted", hint=f"farm device adopt {view.name}")
        await self._keeper.add(Tunnel(kind, view.serial, asked.listen, asked.dial))
        return {"device": view.name, "listen": asked.listen, "dial": asked.dial, "kind": kind.value}

    @verb("forward.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Every tunnel farm owns."""
        names = {view.serial: view.name for view in self._fleet.views()}
        return {
            "tunnels": [
                {
                    "device": names.get(tunnel.serial, tunnel.serial),
                    "kind": tunnel.kind.value,
                    "listen": tunnel.listen,
                    "dial": tunnel.dial,
                    "problem": problem,
                }
                for tunnel, problem in self._keeper.listed()
            ]
        }

    @verb("forward.remove", Role.OPERATOR)
    async def remove(self, asked: RemoveTunnel) -> Mapping[str, Any]:
        """Give a tunnel up."""
        view = self._fleet.view(asked.device)
        tunnel = self._keeper.find(view.serial, asked.listen)
        if tunnel is None:
            raise UserError(f"farm keeps no tunnel {asked.listen} of {view.name}", hint="farm forward list")
        waits = await self._keeper.remove(tunnel, dialler_stopped=asked.dialler_stopped)
        return {"device": view.name, "listen": asked.listen, "waits": waits}
