"""The fault matrix: what goes wrong with phones, who notices it when, which actions heal it, and how soon.

Writes docs/faults.json and the table of docs/faults.md; the sections below it stay. Everything runs at the farm's
defaults: a probe every 10 s, 20 s of cooling. Several phones suffer side by side, and other faults of other phones are
part of each figure.
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
SECTION = "\n## "  # what begins below the table
HEAD = """\
# Faults
Faults of virtual phones, and farm's reaction. Written by `make bench NAME=faults` (`benchmarks/fault_table.py` has the
faults, docs/faults.json the data); `tests/acceptance/test_fault_matrix.py` checks outcome and order. A probe every
10 s; a phone opens 20 s after it has cooled. A session on another phone computes meanwhile; "spared": it lost nothing.

- noticed: seconds from the fault to the first event; by: its source.
- back: seconds until the phone could be leased, since the fault or its end (medians); goal: their limit.

| fault | detected as | by | noticed, s | actions | ended by | back, s | goal, s | others |
|---|---|---|---|---|---|---|---|---|
"""


def run(context: Context) -> list[Figure]:
    """Every fault, as often as it says."""
    faults = [fault for fault in FAULTS if not possible(fault)]
    with matrix_farm(report=context.say) as farm:
        outcomes = play(farm, faults, report=context.say, repeats=True)
    rows = [_row(fault, [each for each in outcomes if each.fault is fault]) for fault in faults]
    (DOCS / "faults.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    page = DOCS / "faults.md"
    _, heading, sections = page.read_text().partition(SECTION)
    page.write_text(HEAD + "".join(map(_line, rows)) + heading + sections)
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


def _line(row: dict[str, object]) -> str:
    detected = str(row["detected"]).partition(":")[0] or "(nothing to detect)"
    others = "every phone" if row["whole_farm"] else ("spared" if row["spared"] else "HURT")
    actions = row["actions"]
    assert isinstance(actions, tuple)
    goal = f"{row['goal_s']:g}" if row["goal_s"] else ""
    cells = [
        row["fault"], detected, row["noticed_by"], _s(row["noticed_s"]), ", ".join(actions) or "none",
        row["ended_by"] or "itself", _s(row["back_s"]) + (" **WRONG**" if row["wrong"] else ""), goal, others,
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _s(value: object) -> str:
    return "" if value is None else str(value)


def _figure(fault: Fault, row: dict[str, object]) -> Figure:
    back_s = row["back_s"]
    seconds = back_s if isinstance(back_s, float) else 0.0
    if row["wrong"]:
        return Figure(fault.name, seconds, "s", None, "as the table says", ok=False)
    return under(fault.name, seconds, "s", fault.goal_s)
