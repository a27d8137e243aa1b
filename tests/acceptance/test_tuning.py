"""Tuning survives the daemon and damaged records, with the exact count of trials; on this host it needs no daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.client import Client, Submitted
from farm.compiler.record_files import ASIDE, read_records
from farm.compiler.records import MEASURED_BY, RECORDS
from farm.simulation.virtual_farm import VirtualFarm
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import holders, running_farm, until

TRIALS = 48
CACHE = "state/work/cache"  # of all users, in a virtual farm's folder
END_S = 240.0
MODEL = "dense.onnx", dense_onnx(layers=2)


@pytest.fixture
def farm() -> Iterator[VirtualFarm]:
    with running_farm("oneplus-12") as running:
        yield running


def begun(farm: VirtualFarm, client: Client, model: Path, **options: Any) -> tuple[Submitted, Path]:
    """A tuning run that has measured some of its trials, and the folder of its records."""
    spec = client.spec("tune", model=model, on="android", trials=TRIALS, cost_model="random", **options)
    submitted = client.submit(spec)

    def some() -> Path | None:
        found = list((farm.folder / CACHE).glob(f"*/default/tuning/*/{submitted.ids[0]}/{RECORDS}"))
        return found[0].parent if found and found[0].read_bytes().count(b"\n") >= 5 else None

    return submitted, until(some)


def ended(client: Client, submitted: Submitted) -> dict[str, Any]:
    [outcome] = client.wait(submitted, timeout_s=END_S)
    return dict(outcome.raise_for_error().result)


def exact(folder: Path, result: dict[str, Any]) -> None:
    found = read_records(folder)
    assert not found.damage
    assert result["trials"] == TRIALS == len(found.set.records) == len({each.key for each in found.set.records})
    assert sum(task["trials"] for task in result["tasks"]) == TRIALS


def test_a_tuning_that_waits_after_a_killed_daemon_keeps_its_trials_when_it_is_cancelled(
    farm: VirtualFarm, model: Path
) -> None:
    with Client(farm.socket) as client:
        submitted, folder = begun(farm, client, model)
        farm.daemon.kill()
        until(lambda: not holders(folder / "lock"))
        farm.lab.unplug(next(iter(farm.lab.status())))
        farm.daemon.start().close()
        assert f"{submitted.ids[0]} (tune of" in (said := "\n".join(client.explain("job", submitted.ids[0])))
        assert "is queued" in said
        client.cancel(submitted)
    [row] = json.loads(farm.farm("records", "list", "--json").stdout)["sets"]
    assert (row["job"], row["records"]) == (submitted.ids[0], len(read_records(folder).set.records))


def test_damaged_records_are_put_aside_told_and_measured_anew(farm: VirtualFarm, model: Path) -> None:
    with Client(farm.socket) as client:
        submitted, folder = begun(farm, client, model)
        farm.daemon.kill()
        until(lambda: not holders(folder / "lock"))
        lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
        lines[1] = lines[1][: len(lines[1]) // 2] + b"\x00\xff\n"
        (folder / RECORDS).write_bytes(b"".join(lines) + lines[0][:30])
        farm.daemon.start().close()
        result = ended(client, submitted)
    assert result["earlier_trials"] == len(lines) - 1
    assert any(f"{RECORDS} line 2" in note for note in result["notes"])
    aside = [json.loads(line) for line in (folder / ASIDE).read_text().splitlines()]
    assert [(each["file"], each["line"]) for each in aside] == [(RECORDS, 2)]
    exact(folder, result)


def test_on_this_host_without_a_daemon_and_on_from_there(model: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "FARM_SOCKET": str(tmp_path / "none.sock")}

    def tune(trials: int) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "farm", "tune", str(model), "--on", "host", "--trials", str(trials),
             "--cost-model", "xgb", "--json"],
            env=environment, capture_output=True, text=True, timeout=END_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first = tune(12)
    assert (first["trials"], first["earlier_trials"]) == (12, 0)
    more = tune(20)
    assert (more["trials"], more["earlier_trials"]) == (20, 12)
    where = Path(more["records"]["where"])
    assert len(read_records(where).set.records) == 20
    assert (where / MEASURED_BY).exists()
