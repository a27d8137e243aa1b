"""The web page of a tuning: its curve, also while the search continues."""

from __future__ import annotations

from collections.abc import Sequence

from farm.common.durations import digits, many
from farm.web.plots import KindPage, Line, Mark, Panel, Plot, PlotSource, Table, evenly, object_of, time_words, unit_of


def tune_plots(source: PlotSource) -> list[Plot]:
    """The tuning curve: of the result, or of the search that continues."""
    result, progress = source.result, object_of(source.shown.get("progress"))
    if result.get("curve"):
        plot = tuning_plot(result["curve"], result["trials"], result.get("search_s"), result.get("wanted_trials"))
    else:
        standing = object_of(progress.get("tuning"))
        plot = tuning_plot(
            progress.get("curve") or (), standing.get("trials") or 0, standing.get("spent_s"), standing.get("wanted")
        )
    return [] if plot is None else [plot]


def tuning_plot(
    curve: Sequence[Sequence[float]], trials: int, search_s: float | None, wanted: int | None = None
) -> Plot | None:
    """The estimated latency of the model, best so far, and the trials made, over the search's time.

    Args:
        curve: trial, seconds of search, estimated latency in seconds, whenever it became better.
        trials: made so far.
        search_s: spent so far; None: not known.
        wanted: trials in all; None: not known.
    """
    points = [(float(trial), float(at), float(best)) for trial, at, best in curve]
    if not points:
        return None
    factor, unit = unit_of(points[-1][2])
    end_s = max([search_s or 0.0, points[-1][1]])
    x = [at for _, at, _ in points]
    best: list[float | None] = [value / factor for _, _, value in points]
    made: list[float | None] = [trial for trial, _, _ in points]
    if end_s > x[-1]:
        x, best, made = [*x, end_s], [*best, best[-1]], [*made, float(trials)]
    first, last = points[0][2], points[-1][2]
    made_in = many(trials, "trial")
    summary = (
        f"The estimate, the sum of all tasks' best times, each timed alone, fell from {time_words(first)} to "
        f"{time_words(last)} ({first / last:.2f} times) in {made_in}; the whole model is timed afterwards."
    )
    summary += f" Last improvement: trial {points[-1][0]:.0f} ({points[-1][1]:.0f} s)."
    marks = [] if wanted is None else [Mark(name="wanted", at=float(wanted), tone="quiet")]
    rows = [points[i] for i in evenly(len(points))]
    return Plot(
        id="tuning",
        title="Tuning curve",
        summary=summary,
        x_label="time of the search, s",
        span=(0.0, end_s or 1.0),
        panels=[
            Panel(label=f"estimate, {unit}", x=x, lines=[Line(name="best so far", values=best, kind="steps")]),
            Panel(
                label="trials",
                x=[0.0, *x],
                lines=[Line(name="trials", values=[0.0, *made], kind="line", tone="b")],
                marks=marks,
                height=130,
            ),
        ],
        table=Table(
            head=("trial", "after, s", f"estimate, {unit}"),
            rows=[(f"{trial:.0f}", f"{at:.1f}", digits(value / factor)) for trial, at, value in rows],
        ),
    )


PAGE = KindPage(plots=tune_plots, live=True)
