"""The board: what stands in which cell, and that the page is whole in itself."""

import re
from functools import partial

from farm.results.board import board_of, board_page
from farm.results.series import of_branch, series_of
from farm.web.measured import front_plot
from tests.support import history_rows
from tests.support.history_rows import DAY

row = partial(history_rows.row, soc="sm8550")


def test_a_line_for_each_build_and_a_column_for_each_phone():
    found = board_of([row(1), row(2, device="galaxy", soc="exynos"), row(3, tuned=True), row(4, textures=True)])
    assert [phone.name for phone in found.phones] == ["galaxy", "pixel"]
    assert [(line.model, line.build) for line in found.rows] == [
        ("net", "cpu, float32"),
        ("net", "cpu, float32, textures"),
        ("net", "cpu, float32, tuned"),
    ]
    assert [cell and cell.job for cell in found.rows[0].cells] == ["bench-2", "bench-1"]
    assert [cell and cell.job for cell in found.rows[1].cells] == [None, "bench-4"]


def test_a_model_file_of_two_names_is_one_line_under_the_newest():
    (line,) = board_of([row(1, name="old"), row(2, device="galaxy"), row(3)]).rows
    assert (line.model, [cell and cell.results for cell in line.cells]) == ("net", [1, 2])


def test_results_of_a_branch_are_in_no_series_of_the_main_one():
    rows = [row(1), row(2, branch="main"), row(3, branch="slow", median_s=0.02), row(4, branch="master")]
    assert [[each["job"] for each in series] for series in series_of(rows)] == [
        ["bench-1", "bench-2", "bench-4"], ["bench-3"],
    ]  # fmt: skip
    for branch, jobs in (("", ["bench-1", "bench-2", "bench-4"]), ("main", None), ("slow", ["bench-3"])):
        of_it = list(of_branch(rows, branch))
        assert jobs is None or [each["job"] for each in of_it] == jobs
        assert [cell and cell.results for line in board_of(of_it).rows for cell in line.cells] == [len(of_it)]


def test_a_cell_has_the_newest_result_and_the_last_change():
    rows = [row(number) for number in range(1, 7)] + [row(number, 0.0112) for number in range(7, 11)]
    ((cell,),) = [line.cells for line in board_of(rows).rows]
    assert (cell.value, cell.job, cell.results) == ("11.20", "bench-10", 10)
    assert (cell.change, cell.worse, len(cell.sparkline.split())) == ("+12.0% since 2026-11-08", True, 10)


def test_a_cell_says_that_a_regression_was_fixed():
    rows = [row(number, 0.0112 if 7 <= number <= 10 else 0.01) for number in range(1, 15)]
    ((cell,),) = [line.cells for line in board_of(rows).rows]
    assert (cell.change, cell.worse) == ("-10.7% (back) since 2026-11-12", False)


def test_results_of_before_a_system_update_are_not_mixed_with_those_after():
    ((cell,),) = [line.cells for line in board_of([row(1, 0.02), row(2, epoch="x/y:15")]).rows]
    assert (cell.value, cell.results, cell.sparkline) == ("10.00", 1, "")


def test_a_result_of_one_sample_stands_in_its_cell_without_an_interval():
    one = row(2) | {"estimate": {"median_s": 0.012, "low_s": None, "high_s": None}, "today": {"median_s": 0.013}}
    board = board_of([row(1), one])
    ((cell,),) = [line.cells for line in board.rows]
    assert (cell.job, cell.value, cell.interval) == ("bench-2", "13.00", "one sample: no interval")
    assert "<small>one sample: no interval</small>" in board_page(board, DAY)


def test_a_rescaled_median_stands_beside_the_one_that_its_job_reported():
    today = {"nominal_s": 0.002, "median_s": 0.02, "low_s": 0.019, "high_s": 0.021}
    board = board_of([row(1, reference={"kernel": "k", "nominal_s": 0.001}, today=today)])
    ((cell,),) = [line.cells for line in board.rows]
    assert (cell.value, cell.reported) == ("20.00", "10.00")
    assert "<small>10.00 as its job reported it</small>" in board_page(board, DAY)
    assert "as its job reported it" not in board_page(board_of([row(1)]), DAY)


def right(number, value, *, data="d" * 64, metric="top1", **fields):
    found = {"metric": metric, "value": value, "low": value - 0.02, "high": value + 0.02, "count": 500, "data": data}
    return row(number, estimate=None, job=f"run-{number}", quality=found, **fields)


def test_builds_that_no_other_one_beats_in_speed_and_quality_are_on_the_front():
    builds = {"float32": (0.010, 0.95), "float16": (0.006, 0.94), "int8": (0.004, 0.80), "tf32": (0.007, 0.90)}
    rows = [row(number, fast, precision=name) for number, (name, (fast, _)) in enumerate(builds.items(), 1)]
    rows += [right(number, good, precision=name) for number, (name, (_, good)) in enumerate(builds.items(), 11)]
    rows += [row(5, 0.011, placement="2 threads")]  # the same numbers, slower
    rows += [right(21, 0.99, precision="float64"), right(22, 0.5, device="galaxy"), row(23, device="fairphone")]
    (front,) = board_of(rows).fronts
    assert [(each.build, each.on_front) for each in front.points] == [
        ("cpu, int8", True), ("cpu, float16", True), ("cpu, tf32", False), ("cpu, float32", True),
        ("cpu, float32, 2 threads", False),
    ]  # fmt: skip
    assert front.points[0].jobs == ("bench-3", "run-13")
    assert front.line == "187.6,194.7 257.5,194.7 257.5,73.9 397.1,73.9 397.1,65.3"
    page = board_page(board_of(rows), DAY)
    assert f"<h2>{front.title}</h2>" in page
    assert front.title == "pixel: top1 of 500 labelled inputs (dddddddddddd)"


def test_rejected_medians_and_single_samples_are_points_beside_the_front():
    one = {"median_s": 0.002, "low_s": None, "high_s": None, "count": 1}
    rows = [row(1, 0.001, precision="a", verdict="rejected"), row(2, precision="b") | {"estimate": one}]
    rows += [row(3, 0.01, precision="c", verdict="suspect")]
    rows += [right(number, 0.9, precision=name) for number, name in enumerate("abc", 4)]
    (front,) = board_of(rows).fronts
    assert [(each.build, each.on_front) for each in front.points] == [
        ("cpu, a", False), ("cpu, b", False), ("cpu, c", True),
    ]  # fmt: skip
    (none,) = board_of(rows[:2] + rows[3:5]).fronts
    assert none.line == ""
    assert "every median is rejected or one sample" in front_plot(none, "front").summary


def test_of_an_error_less_is_better_and_other_inputs_are_another_drawing():
    rows = [row(1), row(2, 0.02, tuned=True), right(3, 0.3, metric="mse"), right(4, 0.2, metric="mse", tuned=True)]
    rows += [right(5, 0.9), right(6, 0.8, data="e" * 64)]
    fronts = board_of(rows).fronts
    assert [(each.metric, len(each.points)) for each in fronts] == [("mse", 2), ("top1", 1), ("top1", 1)]
    assert [each.on_front for each in fronts[0].points] == [True, True]


def test_the_page_loads_nothing_and_says_names_as_text():
    doubt = {"code": "drift", "verdict": "suspect", "cause": "it became <slower>"}
    page = board_page(board_of([row(1, name="<script>alert(1)</script>", verdict="suspect", reasons=[doubt])]), DAY)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "it became &lt;slower&gt;" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_work_on_an_accelerator_is_a_line_of_its_own_and_on_cpus_a_word_in_the_cell():
    ort = {"runtime": {"name": "ort", "version": "1"}, "target": "ort"}
    npu = {**ort, "ran_on": "NnapiExecutionProvider 5 nodes", "offloaded": 1.0}
    cpu = {**ort, "ran_on": "CPUExecutionProvider 5 nodes", "offloaded": 0.0}
    found = board_of([row(1, **npu), row(2, **ort), row(3, **cpu)])
    assert [(line.build, [(cell.results, cell.ran_on) for cell in line.cells]) for line in found.rows] == [
        ("ort, float32", [(2, "CPUExecutionProvider 5 nodes")]),
        ("ort, float32, NnapiExecutionProvider 5 nodes", [(1, "")]),
    ]
    assert "<small>CPUExecutionProvider 5 nodes</small>" in board_page(found, DAY)


def test_what_other_jobs_measured_has_rows_of_its_own_with_units():
    rows = [row(1), *(history_rows.energy(n, 0.01 if n < 8 else 0.0112, soc="sm8550") for n in range(2, 14))]
    board = board_of([*rows, history_rows.memory(14)])
    cells = {line.build: line.cells[0] for line in board.rows}
    assert {build: (cell.value, cell.unit, cell.interval) for build, cell in cells.items()} == {
        "cpu, float32": ("10.00", "ms", "9.990 .. 10.01"),
        "cpu, float32, energy, by meter": ("11.20", "mJ", "11.09 .. 11.31"),
        "cpu, float32, first load": ("12.30", "ms", ""),
        "cpu, float32, first run": ("45.60", "ms", ""),
        "cpu, float32, peak memory": ("274.3", "MB", ""),
    }
    joules = cells["cpu, float32, energy, by meter"]
    assert (joules.change, joules.worse) == ("+12.0% since 2026-11-09", True)
    assert "<strong>274.3</strong> MB" in board_page(board, DAY)
    labelled = [right(15, 0.9)]
    (front,) = board_of([*rows, *labelled]).fronts
    assert [each.jobs for each in front.points] == [("bench-1", "run-15")]  # joules are no speed
