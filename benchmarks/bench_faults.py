"""The fault matrix: what goes wrong with phones, who notices it when, which actions heal it, and how soon.

Writes docs/faults.json, of which the table in docs/virtual-phone.md is made. Everything runs at the farm's defaults: a
probe every 10 s, 20 s of cooling. Several phones suffer side by side, and other faults of other phones are part of each
figure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.fault_run import Outcome, matrix_farm, play, possible
from benchmarks.fault_table import FAULTS, Fault, Stage
from benchmarks.harness import Context, Figure, under

DOCS = Path(__file__).parents[1] / "docs"


def run(context: Context) -> list[Figure]:
    """Every fault, as often as it says."""
    faults = [fault for fault in FAULTS if not possible(fault)]
    with matrix_farm(report=context.say) as farm:
        outcomes = play(farm, faults, report=context.say, repeats=True)
    rows = [_row(fault, [each for each in outcomes if each.fault is fault]) for fault in faults]
    (DOCS / "faults.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    figures = [_figure(fault, row) for fault, row in zip(faults, rows, strict=True)]
    bad = [row for row in rows if row["wrong"]]
    for row in bad:
        context.say(f"{row['fault']}: {row['wrong']}")
    hurt = sum(not row["spared"] for row in rows)
    return [
        *figures,
        Figure("faults that ended as the table says", len(rows) - len(bad), "", None, f"all {len(rows)}", not bad),
        Figure("other phones' sessions lost to a phone's fault", hurt, "", None, "none", not hurt),
    ]


def _row(fault: Fault, outcomes: Sequence[Outcome]) -> dict[str, object]:
    first = outcomes[0]
    noticed = [each.noticed_s for each in outcomes if each.noticed_s is not None]
    back = [each.back_s for each in outcomes if each.back_s is not None]
    return {
        "fault": fault.name,
        "detected": first.detected,
        "noticed_by": fault.noticed_by,
        "noticed_s": round(median(noticed), 2) if noticed else None,
        "actions": first.actions,
        "ended_by": fault.undone_by,
        "back_s": round(median(back), 2) if back else None,
        "goal_s": fault.goal_s,
        "times": len(outcomes),
        "spared": not fault.spares or all(each.spared for each in outcomes),
        "whole_farm": fault.stage is Stage.FARM and not fault.spares,
        "wrong": "; ".join(each.wrong for each in outcomes if each.wrong),
    }


def _figure(fault: Fault, row: dict[str, object]) -> Figure:
    back_s = row["back_s"]
    seconds = back_s if isinstance(back_s, float) else 0.0
    if row["wrong"]:
        return Figure(fault.name, seconds, "s", None, "as the table says", ok=False)
    return under(fault.name, seconds, "s", fault.goal_s)
