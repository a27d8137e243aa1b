"""Results as other programs read them."""

import csv
import io
import json
import math
import subprocess
from datetime import timedelta

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from farm.results import formats
from farm.results.series import COLUMNS, columns_of
from tests.support import history_rows
from tests.support.history_rows import DAY
from tests.support.needs import need

CHANGE = "farm_result_level_change_ratio"
REFERENCE = {"kernel": "k", "median_s": 0.001, "nominal_s": 0.001}


def row(number, median_s=0.010, **fields):
    about = {"name": 'net, "new"', "reference": REFERENCE, "reasons": []}
    found = history_rows.row(number, median_s, width=0.01, **{**about, **fields})
    return {"today": {name: time_s / 2 for name, time_s in found["estimate"].items()}, **found}


WITHOUT_INTERVAL = row(2, estimate={"median_s": 0.01, "low_s": 0.009, "high_s": math.inf}, verdict="rejected")


def written(form, rows):
    return b"".join(formats.FORMATS[form](rows))


REASONS = [{"code": "drift", "verdict": "suspect"}, {"code": "burst", "verdict": "suspect"}]
ROWS = [row(3, 0.012, reasons=REASONS), WITHOUT_INTERVAL, row(1), row(0, tuned=True), row(0, textures=True)]


@pytest.mark.parametrize("form", ["jsonl", "csv", "bencher", "openmetrics"])
def test_format(snapshot, form):
    snapshot(written(form, ROWS).decode())


def test_other_programs_read_them():
    found = [json.loads(line) for line in written("jsonl", ROWS).splitlines()]
    assert [list(each) for each in found] == [list(COLUMNS)] * 5
    lines = list(csv.DictReader(io.StringIO(written("csv", ROWS).decode())))
    assert [each["model"] for each in lines] == ['net, "new"'] * 5
    assert json.loads(written("bencher", ROWS))
    families = {each.name for each in text_string_to_metric_families(written("openmetrics", ROWS).decode())}
    assert families == {*(f"farm_result_{name}_seconds" for name in ("median", "low", "high")), CHANGE}


def test_a_change_of_level_is_at_the_first_result_of_the_new_level():
    rows = [row(number, 0.01 if number < 9 else 0.011) for number in range(1, 13)]
    families = {each.name: each for each in text_string_to_metric_families(written("openmetrics", rows).decode())}
    (sample,) = families[CHANGE].samples
    assert (sample.value, float(sample.timestamp)) == (pytest.approx(1.1), (DAY + timedelta(days=9)).timestamp())


def test_samples_are_a_list_in_json_and_a_cell_with_blanks_in_a_table():
    rows = [{**row(2), "samples_s": [0.01, 0.0125]}, {**row(1), "samples_s": None}]  # the second one's job is gone
    assert [json.loads(line)["samples_s"] for line in written("jsonl", rows).splitlines()] == [[0.01, 0.0125], None]
    table = list(csv.DictReader(io.StringIO(written("csv", rows).decode())))
    assert [each["samples_s"] for each in table] == ["0.01 0.0125", ""]
    assert written("csv", []).decode().startswith("job,at,model,")


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@x", "\uff1d1", "\u22121", "  =1", "\x00=1", "\u00a0\uff0b1", "\tx", "\nx"]
)
def test_a_spreadsheet_computes_no_cell(text):
    named = {**row(1), "name": text}
    (line,) = csv.DictReader(io.StringIO(written("csv", [named]).decode(), newline=""))
    assert line["model"] == f"'{text}"
    assert [formats.cell(value) for value in ("a=1", "", " net", -1.5, None)] == ["a=1", "", " net", -1.5, None]


def test_a_result_of_an_older_release_has_columns_without_values():
    bare = {"seq": 1, "job": "bench-1", "model": "a" * 64, "name": "net", "device": "pixel", "at": DAY.isoformat()}
    found = columns_of(bare)
    assert {found[name] for name in ("median_s", "reference_kernel", "tuned", "runtime")} == {None}


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


OTHERS = [history_rows.energy(2), history_rows.memory(1)]


def test_other_metrics_are_lines_with_their_units():
    found = [json.loads(line) for line in written("jsonl", [row(3), *OTHERS]).splitlines()]
    assert [(each["job"], each["metric"], each["unit"], each["value"], each["low"]) for each in found] == [
        ("bench-3", "latency", "s", 0.01, 0.0099),
        ("energy-2", "energy", "J", 0.01, 0.0099),
        ("memory-1", "peak memory", "B", 274.3e6, None),
        ("memory-1", "first load", "s", 0.0123, None),
        ("memory-1", "first run", "s", 0.0456, None),
    ]
    assert [each["median_s"] for each in found] == [0.01, None, None, None, None]


def test_bencher_and_prometheus_get_them_under_names_of_their_own():
    found = json.loads(written("bencher", OTHERS))
    assert found["net/pixel/cpu/float32/energy/by meter"] == {
        "energy": {"value": 0.01, "lower_value": pytest.approx(0.0099), "upper_value": pytest.approx(0.0101)}
    }
    assert found["net/pixel/cpu/float32/peak memory"] == {"peak-memory": {"value": 274.3e6}}
    text = written("openmetrics", OTHERS).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert families["farm_result_energy_joules"].samples[0].value == 0.01
    assert families["farm_result_peak_memory_bytes"].samples[0].labels["metric"] == "peak memory"
    assert not families["farm_result_peak_memory_low_bytes"].samples
