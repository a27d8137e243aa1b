"""The soak in short (`make soak` is the hour): a minute of storm, and the same promises."""

import pytest

from benchmarks.bench_soak import run
from benchmarks.harness import Context


@pytest.mark.timeout(420)
def test_a_minute_of_storm_leaves_nothing_and_quarantines_nobody_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("SOAK_MINUTES", "1")
    monkeypatch.setenv("SOAK_PHONES", "8")
    figures = run(Context(tmp_path))
    assert [figure for figure in figures if not figure.ok] == []
