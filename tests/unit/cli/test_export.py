"""`farm export` and `farm board`: what they ask the daemon, and where they write."""

import json
from datetime import UTC, datetime, timedelta
from typing import get_args, get_type_hints

import pytest

from farm.cli import export
from farm.head.queue.model import NoSuchJobError
from farm.results.formats import FORMATS
from tests.support import history_rows

FIRST = datetime.now(UTC) - timedelta(days=10)


def row(number, **fields):
    return history_rows.row(number, first=FIRST, **fields)


@pytest.fixture
def exported(answers, farm, tmp_path):
    """What `farm export` with these options makes of these results."""

    def exported(options, *rows):
        answers.update(history_rows.history(*rows))
        return farm(f"export {options} --output {tmp_path}/out"), tmp_path / "out"

    return exported


@pytest.mark.parametrize(
    ("options", "rows", "jobs"),
    [
        ("", [row(n, model=f"{n}" * 64) for n in range(1, 6)], "54321"),  # of every model, by pages
        ("--since 3d", [row(n) for n in range(1, 10)], "98"),
        ("--device pixel --trusted", [row(1), row(2, verdict="suspect"), row(3, device="galaxy")], "1"),
    ],
)
def test_results_that_are_wanted_are_written(exported, answers, options, rows, jobs):
    _, out = exported(options, *rows)
    assert [json.loads(line)["job"] for line in out.read_text().splitlines()] == [f"bench-{job}" for job in jobs]
    assert options != "--since 3d" or len(answers.asked) == 2  # older ones are not even asked for


def test_samples_come_from_the_jobs_that_are_kept(exported, answers):
    gone = NoSuchJobError("there is no job")
    results = {"bench-2": {"result": {"samples_s": [0.01, "=1", 0.02]}}, "bench-1": gone}
    answers["job.show"] = lambda job: results[job]
    _, out = exported("--samples", row(1), row(2))
    assert [json.loads(line)["samples_s"] for line in out.read_text().splitlines()] == [[0.01, 0.02], None]


def test_bencher_gets_trusted_results_and_the_number_of_the_others_is_told(exported):
    rows = row(1), row(2, verdict="suspect", device="galaxy"), row(3, verdict="rejected")
    said, out = exported("--format bencher", *rows)
    assert len(json.loads(out.read_text())) == 1
    assert "left out, as not trusted: 2 results\n" in said.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--device pixel --since 3d --trusted", "there is no trusted result on pixel since 3d"),
        ("--format mlflow", "go together"),
        ("--format csv --to http://localhost", "go together"),
    ],
)
def test_without_results_or_a_place_for_them_nothing_is_written(exported, options, said):
    refused, out = exported(options, row(1, verdict="rejected"))
    assert (said in refused.err, out.exists()) == (True, False)


def test_results_become_runs_once(answers, farm, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    from mlflow import MlflowClient

    answers.update(history_rows.history(row(1), row(2)))
    uri = (tmp_path / "runs").as_uri()
    said = [farm(f"export --format mlflow --to {uri}") for _ in range(2)]
    assert "0 runs logged in experiment farm" in said[1].err
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("farm").experiment_id])
    assert {run.data.tags["farm.job"] for run in runs} == {"bench-1", "bench-2"}
    assert runs[0].data.metrics["median_s"] == 0.01


def test_the_board_is_one_file(answers, farm, tmp_path):
    answers.update(history_rows.history(row(1), row(2, device="galaxy")))
    farm(f"board --output {tmp_path}/board.html")
    page = (tmp_path / "board.html").read_text("utf-8")
    assert (page.startswith("<!doctype html>"), "galaxy" in page) == (True, True)


@pytest.mark.parametrize("command", ["board", "export"])
def test_a_branch_without_results_is_refused_and_others_are_named(answers, farm, tmp_path, command):
    answers.update(history_rows.history(row(1), row(2, branch="wide"), row(3, branch="master")))
    said = farm(f"{command} --branch nosuch --output {tmp_path}/out")
    assert (said.code, (tmp_path / "out").exists()) == (2, False)
    assert said.err == "error: there is no result of branch nosuch\n  hint: --branch, of: main, wide\n"
    assert farm(f"{command} --branch wide --output {tmp_path}/out").code == 0


def test_the_option_offers_every_format_there_is():
    assert get_args(get_type_hints(export.export)["format"]) == (*FORMATS, "mlflow")
