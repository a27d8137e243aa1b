"""Verbs about what was measured: which models, and every bench of one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import MAX_COUNT, Sha256, Verbs, form, verb
from farm.store.measurements import Measurement, MeasurementTable

MAX_PAGE = 500  # rows of about 1 kB
MAX_MODELS = 100
TIMES = ("median_s", "low_s", "high_s")


@form
class Models:
    """`history.models`: those of a name, or whose hash begins so (8 characters or more)."""

    model: Annotated[str, Field(min_length=1, max_length=255)]


@form
class Page:
    """`history.list`: newest first. `model`: the whole hash."""

    model: Sha256
    device: Annotated[str, Field(max_length=255)] = ""
    before: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class HistoryVerbs(Verbs):
    """Verbs over the store's measurements. They grow with the farm: read in a thread."""

    def __init__(self, measurements: MeasurementTable) -> None:
        self._measurements = measurements

    @verb("history.models", Role.VIEWER)
    async def models(self, asked: Models) -> Mapping[str, Any]:
        """Models that were measured, under each of their names."""
        found = await asyncio.to_thread(self._measurements.models, asked.model, MAX_MODELS)
        return {"models": [{"model": each.model, "name": each.name, "count": each.count} for each in found]}

    @verb("history.list", Role.VIEWER)
    async def page(self, asked: Page) -> Mapping[str, Any]:
        """A page of a model's measurements, all of a phone at one nominal speed: each was stored at that of its day."""
        return await asyncio.to_thread(self._page, asked)

    def _page(self, asked: Page) -> Mapping[str, Any]:
        measurements = self._measurements
        page = measurements.page(asked.model, device=asked.device, before=asked.before, limit=asked.limit + 1)
        nominal_s = cache(measurements.latest_nominal_s)
        rows = [_row(each, nominal_s(each.device, each.epoch, each.kernel)) for each in page[: asked.limit]]
        return {"rows": rows, "more": len(page) > asked.limit}


def _row(each: Measurement, nominal_s: float | None) -> dict[str, Any]:
    """`nominal_s`: of its reference kernel, to give its estimate at."""
    summary = dict(each.summary)
    if nominal_s and each.nominal_s:
        factor = nominal_s / each.nominal_s
        summary["estimate"] = {
            name: value * factor if name in TIMES and value is not None else value
            for name, value in each.summary.get("estimate", {}).items()
        }
    return {
        "seq": each.seq,
        "job": each.job,
        "model": each.model,
        "name": each.name,
        "device": each.device,
        "epoch": each.epoch,
        "at": each.at.isoformat(),
        "reference": {
            "kernel": each.kernel,
            "median_s": each.reference_s,
            "nominal_s": nominal_s,
            "stored_at_s": each.nominal_s,
        },
        **summary,
    }
