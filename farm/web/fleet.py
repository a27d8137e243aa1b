"""The fleet wall: every device with its state, temperature, holder and battery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from farm.web.page import ask, render

router = APIRouter()
SEARCHED = ("name", "serial", "soc", "gpu", "model", "holder", "reason", "pool")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which devices somebody wants to see; empty fields leave nothing out."""

    pool: str = ""
    state: str = ""
    text: str = ""

    def takes(self, device: Mapping[str, Any]) -> bool:
        """Whether it is one of them."""
        if self.pool and device["pool"] != self.pool:
            return False
        if self.state and state_group(device["state"]) != self.state:
            return False
        said = " ".join((*(str(device[name]) for name in SEARCHED), *device["aliases"])).lower()
        return all(word in said for word in self.text.lower().split())


def state_group(state: str) -> str:
    """The word people filter by: `busy, draining` counts as busy."""
    return state.partition(",")[0]


def groups(devices: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """States with the number of devices in each, the most frequent first."""
    return sorted(Counter(state_group(each["state"]) for each in devices).items(), key=lambda each: (-each[1], each[0]))


async def _wall(request: Request, wanted: Wanted) -> dict[str, Any]:
    status = await ask(request, "status")
    trends = (await ask(request, "fleet.trends"))["celsius"]
    devices = status["devices"]
    return {
        "wanted": wanted,
        "devices": [device for device in devices if wanted.takes(device)],
        "trends": trends,
        "states": groups(devices),
        "pools": sorted({device["pool"] for device in devices} - {""}),
        "total": len(devices),
        "problems": status["problems"],
        "tracker": status["tracker"],
    }


Text = Annotated[str, Query(max_length=200)]


@router.get("/")
async def wall(request: Request, pool: Text = "", state: Text = "", text: Text = "") -> Response:
    """The page."""
    return render(request, "fleet.html", **await _wall(request, Wanted(pool, state, text)))


@router.get("/fleet/wall")
async def wall_part(request: Request, pool: Text = "", state: Text = "", text: Text = "") -> Response:
    """What changes of it."""
    return render(request, "fleet_wall.html", **await _wall(request, Wanted(pool, state, text)))
