"""What was measured and tuned: every bench of a model over time, and the kept sets of tuning records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from farm.core.errors import FarmError
from farm.core.nominal import scaled
from farm.core.target_key import target_words
from farm.web.job_views import told, tone
from farm.web.page import ask, render
from farm.web.plot_parts import Plot, time_words
from farm.web.plots import history_plot

router = APIRouter()
PAGE_RESULTS = 100
RECENT = 100  # benches whose models are offered
# Results that differ in one of these are not one line over time.
SAME = ("target", "precision", "tuned", "tvm", "bundle", "epoch", "device")

Text = Annotated[str, Query(max_length=255)]


@router.get("/history")
async def history(request: Request, model: Text = "", device: Text = "", before: int | None = None) -> Response:
    """Every bench of a model, newest first, and how its medians went on each phone."""
    models = (await ask(request, "history.models", model=model))["models"] if model else []
    hashes = sorted({each["model"] for each in models})
    rows: Sequence[Mapping[str, Any]] = ()
    more = False
    if len(hashes) == 1:
        asked = {"model": hashes[0], "device": device, "limit": PAGE_RESULTS}
        page = await ask(request, "history.list", **asked, **({"before": before} if before is not None else {}))
        rows, more = told(page["rows"]), page["more"]
    return render(
        request,
        "history.html",
        model=model,
        device=device,
        models=models,
        several=len(hashes) > 1,
        rows=rows,
        scaled=scaled(rows),
        before=rows[-1]["seq"] if more else None,
        plots=[plot.figure() for plot in line_plots(rows)],
        recent=[] if model else await _recent(request),
        tone_of=tone,
        words=time_words,
    )


@router.get("/records")
async def records(request: Request, name: Text = "") -> Response:
    """The newest sets of tuning records."""
    sets = (await ask(request, "records.list", name=name))["sets"]
    return render(request, "records.html", sets=sets, name=name, target_words=target_words)


@router.get("/records/{number}")
async def one_set(request: Request, number: int) -> Response:
    """One set: the best of each task."""
    kept = told(await ask(request, "records.show", set=str(number)))
    return render(request, "record_set.html", kept=kept, tasks=kept["best"]["tasks"] or (), target_words=target_words)


async def _recent(request: Request) -> list[str]:
    """Names of models that were benched lately."""
    try:
        jobs = (await ask(request, "job.list", of_kind="bench", state=["done"], limit=RECENT))["jobs"]
    except FarmError:
        return []
    return list(dict.fromkeys(row["name"] for row in jobs))


def line_plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """A plot for each line of results that can be compared; `rows` are newest first."""

    def line(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row.get(name, "")) for name in SAME)

    plots, oldest_first = [], rows[::-1]
    for number, (_, group) in enumerate(groupby(sorted(oldest_first, key=line), key=line)):
        results = [row for row in group if row.get("estimate")]
        plot = history_plot([_point(row) for row in results])
        if plot is not None:
            plots.append(plot.named(f"history-{number}", _line_title(results[0])))
    return plots


def _point(row: Mapping[str, Any]) -> tuple[float, float, float, str]:
    estimate = row["estimate"]
    return estimate["median_s"], estimate["low_s"], estimate["high_s"], str(row.get("verdict", ""))


def _line_title(row: Mapping[str, Any]) -> str:
    tuned = ", tuned" if row.get("tuned") else ""
    return f"{row['device']}: {row.get('target', '')} {row.get('precision', '')}{tuned}, TVM {row.get('tvm', '?')}"
