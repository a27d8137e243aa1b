"""A phone that prints nonsense without end: it is the only one that suffers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.whole_farm import phones, running_farm, until

BLANKS = "\n" * 900_000
COLOURS = "  powered: no\n  level: " + "\x1b[31m" * 700 + "\n"


def _row(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(row for row in status["devices"] if row["name"] == name)


def test_nonsense_of_one_phone_neither_stops_nor_breaks_the_farm(tmp_path: Path) -> None:
    with running_farm("oneplus-5t", "galaxy-s9", config="[probe]\nevery_s = 0.5\n") as farm:
        bad, good = (phone.name for phone in phones(farm))
        said = tmp_path / "said"
        said.write_text(BLANKS)
        farm.lab.fault("virtual-1", "capture", file="dumpsys/battery", path=str(said))
        assert "battery" in farm.client.call("device.probe", device=bad)["health"]["missing"]
        assert _row(farm.status(), good)["state"] == "ready"
        said.write_text(COLOURS)
        farm.lab.fault("virtual-1", "capture", file="dumpsys/battery", path=str(said))
        until(lambda: _row(farm.status(), bad)["findings"])
        status = farm.status()
        assert _row(status, good)["state"] == "ready"
        (found,) = _row(status, bad)["findings"]
        assert found["kind"] == "gauge"
        assert "\\x1b[31m" in found["cause"]
        assert len(found["cause"]) < 300
        assert "\x1b" not in farm.daemon.log.read_text(errors="replace")
