"""The board: what stands in which cell, and that the page is whole in itself."""

import re
from functools import partial

from farm.results.board import board_of, board_page
from farm.results.series import of_branch, series_of
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
    assert (cell.median, cell.job, cell.results) == ("11.20", "bench-10", 10)
    assert (cell.change, cell.slower, len(cell.sparkline.split())) == ("+12.0% since 2026-11-08", True, 10)


def test_a_cell_says_that_a_regression_was_fixed():
    rows = [row(number, 0.0112 if 7 <= number <= 10 else 0.01) for number in range(1, 15)]
    ((cell,),) = [line.cells for line in board_of(rows).rows]
    assert (cell.change, cell.slower) == ("-10.7% (back) since 2026-11-12", False)


def test_results_of_before_a_system_update_are_not_mixed_with_those_after():
    ((cell,),) = [line.cells for line in board_of([row(1, 0.02), row(2, epoch="x/y:15")]).rows]
    assert (cell.median, cell.results, cell.sparkline) == ("10.00", 1, "")


def test_a_result_of_one_sample_stands_in_its_cell_without_an_interval():
    one = row(2) | {"estimate": {"median_s": 0.012, "low_s": None, "high_s": None}, "today": {"median_s": 0.013}}
    board = board_of([row(1), one])
    ((cell,),) = [line.cells for line in board.rows]
    assert (cell.job, cell.median, cell.interval) == ("bench-2", "13.00", "one sample: no interval")
    assert "<small>one sample: no interval</small>" in board_page(board, DAY)


def test_the_page_loads_nothing_and_says_names_as_text():
    doubt = {"code": "drift", "verdict": "suspect", "cause": "it became <slower>"}
    page = board_page(board_of([row(1, name="<script>alert(1)</script>", verdict="suspect", reasons=[doubt])]), DAY)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "it became &lt;slower&gt;" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
