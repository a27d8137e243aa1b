"""One device's row, whatever its phone says."""

import json
from dataclasses import replace
from datetime import UTC, datetime

from farm.control.verbs.fleet import device_row
from farm.model.device import Closed, DeviceView, Life, Service
from farm.model.health import Finding, FindingKind
from farm.model.requests import LeaseClass

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MUCH = "level: " + "\x1b[31m" * 60_000


def test_no_device_makes_the_answer_about_all_of_them_too_large():
    view = DeviceView(
        "one",
        "S1",
        Life.READY,
        reason=MUCH,
        aliases=tuple(f"{MUCH}{number}" for number in range(1000)),
        findings=tuple(Finding(kind, MUCH, MUCH) for kind in FindingKind),
        closed={each: Closed(MUCH, 3.0) for each in LeaseClass},
    )
    row = json.dumps(device_row(view, MUCH, NOW), ensure_ascii=False)
    assert len(row) < 40_000
    assert row.isprintable()


def test_ordinary_words_stay():
    found = Finding(FindingKind.DATA_LOW, "/data has 700 MB left", "remove files")
    view = DeviceView("one", "S1", Life.READY, adopted=True, findings=(found,))
    row = device_row(view, "ann", NOW)
    assert row["reason"] == "/data has 700 MB left"
    drained = device_row(replace(view, service=Service.DRAINING), "", NOW)
    assert drained["reason"] == "an operator's order; undo: farm device release one"
    assert row["findings"] == [
        {"kind": "data-low", "cause": "/data has 700 MB left", "evidence": "", "hint": "remove files", "act": False}
    ]
    assert (row["holder"], row["battery_percent"], row["adopted"]) == ("ann", None, True)
