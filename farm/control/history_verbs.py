"""Verbs about what was measured: which models, and every bench of one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from farm.control.callers import Role
from farm.control.forms import MAX_COUNT, Sha256, Verbs, form, verb
from farm.store.measurements import Measurement, MeasurementTable

MAX_PAGE = 500  # rows of about 1 kB
MAX_MODELS = 100


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
        """A page of a model's measurements."""
        page = await asyncio.to_thread(
            self._measurements.page, asked.model, device=asked.device, before=asked.before, limit=asked.limit + 1
        )
        return {"rows": [_row(each) for each in page[: asked.limit]], "more": len(page) > asked.limit}


def _row(each: Measurement) -> dict[str, Any]:
    return {
        "seq": each.seq,
        "job": each.job,
        "model": each.model,
        "name": each.name,
        "device": each.device,
        "epoch": each.epoch,
        "at": each.at.isoformat(),
        "reference": {"kernel": each.kernel, "median_s": each.reference_s, "nominal_s": each.nominal_s},
        **each.summary,
    }
