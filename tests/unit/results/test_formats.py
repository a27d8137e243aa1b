"""Results as other programs read them."""

import csv
import io
import json
import math
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from farm.results import formats
from farm.results.columns import COLUMNS, columns_of
from tests.support.needs import need

DAY = datetime(2026, 11, 1, tzinfo=UTC)


def row(number, median_s=0.010, **fields):
    estimate = {"median_s": median_s, "low_s": median_s * 0.99, "high_s": median_s * 1.02}
    return {
        "seq": number, "job": f"bench-{number}", "model": "a" * 64, "name": 'net, "new"', "device": "pixel",
        "epoch": "x/y:14", "at": (DAY + timedelta(days=number)).isoformat(), "estimate": estimate,
        "verdict": "trusted", "target": "cpu", "precision": "float32", "tuned": False, "tvm": "0.27",
        "reference": {"kernel": "k", "median_s": 0.001, "nominal_s": 0.001}, "reasons": [],
        "today": {name: time_s / 2 for name, time_s in estimate.items()}, **fields,
    }  # fmt: skip


WITHOUT_INTERVAL = row(2, estimate={"median_s": 0.01, "low_s": 0.009, "high_s": math.inf}, verdict="rejected")


def written(form, rows):
    return b"".join(formats.FORMATS[form](rows))


def test_json_lines_have_every_column_and_no_number_that_json_lacks():
    found = [json.loads(line) for line in written("jsonl", [row(1), WITHOUT_INTERVAL]).splitlines()]
    assert [list(each) for each in found] == [list(COLUMNS)] * 2
    assert found[0]["median_s"] == 0.010
    assert found[0]["today_median_s"] == 0.005
    assert found[1]["high_s"] is None


def test_a_table_holds_names_with_commas_and_quotes():
    reasons = [{"code": "drift", "verdict": "suspect"}, {"code": "burst", "verdict": "suspect"}]
    lines = list(csv.DictReader(io.StringIO(written("csv", [row(1, reasons=reasons), row(2)]).decode())))
    assert [each["model"] for each in lines] == ['net, "new"'] * 2
    assert float(lines[0]["median_s"]) == 0.010
    assert lines[0]["reasons"] == "drift burst"
    assert lines[1]["reasons"] == ""


def test_a_result_of_an_older_release_has_columns_without_values():
    bare = {"seq": 1, "job": "bench-1", "model": "a" * 64, "name": "net", "device": "pixel", "at": DAY.isoformat()}
    found = columns_of(bare)
    assert found["median_s"] is None
    assert found["reference_kernel"] is None
    assert found["tuned"] is None
    assert found["runtime"] is None


def test_bencher_gets_the_newest_of_each_build_in_nanoseconds():
    rows = [row(3, 0.012), WITHOUT_INTERVAL, row(1), row(0, tuned=True), row(0, textures=True)]
    found = json.loads(written("bencher", rows))
    assert list(found) == [
        'net, "new"/pixel/cpu/float32',
        'net, "new"/pixel/cpu/float32/tuned',
        'net, "new"/pixel/cpu/float32/textures',
    ]
    assert found['net, "new"/pixel/cpu/float32']["latency"] == {
        "value": pytest.approx(6e6), "lower_value": pytest.approx(5.94e6), "upper_value": pytest.approx(6.12e6),
    }  # fmt: skip


def test_metrics_carry_the_time_of_each_result():
    text = written("openmetrics", [row(3, 0.012), WITHOUT_INTERVAL, row(1)]).decode()
    families = {each.name: each.samples for each in text_string_to_metric_families(text)}
    assert set(families) == {f"farm_result_{name}_seconds" for name in ("median", "low", "high")}
    median = families["farm_result_median_seconds"]
    without = [each for each in median if each.labels["verdict"] == "rejected"]
    assert [each.value for each in without] == [0.005]
    median = [each for each in median if each not in without]
    assert [each.value for each in median] == [0.005, 0.006]  # at today's nominal, as on the board
    assert len(families["farm_result_low_seconds"]) == len(families["farm_result_high_seconds"]) == 2
    assert [float(each.timestamp) for each in median] == [(DAY + timedelta(days=days)).timestamp() for days in (1, 3)]
    assert median[0].labels["model"] == 'net, "new"'


def test_prometheus_takes_the_metrics(tmp_path):
    need("promtool")
    (tmp_path / "results.txt").write_bytes(written("openmetrics", [row(3, 0.012), row(1), row(2, device="galaxy")]))
    blocks = tmp_path / "blocks"
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(tmp_path / "results.txt"), str(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert list(blocks.iterdir())


def test_parquet_keeps_types():
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = parquet.read_table(io.BytesIO(written("parquet", [row(1), WITHOUT_INTERVAL])))
    assert table.column_names == list(COLUMNS)
    assert table["median_s"].to_pylist() == [0.010, 0.01]
    assert table["tuned"].to_pylist() == [False, False]
