"""`farm export` and `farm board`: what they ask the daemon, and where they write."""

import json
from datetime import UTC, datetime, timedelta
from typing import get_args, get_type_hints

import pytest

from farm.cli import export
from farm.common.errors import UserError
from farm.results.formats import FORMATS

NOW = datetime.now(UTC)


def row(number, **fields):
    estimate = {"median_s": 0.01, "low_s": 0.0099, "high_s": 0.0101}
    return {
        "seq": number, "job": f"bench-{number}", "model": "a" * 64, "name": "net", "device": "pixel", "epoch": "x",
        "at": (NOW - timedelta(days=10 - number)).isoformat(), "estimate": estimate, "verdict": "trusted",
        "target": "cpu", "precision": "float32", "tuned": False, **fields,
    }  # fmt: skip


class Daemon:
    """Answers `history.list`, two rows a page."""

    def __init__(self, rows):
        self.rows = sorted(rows, key=lambda each: -each["seq"])
        self.pages = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def call(self, kind, **asked):
        assert kind == "history.list"
        self.pages += 1
        found = [
            each for each in self.rows
            if each["model"] == asked.get("model", each["model"]) and asked["device"] in ("", each["device"])
            and each["seq"] < asked.get("before", 1 << 60)
        ]  # fmt: skip
        return {"rows": found[:2], "more": len(found) > 2}


@pytest.fixture
def daemon(monkeypatch):
    def daemon(*rows):
        made = Daemon(rows)
        monkeypatch.setattr(export, "connect", lambda: made)
        return made

    return daemon


def jobs(path):
    return [json.loads(line)["job"] for line in path.read_text("utf-8").splitlines()]


def test_every_result_of_every_model_by_pages(daemon, tmp_path):
    daemon(*(row(number, model=f"{number}" * 64) for number in range(1, 6)))
    export.export(output=tmp_path / "out")
    assert jobs(tmp_path / "out") == [f"bench-{number}" for number in range(5, 0, -1)]


def test_older_results_are_not_even_asked_for(daemon, tmp_path):
    asked = daemon(*(row(number) for number in range(1, 10)))
    export.export(since="3d", output=tmp_path / "out")
    assert jobs(tmp_path / "out") == ["bench-9", "bench-8"]
    assert asked.pages == 2


def test_only_trusted_results_of_one_phone(daemon, tmp_path):
    daemon(row(1), row(2, verdict="suspect"), row(3, device="galaxy"))
    export.export(device="pixel", trusted=True, output=tmp_path / "out")
    assert jobs(tmp_path / "out") == ["bench-1"]


def test_bencher_gets_trusted_results_and_the_number_of_the_others_is_told(daemon, tmp_path, capsys):
    daemon(row(1), row(2, verdict="suspect", device="galaxy"), row(3, verdict="rejected"))
    export.export(format="bencher", output=tmp_path / "out")
    assert len(json.loads((tmp_path / "out").read_text("utf-8"))) == 1
    assert "left out, as not trusted: 2 results\n" in capsys.readouterr().err


def test_without_results_nothing_is_written(daemon, tmp_path):
    daemon(row(1, verdict="rejected"))
    with pytest.raises(UserError, match="there is no trusted result on pixel since 3d"):
        export.export(device="pixel", since="3d", trusted=True, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [{"format": "mlflow"}, {"format": "csv", "to": "http://localhost"}])
def test_a_server_is_for_mlflow_only(asked, daemon):
    daemon(row(1))
    with pytest.raises(UserError, match="go together"):
        export.export(**asked)


def test_results_become_runs_once(daemon, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    from mlflow import MlflowClient

    daemon(row(1), row(2))
    for _ in range(2):
        export.export(format="mlflow", to=(tmp_path / "runs").as_uri())
    assert "0 runs logged in experiment farm" in capsys.readouterr().err
    client = MlflowClient((tmp_path / "runs").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("farm").experiment_id])
    assert {run.data.tags["farm.job"] for run in runs} == {"bench-1", "bench-2"}
    assert runs[0].data.metrics["median_s"] == 0.01


def test_the_board_is_one_file(daemon, tmp_path):
    daemon(row(1), row(2, device="galaxy"))
    export.board(output=tmp_path / "board.html")
    page = (tmp_path / "board.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "galaxy" in page


def test_the_option_offers_every_format_there_is():
    assert get_args(get_type_hints(export.export)["format"]) == (*FORMATS, "mlflow")
